//! How producers wait for space in a full partition, and hear of it.

use crate::sync::{Condvar, Duration, Mutex, wait_for};

/// Counts how often waiting producers were told to look again. The gate cannot be waited on: who lets it go tells nobody.
#[derive(Debug)]
pub(super) struct Space {
    told: Mutex<u64>,
    changed: Condvar,
}

impl Space {
    pub(super) fn new() -> Self {
        Self { told: Mutex::new(0), changed: Condvar::new() }
    }

    /// Under the gate, by a producer that finds the partition full: what [`wait`](Self::wait) then waits for a change of.
    pub(super) fn told(&self) -> u64 {
        *self.told.lock()
    }

    /// Under the gate, after it has changed: whoever found the partition full before looks again.
    pub(super) fn tell(&self) {
        *self.told.lock() += 1;
        self.changed.notify_all();
    }

    /// Without the gate: waits until somebody tells after `told` was read, or `limit` has passed; may return early.
    pub(super) fn wait(&self, told: u64, limit: Option<Duration>) {
        let now = self.told.lock();
        if *now == told {
            drop(wait_for(&self.changed, now, limit));
        }
    }
}
