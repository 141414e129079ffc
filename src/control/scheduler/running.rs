//! How many threads of a queue or of a pool have not ended.

use crate::sync::{Arc, Condvar, Duration, Mutex, wait_for};

/// The drain threads or workers that have not ended. It outlives the rest, so that the last act of
/// a thread is to count itself out, after everything it held is gone.
#[derive(Debug)]
pub(crate) struct RunningThreads {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug)]
struct Counts {
    running: usize,
    /// Those of them that have not begun their end.
    unended: usize,
}

impl Default for RunningThreads {
    fn default() -> Self {
        Self::new(0)
    }
}

impl RunningThreads {
    pub(crate) fn new(count: usize) -> Self {
        let counts = Counts { running: count, unended: count };
        Self { counts: Mutex::new(counts), changed: Condvar::new() }
    }

    /// Counts a thread in, before it starts.
    pub(crate) fn count_in(&self) {
        let mut counts = self.counts.lock();
        counts.running += 1;
        counts.unended += 1;
    }

    /// Counts a thread in, unless all have ended.
    pub(crate) fn count_in_if_any(&self) -> bool {
        let mut counts = self.counts.lock();
        let is_any = counts.running > 0;
        counts.running += usize::from(is_any);
        counts.unended += usize::from(is_any);
        is_any
    }

    /// The last step of a drain thread before it lets go of its queue, or of one that did not
    /// start. Returns whether all others had it before.
    pub(crate) fn begin_end(&self) -> bool {
        let mut counts = self.counts.lock();
        counts.unended -= 1;
        counts.unended == 0
    }

    pub(crate) fn count_out(&self) {
        self.counts.lock().running -= 1;
        self.changed.notify_all();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.counts.lock().running == 0
    }

    /// Waits until a thread ends, [`notify`](Self::notify) is called because it `is_over`, or
    /// `limit` has passed; may return early.
    pub(crate) fn wait(&self, limit: Option<Duration>, is_over: impl Fn() -> bool) {
        let counts = self.counts.lock();
        if counts.running > 0 && !is_over() {
            drop(wait_for(&self.changed, counts, limit));
        }
    }

    /// Ends all waits. Called after what `is_over` in [`wait`](Self::wait) checks has changed.
    pub(crate) fn notify(&self) {
        // Under the lock: a thread that has checked before is waiting by now.
        drop(self.counts.lock());
        self.changed.notify_all();
    }
}

/// Counts a thread out when it is dropped, whatever ended the thread.
pub(crate) struct CountOut(pub(crate) Arc<RunningThreads>);

impl Drop for CountOut {
    fn drop(&mut self) {
        self.0.count_out();
    }
}
