//! Space: how producers wait for room in a full partition, and are notified of it.

use std::fmt;

use crate::sync::{Arc, AtomicUsize, Condvar, Duration, Mutex, Ordering, fence, wait_for};

/// A callback for room in full partitions, for callers that must not wait, such as an event loop.
pub trait Listener: Send + Sync {
    /// Called when the partition has room again, or accepts nothing more: a caller that found it
    /// full must check again. May be called spuriously.
    ///
    /// Called by drain threads, by the thread that closes the queue, and by threads that find the
    /// partition full, under a lock of the partition: it must neither wait nor call the queue.
    fn hear(&self, partition: usize);
}

/// The notification count for waiting threads, and the listeners.
#[derive(Default)]
struct Waiters {
    /// The number of notifications so far.
    notifications: u64,
    /// The listeners, each with the partition that it is notified of.
    listeners: Vec<(Arc<dyn Listener>, usize)>,
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters")
            .field("notifications", &self.notifications)
            .field("listeners", &self.listeners.len())
            .finish()
    }
}

/// Notifies producers that wait for room. They cannot wait on the gate, because its release
/// notifies no thread. The gate is not held here, either, so that no thread waits for it behind one
/// that the system has preempted.
#[derive(Debug)]
pub(crate) struct Space {
    waiters: Mutex<Waiters>,
    changed: Condvar,
    /// The number of producers between their first check and the end of their wait, plus listeners.
    waiting: AtomicUsize,
}

impl Space {
    pub(crate) fn new() -> Self {
        Self { waiters: Mutex::default(), changed: Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    /// Waits, if the partition `is_full`, for a notification or until `limit` has passed. May
    /// return early.
    pub(crate) fn wait(&self, limit: Option<Duration>, is_full: impl FnOnce() -> bool) {
        // Read before the check: a change after the check notifies after this.
        let before = self.waiters.lock().notifications;
        // Relaxed: ordered by the fence.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `notify_waiting`. Either this thread sees the new
        // `released`, or the other sees this one waiting and notifies it.
        fence(Ordering::SeqCst);
        if is_full() {
            let waiters = self.waiters.lock();
            if waiters.notifications == before {
                drop(wait_for(&self.changed, waiters, limit));
            }
        }
        // Relaxed: a thread that still counts this one notifies once spuriously.
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notifies all producers after a change: those that found the partition full check again.
    pub(crate) fn notify(&self) {
        let mut waiters = self.waiters.lock();
        waiters.notifications += 1;
        for (listener, partition) in &waiters.listeners {
            listener.hear(*partition);
        }
        drop(waiters);
        self.changed.notify_all();
    }

    /// Notifies `listener` from now on. A check after this misses nothing: either it sees the room,
    /// or the listener is notified.
    pub(crate) fn listen(&self, listener: Arc<dyn Listener>, partition: usize) {
        self.waiters.lock().listeners.push((listener, partition));
        // Relaxed: ordered by the fence.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `notify_waiting`, as that in `wait` does.
        fence(Ordering::SeqCst);
    }

    /// Stops notifying `listener`.
    pub(crate) fn stop_listening(&self, listener: &Arc<dyn Listener>) {
        let mut waiters = self.waiters.lock();
        let same = |other: &Arc<dyn Listener>| {
            std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(listener))
        };
        if let Some(index) = waiters.listeners.iter().position(|(other, _)| same(other)) {
            waiters.listeners.swap_remove(index);
            // Relaxed: a thread that still counts it notifies once spuriously.
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notifies producers, if any wait, after a sealed segment was taken or held items left. Not
    /// needed after a take of the open segment, unless there are weighted items: it holds at most a
    /// quarter of the bound, so a producer that finds no room for half of the bound has a sealed
    /// segment or held items before it.
    pub(crate) fn notify_waiting(&self) {
        // SeqCst: pairs with the fences in `wait` and `listen`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.notify();
        }
    }
}
