//! The only door to locks, atomics, channels, threads and the clock.
//!
//! A normal build uses `std`, `crossbeam`, `arc-swap`, `boxcar` and `spin`. A build for loom uses
//! the twins in `sync::model`, so that the protocols run unchanged in loom's scheduler. The twins
//! have no clock: a wait with a timeout ends only when it is notified or when a test ends it. So a
//! lost wake-up is a deadlock that loom reports, and not a delay that hides it.

pub(crate) mod locks;
#[cfg(loom)]
pub(crate) mod model;
#[cfg(not(loom))]
pub(crate) mod quick;

pub(crate) use std::thread::panicking;
pub(crate) use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
#[cfg(not(loom))]
pub(crate) use real::*;

pub(crate) use crate::sync::locks::{Condvar, Mutex, MutexGuard, wait_for};
#[cfg(loom)]
pub(crate) use crate::sync::locks::{Mutex as QuickMutex, MutexGuard as QuickGuard};
#[cfg(loom)]
pub(crate) use crate::sync::model::*;
#[cfg(not(loom))]
pub(crate) use crate::sync::quick::{QuickGuard, QuickMutex};

/// A value for a static, created on first use, that a forked child can replace without a lock,
/// whatever the parent's threads were doing with it at the fork.
#[derive(Debug)]
pub(crate) struct Forgettable<V>(ArcSwapOption<V>);

impl<V: Default> Forgettable<V> {
    pub(crate) const fn new() -> Self {
        Self(ArcSwapOption::const_empty())
    }

    pub(crate) fn get(&self) -> Arc<V> {
        loop {
            if let Some(value) = self.0.load_full() {
                return value;
            }
            // The first thread to store wins; the others find its value in the next iteration.
            self.0.compare_and_swap(&None::<Arc<V>>, Some(Arc::default()));
        }
    }

    /// Leaks the current value, and returns it so that the caller can mark it.
    #[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
    pub(crate) fn forget(&self) -> Option<Arc<V>> {
        let old = self.0.swap(None);
        std::mem::forget(old.clone());
        old
    }
}

#[cfg(not(loom))]
mod real {
    pub(crate) use arc_swap::ArcSwapOption;
    pub(crate) use crossbeam_utils::sync::{Parker, Unparker};
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use std::sync::{Arc, OnceLock, OnceLock as SetOnce, Weak};
    pub(crate) use std::thread::JoinHandle;
    pub(crate) use std::thread_local;

    use super::{Duration, Instant};

    /// The stack size of new threads, in bytes; 0: Rust's default.
    ///
    /// Relaxed: it is only a number.
    static STACK_SIZE: AtomicUsize = AtomicUsize::new(0);

    /// Sets the stack size of new threads, in bytes.
    #[cfg(feature = "python")]
    pub(crate) fn set_stack_size(bytes: usize) {
        STACK_SIZE.store(bytes, Ordering::Relaxed);
    }

    /// Starts a named thread. The system shows the first 15 bytes of the name.
    pub(crate) fn spawn(
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let builder = std::thread::Builder::new().name(name);
        match STACK_SIZE.load(Ordering::Relaxed) {
            0 => builder,
            bytes => builder.stack_size(bytes),
        }
        .spawn(body)
    }

    /// An optional value that many threads read and one thread at a time replaces, under the
    /// control lock.
    #[derive(Debug)]
    pub(crate) struct PublishedOption<V>(ArcSwapOption<V>);

    impl<V> PublishedOption<V> {
        pub(crate) fn new(value: Arc<V>) -> Self {
            Self(ArcSwapOption::new(Some(value)))
        }

        pub(crate) fn load(&self) -> Option<Arc<V>> {
            self.0.load_full()
        }

        pub(crate) fn publish(&self, value: Option<Arc<V>>) {
            self.0.store(value);
        }
    }

    /// A list that one thread at a time appends to, under the control lock, and all threads read
    /// without a lock or a read-modify-write. Its elements never move.
    #[derive(Debug)]
    pub(crate) struct AppendOnly<V>(boxcar::Vec<V>);

    impl<V> AppendOnly<V> {
        pub(crate) fn new() -> Self {
            Self(boxcar::Vec::new())
        }

        pub(crate) fn get(&self, index: usize) -> Option<&V> {
            self.0.get(index)
        }

        pub(crate) fn len(&self) -> usize {
            self.0.count()
        }

        pub(crate) fn push(&self, value: V) {
            self.0.push(value);
        }
    }

    /// Returns the current time for deadlines, cycles and lingering batches. A test may move it.
    #[cfg(not(test))]
    #[inline]
    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    #[cfg(test)]
    pub(crate) use crate::testing::clock::now;

    pub(crate) fn time_since(start: Instant) -> Duration {
        now().saturating_duration_since(start)
    }

    /// A point in time at which something is due.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Deadline(Instant);

    impl Deadline {
        /// Returns the deadline `limit` from now, at most a year from now.
        pub(crate) fn after(limit: Duration) -> Self {
            Self(now() + limit.min(Duration::from_secs(365 * 24 * 3600)))
        }

        /// Returns the deadline `limit` after `start`. The limit must be bounded, like those of a
        /// config.
        pub(crate) fn since(start: Instant, limit: Duration) -> Self {
            Self(start + limit)
        }

        /// Returns the time left, or `None` if the deadline is due.
        pub(crate) fn time_left(self) -> Option<Duration> {
            self.0.checked_duration_since(now()).filter(|left| !left.is_zero())
        }
    }

    /// The sealed segments of one partition.
    #[derive(Debug)]
    pub(crate) struct SegmentChannel<S> {
        sender: crossbeam_channel::Sender<S>,
        receiver: crossbeam_channel::Receiver<S>,
    }

    impl<S> SegmentChannel<S> {
        pub(crate) fn bounded(capacity: usize) -> Self {
            let (sender, receiver) = crossbeam_channel::bounded(capacity);
            Self { sender, receiver }
        }

        /// Returns the segment if the channel is full.
        pub(crate) fn try_send(&self, segment: S) -> Result<(), S> {
            self.sender.try_send(segment).map_err(crossbeam_channel::TrySendError::into_inner)
        }

        pub(crate) fn try_recv(&self) -> Option<S> {
            self.receiver.try_recv().ok()
        }
    }

    pub(crate) fn parker() -> (Parker, Unparker) {
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        (parker, unparker)
    }
}
