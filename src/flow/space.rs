//! How producers wait for space in a full partition, and hear of it.

use crate::sync::{Condvar, Duration, Mutex, wait_for};

/// Counts how often waiting producers were told to look again. The gate cannot be waited on: who lets it go tells nobody.
/// Nobody holds the gate here, so that no thread waits for it behind one that the system has put aside.
#[derive(Debug)]
pub(super) struct Space {
    told: Mutex<u64>,
    changed: Condvar,
}

impl Space {
    pub(super) fn new() -> Self {
        Self { told: Mutex::new(0), changed: Condvar::new() }
    }

    /// Before a look at the partition: what [`wait`](Self::wait) then waits for a change of.
    pub(super) fn told(&self) -> u64 {
        *self.told.lock()
    }

    /// After a change: whoever found the partition full before looks again.
    pub(super) fn tell(&self) {
        *self.told.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until somebody tells after `told` was read, or `limit` has passed; may return early.
    pub(super) fn wait(&self, told: u64, limit: Option<Duration>) {
        let now = self.told.lock();
        if *now == told {
            drop(wait_for(&self.changed, now, limit));
        }
    }
}
