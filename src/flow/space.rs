//! How producers wait for space in a full partition, and hear of it.

use std::fmt;

use crate::rules::{Rule, rule_off};
use crate::sync::{Arc, AtomicUsize, Condvar, Duration, Mutex, Ordering, fence, wait_for};

/// Hears of space in full partitions in place of a thread that waits, for callers that must not
/// wait, like an event loop.
pub trait Listener: Send + Sync {
    /// The partition has room again, or takes nothing more: whoever found it full looks again. May
    /// come for nothing.
    ///
    /// Called by drain threads and by whoever closes the queue, under a lock of the partition: it
    /// must neither wait nor call the queue.
    fn hear(&self, partition: usize);
}

/// Those who are told.
#[derive(Default)]
struct Waiters {
    /// How often.
    times: u64,
    /// Beside the threads that wait, each with the partition that it is told of.
    listeners: Vec<(Arc<dyn Listener>, usize)>,
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters")
            .field("times", &self.times)
            .field("listeners", &self.listeners.len())
            .finish()
    }
}

/// Counts how often waiting producers were told to look again. The gate cannot be waited on: who
/// lets it go tells nobody. Nor is it held here, so that no thread waits for it behind one that the
/// system has put aside.
#[derive(Debug)]
pub(super) struct Space {
    told: Mutex<Waiters>,
    changed: Condvar,
    /// Producers between their first look and the end of their wait, and listeners.
    waiting: AtomicUsize,
}

impl Space {
    pub(super) fn new() -> Self {
        Self { told: Mutex::default(), changed: Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    /// Waits, if the partition `is_full`, until somebody tells or `limit` has passed; may return
    /// early.
    pub(super) fn wait(&self, limit: Option<Duration>, is_full: impl FnOnce() -> bool) {
        // Before the look: who changes something after the look tells after this.
        let before = self.told.lock().times;
        // Relaxed: ordered by the fence.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `notify_waiting`. Either this thread sees the new `taken`,
        // or that one sees it waiting and tells it.
        fence(Ordering::SeqCst);
        if is_full() {
            let told = self.told.lock();
            if told.times == before {
                drop(wait_for(&self.changed, told, limit));
            }
        }
        // Relaxed: who still counts this thread tells once for nothing.
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// After a change: whoever found the partition full before looks again.
    pub(super) fn tell(&self) {
        let mut told = self.told.lock();
        told.times += 1;
        for (listener, partition) in &told.listeners {
            listener.hear(*partition);
        }
        drop(told);
        self.changed.notify_all();
    }

    /// Tells `listener` from now on. A look after this misses nothing: either it sees the space, or
    /// the listener hears of it.
    pub(super) fn listen(&self, listener: Arc<dyn Listener>, partition: usize) {
        self.told.lock().listeners.push((listener, partition));
        // Relaxed: ordered by the fence.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `notify_waiting`, as that in `wait` does.
        if !rule_off(Rule::ListenFence) {
            fence(Ordering::SeqCst);
        }
    }

    /// Tells `listener` no more.
    pub(super) fn stop_listening(&self, listener: &Arc<dyn Listener>) {
        let mut told = self.told.lock();
        let same = |other: &Arc<dyn Listener>| {
            std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(listener))
        };
        if let Some(place) = told.listeners.iter().position(|(other, _)| same(other)) {
            told.listeners.swap_remove(place);
            // Relaxed: who still counts it tells once for nothing.
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// After a sealed segment was taken: tells, if somebody waits. Not needed after the open one,
    /// unless there are heavy items: it has at most a quarter of the bound, so that whoever finds
    /// no room for half of it has a sealed segment before it.
    pub(super) fn notify_waiting(&self) {
        // SeqCst: pairs with the fences in `wait` and `listen`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.waiting.load(Ordering::Relaxed) > 0 && !rule_off(Rule::NotifyWaiting) {
            self.tell();
        }
    }
}
