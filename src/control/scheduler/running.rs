//! How many threads of a queue or of a pool have not ended.

use crate::sync::{Arc, Condvar, Duration, Mutex, wait_for};

/// The drain threads or workers that have not ended. It outlives the rest, so that the last act of
/// a thread is to count itself out, after everything it held is gone.
#[derive(Debug)]
pub(crate) struct RunningThreads {
    count: Mutex<usize>,
    changed: Condvar,
}

impl RunningThreads {
    pub(crate) fn new(count: usize) -> Self {
        Self { count: Mutex::new(count), changed: Condvar::new() }
    }

    /// Counts a thread in, before it starts.
    pub(crate) fn count_in(&self) {
        *self.count.lock() += 1;
    }

    pub(crate) fn count_out(&self) {
        *self.count.lock() -= 1;
        self.changed.notify_all();
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self.count.lock() == 0
    }

    /// Waits until a thread ends or `limit` has passed; may return early.
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        let count = self.count.lock();
        if *count > 0 {
            drop(wait_for(&self.changed, count, limit));
        }
    }
}

/// Counts a thread out when it is dropped, whatever ended the thread.
pub(super) struct CountOut(pub(super) Arc<RunningThreads>);

impl Drop for CountOut {
    fn drop(&mut self) {
        self.0.count_out();
    }
}
