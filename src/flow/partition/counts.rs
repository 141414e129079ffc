//! The counts of a partition: what producers attempted and put, and what its drain thread took and
//! completed.

use crate::flow::partition::Partition;
use crate::flow::partition::gate::Gate;
use crate::flow::partition::slow_counts::Attempt;
use crate::observe::PartitionCounts;
use crate::sync::Instant;

/// What waits in a partition for its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// At least so many items were put before the first that waits.
    pub(crate) first: u64,
    /// The items put so far.
    pub(crate) pushed: u64,
    /// When the oldest item was put that no call has had, or before, if that is known.
    pub(crate) put: Option<Instant>,
}

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
    fn attempts_of(&self, gate: &Gate<T>) -> u64 {
        self.slow.attempts(gate.pushed())
    }

    /// Counts `items` attempts that gave up.
    pub(crate) fn refuse(&self, items: usize) {
        let _gate = self.gate.lock();
        self.slow.refuse(items);
    }

    /// The position that a flush waits for: the items put so far.
    pub(crate) fn pushed_under_gate(&self) -> u64 {
        self.gate.lock().pushed()
    }

    /// What waits for its call, if something does; without items that wait for their batch to
    /// become full.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        let lanes = self.lanes.lock();
        let pushed = self.gate.lock().pushed();
        let (taken, held, lingers) = (self.taken(), lanes.first_held(), lanes.has_lingering());
        drop(lanes);
        let queued = (pushed > taken && !lingers).then_some(taken);
        let first = held.into_iter().chain(queued).min()?;
        // What lingers may be older.
        let put = if lingers { None } else { self.oldest_put() };
        Some(Waiting { first, pushed, put })
    }

    /// A consistent snapshot of the counts: under the two locks no item enters, is taken or is
    /// settled.
    pub(crate) fn counts(&self) -> PartitionCounts {
        let lanes = self.lanes.lock();
        let gate = self.gate.lock();
        PartitionCounts {
            attempts: self.attempts_of(&gate),
            pushed: gate.pushed(),
            refused: self.slow.refused(),
            taken: self.taken(),
            settled: lanes.settled(),
            held: lanes.held() as u64,
            calls: lanes.calls(),
            backs_off: lanes.back_off(),
        }
    }
}
