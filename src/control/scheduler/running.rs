//! How many threads of a queue or of a pool have not ended.

use crate::rules::{Rule, rule_off};
use crate::sync::{Arc, Condvar, Duration, Mutex, wait_for};

/// The drain threads or workers that have not ended. It outlives the rest, so that the last act of
/// a thread is to count itself out, after everything it held is gone.
#[derive(Debug)]
pub(crate) struct RunningThreads {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Default for RunningThreads {
    fn default() -> Self {
        Self::new(0)
    }
}

impl RunningThreads {
    pub(crate) fn new(count: usize) -> Self {
        Self { count: Mutex::new(count), changed: Condvar::new() }
    }

    /// Counts a thread in, before it starts.
    pub(crate) fn count_in(&self) {
        *self.count.lock() += 1;
    }

    /// Counts a thread in, unless all have ended.
    pub(crate) fn count_in_if_any(&self) -> bool {
        let mut count = self.count.lock();
        let is_any = *count > 0;
        *count += usize::from(is_any);
        is_any
    }

    pub(crate) fn count_out(&self) {
        *self.count.lock() -= 1;
        self.changed.notify_all();
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self.count.lock() == 0
    }

    /// Waits until a thread ends, [`notify`](Self::notify) is called because it `is_over`, or
    /// `limit` has passed; may return early.
    pub(crate) fn wait(&self, limit: Option<Duration>, is_over: impl Fn() -> bool) {
        let count = self.count.lock();
        if *count > 0 && !is_over() {
            drop(wait_for(&self.changed, count, limit));
        }
    }

    /// Ends all waits. Called after what `is_over` in [`wait`](Self::wait) checks has changed.
    pub(crate) fn notify(&self) {
        // Under the lock: a thread that has checked before is waiting by now.
        drop(self.count.lock());
        if !rule_off(Rule::NotifyExpiry) {
            self.changed.notify_all();
        }
    }
}

/// Counts a thread out when it is dropped, whatever ended the thread.
pub(crate) struct CountOut(pub(crate) Arc<RunningThreads>);

impl Drop for CountOut {
    fn drop(&mut self) {
        self.0.count_out();
    }
}
