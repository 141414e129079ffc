//! Linger: items that wait until their batch is full, or until the oldest of them has waited for
//! [`max_delay`](crate::Config::max_delay).
//!
//! Taken items wait in their lane. In a partition of one type, the rest of the batch need not be
//! taken item by item: the partition is *quiet*, so that puts set no ready bit and wake no thread,
//! up to the put that makes the batch full. So a batch takes two wake-ups, one by its first item
//! and one when it is full or due.
//!
//! ```text
//!            a turn leaves a lane that lingers, and nothing queued
//!   (loud) ────────────────────────────────────────────────────────▶ quiet up to a position
//!     ▲                                                                     │
//!     └── the next take, the put at that position, or a second type ────────┘
//! ```
//!
//! | field, under the gate | written by | read by |
//! |---|---|---|
//! | `lingers` | registration of handlers, once | producers, thread inside |
//! | `linger.quiet_until` | thread inside, registration of types | producers |
//! | `linger.batch_end` | thread inside | producers |
//! | `linger.is_wanted` | producers, thread inside | thread inside |

use crate::flow::partition::Partition;
use crate::flow::partition::gate::Gate;

/// How a put finds a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quiet {
    /// It notifies as usual.
    Not,
    /// The owner need not know of the item.
    On,
    /// The batch is full with it.
    Over,
}

/// What the gate keeps of items that may linger.
#[derive(Debug, Default)]
pub(super) struct Linger {
    /// Puts before this position notify no thread; 0: all do.
    quiet_until: u64,
    /// Where a batch ends that waits to become full; 0: nowhere.
    batch_end: u64,
    /// A producer found no room: nothing lingers in the next turn.
    is_wanted: bool,
}

impl<T> Gate<T> {
    /// After a put of so many items, where items may linger.
    #[cold]
    pub(super) fn note_put(&self, put: usize) -> Quiet {
        let (quiet_until, pushed) = (self.linger.quiet_until, self.pushed());
        let was_quiet = pushed - (put as u64) < quiet_until;
        match (was_quiet && pushed >= quiet_until, was_quiet) {
            (true, _) => Quiet::Over,
            (_, true) => Quiet::On,
            _ => Quiet::Not,
        }
    }

    /// Plans up to which put the partition is quiet.
    #[cold]
    pub(super) fn plan_quiet(&mut self) {
        let quiet_until = self.linger.quiet_until;
        if quiet_until > self.pushed() {
            let before_last = quiet_until.saturating_sub(self.before_open + 1);
            self.plan_at_most(usize::try_from(before_last).unwrap_or(usize::MAX));
        }
    }

    /// Whether the last item of the open segment is the last one of a batch that waits to become
    /// full: the next item is the oldest one of another batch, and has its own time.
    pub(super) fn ends_batch(&self) -> bool {
        !self.open.is_empty() && self.pushed() == self.linger.batch_end
    }

    /// How many items the batch lacks that waits to become full; 0 if none does.
    pub(super) fn lacks(&self) -> usize {
        let lacks = self.linger.batch_end.saturating_sub(self.pushed());
        usize::try_from(lacks).unwrap_or(usize::MAX)
    }

    /// What is put from now on notifies as usual.
    #[inline]
    pub(super) fn end_quiet(&mut self) {
        if self.lingers {
            (self.linger.quiet_until, self.linger.batch_end) = (0, 0);
        }
    }
}

impl<T> Partition<T> {
    /// Items may linger here from now on.
    pub(crate) fn let_linger(&self) {
        let mut gate = self.gate.lock();
        gate.lingers = true;
        gate.withdraw_plan();
    }

    // ---- producers, under the gate

    /// A put found no room: what lingers is called in the next turn.
    #[cold]
    pub(super) fn want_room(&self, gate: &mut Gate<T>) {
        gate.linger.is_wanted = true;
        self.ready.set();
    }

    /// A flush has begun, and waits until all that is put so far is settled.
    pub(crate) fn begin_flush(&self) -> u64 {
        let gate = self.gate.lock();
        if gate.lingers {
            // What lingers is called in a turn that sees the flush.
            self.ready.set();
        }
        gate.pushed()
    }

    // ---- the thread inside

    /// Whether a producer has found no room since the last call.
    pub(crate) fn take_wanted(&self) -> bool {
        std::mem::take(&mut self.gate.lock().linger.is_wanted)
    }

    /// The only lane lingers and lacks `lacking` items, with `counted` of the taken ones counting
    /// against the bound: puts notify when they are there, or when the partition is full. Unless
    /// items are queued already, for which there is another turn, or the partition has no longer
    /// one type.
    pub(crate) fn quieten(&self, lacking: usize, counted: usize, has_one_type: impl Fn() -> bool) {
        let mut gate = self.gate.lock();
        let pushed = gate.pushed();
        if pushed != self.taken() || !has_one_type() {
            return;
        }
        let room = self.buffer_size.saturating_sub(counted);
        gate.linger.quiet_until = pushed + lacking.min(room) as u64;
        gate.linger.batch_end = gate.linger.quiet_until;
        gate.withdraw_plan();
    }

    /// A second type is about to be routed here, after [`mix`](Self::mix): the next put notifies.
    pub(crate) fn end_quiet(&self) {
        let mut gate = self.gate.lock();
        if gate.lingers {
            let pushed = gate.pushed();
            // What was put while it was quiet is followed by no other first item.
            let next = if pushed > self.taken() { pushed + 1 } else { 0 };
            gate.linger.quiet_until = next;
            gate.withdraw_plan();
        }
    }
}
