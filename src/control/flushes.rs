//! Flushes: threads that wait until what was accepted has been handled.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `waiting` | flushes | drain threads |
//! | `progress` | flushes (wait), drain threads and expiry (notify) | flushes |

use crate::rules::{Rule, rule_off};
use crate::sync::{AtomicUsize, Condvar, Duration, Mutex, Ordering, wait_for};

/// The flushes of one queue.
#[derive(Debug)]
pub(crate) struct Flushes {
    waiting: AtomicUsize,
    progress: (Mutex<()>, Condvar),
}

/// While it lives, no drain thread rests.
#[must_use = "the flush counts until this is dropped"]
pub(crate) struct Flushing<'a>(&'a Flushes);

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Self { waiting: AtomicUsize::new(0), progress: (Mutex::new(()), Condvar::new()) }
    }

    /// The caller wakes all drain threads afterwards.
    pub(crate) fn begin(&self) -> Flushing<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Flushing(self)
    }

    /// Whether a flush is waiting.
    #[inline]
    pub(crate) fn are_waiting(&self) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits until a drain thread leaves a partition, unless `done` already.
    pub(crate) fn wait(&self, done: impl Fn() -> bool, limit: Option<Duration>) {
        let (lock, progress) = &self.progress;
        let guard = lock.lock();
        if !done() {
            drop(wait_for(progress, guard, limit));
        }
    }

    /// When a drain thread leaves a partition, after its fence.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.are_waiting() && !rule_off(Rule::NotifyFlush) {
            let (lock, progress) = &self.progress;
            let _guard = lock.lock();
            progress.notify_all();
        }
    }
}
