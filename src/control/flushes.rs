//! Flushes: threads that wait until what was accepted has been handled.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `waiting` | flushes | drain threads |
//! | `progress` | flushes (wait), drain threads and expiry (notify) | flushes |

use crate::control::log_helper::patience;
use crate::error::FlushError;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::pause::{Pause, slice};
use crate::item::Item;
use crate::shared::Shared;
use crate::sync::{
    Arc, AtomicUsize, Condvar, Duration, Instant, Mutex, OnceLock, Ordering, wait_for,
};
use crate::thread_context::on_drain_thread;

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
        if self.are_waiting() {
            let (lock, progress) = &self.progress;
            let _guard = lock.lock();
            progress.notify_all();
        }
    }
}

impl<T: Item> Shared<T> {
    /// Whether all that was accepted has been handled. What lingers does so no longer, if a flush
    /// waits.
    #[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
    pub(crate) fn is_all_handled(&self) -> bool {
        // Each partition is asked, so that none lingers.
        let open = self.route.partitions().filter(|it| it.begin_flush() > it.completed()).count();
        let is_settled = |it: Arc<DeadLetterBox<T>>| it.settled() >= it.posted();
        open == 0 && self.dead_letters.with_letters().into_iter().all(is_settled)
    }

    /// See `BatchQueue::flush`.
    pub(crate) fn flush<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<bool, FlushError<P::Interrupt>> {
        if on_drain_thread() {
            return Err(FlushError::FromDrainThread);
        }
        let _flushing = self.flushes.begin();
        // Read under each gate: an item whose produce returned before this call is counted.
        let goals: Vec<_> =
            self.route.partitions().map(|partition| (partition, partition.begin_flush())).collect();
        let settled = || goals.iter().all(|(partition, goal)| partition.completed() >= *goal);
        // Then the letters of these items are in boxes, which are served in order.
        let letters = OnceLock::new();
        let reached = || {
            let goal = |letter_box: Arc<DeadLetterBox<T>>| (letter_box.posted(), letter_box);
            let goals =
                || -> Vec<_> { self.dead_letters.with_letters().into_iter().map(goal).collect() };
            settled() && letters.get_or_init(goals).iter().all(|(goal, it)| it.settled() >= *goal)
        };
        let expired = || self.ending.is_expired();
        self.threads.wake_all();
        loop {
            if reached() || expired() {
                // After an expiry the positions advance over what was abandoned, so the count
                // decides.
                let is_settled = self.control.lock().abandoned == 0;
                self.log_helper
                    .wait_written(patience(deadline), pause)
                    .map_err(FlushError::Interrupted)?;
                return Ok(is_settled);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            let wait = pause.pause(&mut |limit| {
                self.flushes.wait(|| reached() || expired(), slice(limit, deadline));
            });
            if let Err(cause) = wait {
                return Err(FlushError::Interrupted(cause));
            }
        }
    }
}
