//! How far a queue is on its way to its end: running → closing → ended, or expired.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `closing` | closer, once, after every gate is closed | drain threads |
//! | `unfinished` | closer (set), drain threads (count down) | drain threads |
//! | `expired` | an expiring shutdown, once, under the control lock | drain threads |
//! | `deadlines` | see `deadlines.rs` | drain threads |
//! | `to_close` | drain threads at their end | the same |
//! | `running` | the last act of each drain thread | shutdowns |

use crate::control::deadlines::Deadlines;
use crate::control::scheduler::RunningThreads;
use crate::flow::handler::HandlerRef;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering};

pub(crate) struct Ending<T> {
    closing: AtomicBool,
    unfinished: AtomicUsize,
    expired: AtomicBool,
    pub(crate) deadlines: Deadlines,
    /// The instances whose `on_close` is due; filled when the first drain thread ends.
    to_close: Mutex<Option<Vec<HandlerRef<T>>>>,
    running: Arc<RunningThreads>,
}

impl<T> Ending<T> {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            closing: AtomicBool::new(false),
            unfinished: AtomicUsize::new(0),
            expired: AtomicBool::new(false),
            deadlines: Deadlines::default(),
            to_close: Mutex::new(None),
            running: Arc::new(RunningThreads::new(threads)),
        }
    }

    // ---- close ----------------------------------------------------------------------------------

    /// Under the control lock, before the gates close and before
    /// [`publish_closing`](Self::publish_closing).
    pub(crate) fn set_unfinished(&self, partitions: usize) {
        // Relaxed: published by the Release store of `closing`.
        self.unfinished.store(partitions, Ordering::Relaxed);
    }

    /// After every gate was closed.
    pub(crate) fn publish_closing(&self) {
        // Release: pairs with the Acquire loads of `closing`; a drain thread that sees it finds
        // every gate closed.
        self.closing.store(true, Ordering::Release);
        self.deadlines.publish_news();
    }

    /// Whether every gate is closed.
    pub(crate) fn is_closing(&self) -> bool {
        // Acquire: pairs with the Release in `publish_closing`, after which every gate is closed.
        self.closing.load(Ordering::Acquire)
    }

    /// The same for a caller that has fenced.
    pub(crate) fn is_closing_after_fence(&self) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.closing.load(Ordering::Relaxed)
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Counts a partition out that is closed and empty. Returns whether it was the last.
    pub(crate) fn finish_partition(&self) -> bool {
        // AcqRel: the thread that counts the last partition down has seen what the others did
        // before theirs.
        self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether the drain threads have nothing left to do: all is finished, or the time ran out.
    pub(crate) fn is_over(&self) -> bool {
        if self.is_expired() {
            return true;
        }
        // Acquire: pairs with the AcqRel in `finish_partition`; all handlers' writes are visible
        // before `on_close`.
        self.closing.load(Ordering::Acquire) && self.unfinished.load(Ordering::Acquire) == 0
    }

    /// A handler instance that has not had its `on_close`, one of `instances`; first those that no
    /// thread is inside.
    pub(crate) fn next_to_close(
        &self,
        instances: impl FnOnce() -> Vec<HandlerRef<T>>,
    ) -> Option<HandlerRef<T>> {
        let mut to_close = self.to_close.lock();
        let left = to_close.get_or_insert_with(instances);
        let free = left.iter().position(|handler| !handler.desk.is_held());
        if left.is_empty() { None } else { Some(left.swap_remove(free.unwrap_or(0))) }
    }

    /// The drain threads that have not ended.
    pub(crate) fn running(&self) -> &Arc<RunningThreads> {
        &self.running
    }

    // ---- expiry ---------------------------------------------------------------------------------

    /// Whether a shutdown ran out of time.
    pub(crate) fn is_expired(&self) -> bool {
        // Acquire: pairs with the Release in `expire`.
        self.expired.load(Ordering::Acquire)
    }

    /// The same, under the control lock.
    pub(crate) fn is_expired_under_lock(&self) -> bool {
        // Relaxed: only written under the control lock.
        self.expired.load(Ordering::Relaxed)
    }

    /// Under the control lock, after the abandoned items were counted.
    pub(crate) fn expire(&self) {
        // Release: pairs with the Acquire in `is_expired`.
        self.expired.store(true, Ordering::Release);
    }
}
