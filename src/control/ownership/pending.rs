//! Handoffs under way, and when each must be taken back.

use rustc_hash::FxHashMap;

use crate::sync::{Duration, Instant};

/// A partition that its old owner does not hand over within this time stays with that owner.
const TAKE_BACK_AFTER: Duration = Duration::from_secs(1);

/// Handoffs under way, guarded by the control lock.
#[derive(Debug, Default)]
pub(crate) struct PendingHandoffs {
    /// For each partition, when its handoff began.
    under_way: FxHashMap<usize, Instant>,
}

impl PendingHandoffs {
    /// When the oldest handoff must be taken back.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.under_way.values().map(|since| *since + TAKE_BACK_AFTER).min()
    }

    /// Records that a partition was revoked from a thread that is inside.
    pub(super) fn begin(&mut self, partition: usize, now: Instant) {
        self.under_way.insert(partition, now);
    }

    /// Keeps the handoffs for which `is_under_way` returns true. Its arguments are the partition
    /// and whether the handoff is overdue.
    pub(super) fn retain(
        &mut self,
        now: Instant,
        mut is_under_way: impl FnMut(usize, bool) -> bool,
    ) {
        self.under_way
            .retain(|&partition, since| is_under_way(partition, now >= *since + TAKE_BACK_AFTER));
    }
}
