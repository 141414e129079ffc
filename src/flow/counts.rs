//! The counts of a partition: what producers attempted and put, and what its drain thread took and
//! completed.

use crate::flow::gate::Gate;
use crate::flow::partition::Partition;
use crate::flow::slow_counts::Attempt;
use crate::observe::PartitionCounts;
use crate::rules::{Rule, rule_off};
use crate::sync::Ordering;

impl<T> Partition<T> {
    /// Counts a put that has to wait for others before its first attempt.
    pub(crate) fn begin_delayed(&self) {
        let _gate = self.gate.lock();
        self.count_slow(Attempt::New, 1, 0);
    }

    /// Counts, under the gate, puts that do not succeed immediately, or delayed puts that have now
    /// succeeded.
    pub(super) fn count_slow(&self, attempt: Attempt, delayed: usize, put: usize) {
        self.slow.count(attempt, delayed, put);
    }

    /// Attempts so far, including those that wait, so that a balancer sees the demand.
    pub(crate) fn attempts(&self) -> u64 {
        let gate = self.gate.lock();
        self.attempts_of(&gate)
    }

    fn attempts_of(&self, gate: &Gate<T>) -> u64 {
        self.slow.attempts(gate.pushed())
    }

    /// Counts `items` attempts that gave up.
    pub(crate) fn refuse(&self, items: usize) {
        if !rule_off(Rule::CountRefused) {
            let _gate = self.gate.lock();
            self.slow.refuse(items);
        }
    }

    /// The position that a flush waits for: the items put so far.
    pub(crate) fn pushed_under_gate(&self) -> u64 {
        self.gate.lock().pushed()
    }

    /// A consistent snapshot of the counts: under the gate no item enters, and a reading of `taken`
    /// between two equal readings of `completed` is consistent with it. If the drain thread is too
    /// fast for that on every try, in flight appears larger.
    pub(crate) fn counts(&self) -> PartitionCounts {
        const TRIES: usize = 16;
        let gate = self.gate.lock();
        let mut completed = self.completed();
        let mut taken = self.drain_side.taken.load(Ordering::Acquire);
        for _ in 0..TRIES {
            let again = self.completed();
            if again == completed {
                break;
            }
            completed = again;
            taken = self.drain_side.taken.load(Ordering::Acquire);
        }
        PartitionCounts {
            attempts: self.attempts_of(&gate),
            pushed: gate.pushed(),
            refused: self.slow.refused(),
            taken,
            completed,
        }
    }
}
