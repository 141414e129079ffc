//! How producers wait for space in a full partition, and hear of it.

use crate::faults::{self, Fault};
use crate::sync::{AtomicUsize, Condvar, Duration, Mutex, Ordering, fence, wait_for};

/// Counts how often waiting producers were told to look again. The gate cannot be waited on: who lets it go tells nobody.
/// Nor is it held here, so that no thread waits for it behind one that the system has put aside.
#[derive(Debug)]
pub(super) struct Space {
    told: Mutex<u64>,
    changed: Condvar,
    /// Producers between their first look and the end of their wait.
    waiting: AtomicUsize,
}

impl Space {
    pub(super) fn new() -> Self {
        Self { told: Mutex::new(0), changed: Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    /// Waits, if the partition `is_full`, until somebody tells or `limit` has passed; may return early.
    pub(super) fn wait(&self, limit: Option<Duration>, is_full: impl FnOnce() -> bool) {
        // Before the look: who changes something after the look tells after this.
        let before = *self.told.lock();
        // Relaxed: ordered by the fence.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `tell_waiting`. Either this thread sees the new `taken`, or that one sees it
        // waiting and tells it.
        fence(Ordering::SeqCst);
        if is_full() {
            let told = self.told.lock();
            if *told == before {
                drop(wait_for(&self.changed, told, limit));
            }
        }
        // Relaxed: who still counts this thread tells once for nothing.
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// After a change: whoever found the partition full before looks again.
    pub(super) fn tell(&self) {
        *self.told.lock() += 1;
        self.changed.notify_all();
    }

    /// After a sealed segment was taken: tells, if somebody waits. Not needed after the open one, unless there are heavy items:
    /// it has at most a quarter of the bound, so that whoever finds no room for half of it has a sealed segment before it.
    pub(super) fn tell_waiting(&self) {
        // SeqCst: pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.waiting.load(Ordering::Relaxed) > 0 && !faults::off(Fault::TellWaiting) {
            self.tell();
        }
    }
}
