//! The only door to locks, atomics, channels, threads and the clock.
//!
//! In a normal build it opens on `parking_lot`, `std`, `crossbeam` and `arc-swap`; under `--cfg loom` on the twins in
//! [`model`], so that the protocols run unchanged in loom's scheduler. The twins have no time: a wait with a time-out
//! waits for ever, so a lost wake-up is a deadlock that loom reports and never a delay that hides it.

#[cfg(not(loom))]
pub(crate) use real::*;

#[cfg(loom)]
pub(crate) use model::*;

pub(crate) use std::thread::panicking;
pub(crate) use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

/// A value for a static, made on first use, that a forked child can forget without a lock: whatever the parent was
/// doing with it at that moment, the child gets a new one.
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
            // Whoever stores first wins; the others find the winner's value in the next round.
            self.0.compare_and_swap(&None::<Arc<V>>, Some(Arc::default()));
        }
    }

    /// Leaks the current value, and returns it for a last mark.
    #[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
    pub(crate) fn forget(&self) -> Option<Arc<V>> {
        let old = self.0.swap(None);
        std::mem::forget(old.clone());
        old
    }
}

#[cfg(not(loom))]
mod real {
    pub(crate) use arc_swap::{ArcSwap, ArcSwapOption};
    pub(crate) use crossbeam_utils::sync::{Parker, Unparker};
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use std::sync::{Arc, OnceLock, Weak};
    pub(crate) use std::thread::JoinHandle;
    pub(crate) use std::thread_local;

    use super::{Duration, Instant};

    /// Starts a named thread. The name is cut by the system at 15 bytes where it shows one.
    pub(crate) fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name).spawn(body)
    }

    /// A value that many threads read and one, under the control lock, replaces.
    #[derive(Debug)]
    pub(crate) struct Published<V>(ArcSwap<V>);

    impl<V> Published<V> {
        pub(crate) fn new(value: V) -> Self {
            Self(ArcSwap::from_pointee(value))
        }

        pub(crate) fn load(&self) -> Arc<V> {
            self.0.load_full()
        }

        pub(crate) fn publish(&self, value: V) {
            self.0.store(Arc::new(value));
        }
    }

    /// The same for a value that may be there or not.
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

    /// A list that one thread at a time, under the control lock, adds to, and everybody reads: no lock, no
    /// read-modify-write, and what is in it never moves.
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

    /// A point in time at which something is due.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Deadline(Instant);

    impl Deadline {
        /// `limit` from now, or a year from now if that is sooner.
        pub(crate) fn after(limit: Duration) -> Self {
            Self(Instant::now() + limit.min(Duration::from_secs(365 * 24 * 3600)))
        }

        /// `None`: it is due.
        pub(crate) fn time_left(self) -> Option<Duration> {
            self.0.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
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

        /// Hands the segment back when the channel is full.
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

    /// Waits on `condvar` for at most `limit`; `None` is no limit. May return early.
    pub(crate) fn wait_for<'a, V>(
        condvar: &Condvar,
        mut guard: MutexGuard<'a, V>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, V> {
        match limit {
            Some(limit) => {
                condvar.wait_for(&mut guard, limit);
            }
            None => condvar.wait(&mut guard),
        }
        guard
    }
}

#[cfg(loom)]
mod model {
    use std::collections::VecDeque;
    use std::sync::PoisonError;

    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::thread::JoinHandle;
    pub(crate) use loom::thread_local;
    pub(crate) use std::sync::{Arc, OnceLock, Weak};

    use super::Duration;

    pub(crate) fn spawn(_name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        Ok(loom::thread::spawn(body))
    }

    /// `parking_lot`'s interface over loom's lock.
    #[derive(Debug)]
    pub(crate) struct Mutex<V>(loom::sync::Mutex<V>);

    impl<V: Default> Default for Mutex<V> {
        fn default() -> Self {
            Self::new(V::default())
        }
    }

    impl<V> Mutex<V> {
        pub(crate) fn new(value: V) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, V> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, V>> {
            self.0.try_lock().ok()
        }
    }

    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Default for Condvar {
        fn default() -> Self {
            Self::new()
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }
    }

    /// Waits without a limit: the model has no time.
    pub(crate) fn wait_for<'a, V>(
        condvar: &Condvar,
        guard: MutexGuard<'a, V>,
        _limit: Option<Duration>,
    ) -> MutexGuard<'a, V> {
        condvar.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// A deadline that is never due: the model has no time. The limit only gives deadlines an order, the same in every
    /// run, which the clock would not.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Deadline(Duration);

    impl Deadline {
        pub(crate) fn after(limit: Duration) -> Self {
            Self(limit)
        }

        pub(crate) fn time_left(self) -> Option<Duration> {
            Some(self.0)
        }
    }

    /// The published value as loom sees it: an index into versions that are never freed. Only the index is shared
    /// memory, so a reader may see an old version, as with the real one.
    #[derive(Debug)]
    pub(crate) struct Published<V> {
        versions: std::sync::Mutex<Vec<std::sync::Arc<V>>>,
        current: AtomicUsize,
    }

    impl<V> Published<V> {
        pub(crate) fn new(value: V) -> Self {
            Self { versions: std::sync::Mutex::new(vec![std::sync::Arc::new(value)]), current: AtomicUsize::new(0) }
        }

        pub(crate) fn load(&self) -> std::sync::Arc<V> {
            let current = self.current.load(Ordering::Acquire);
            self.versions.lock().unwrap_or_else(PoisonError::into_inner)[current].clone()
        }

        pub(crate) fn publish(&self, value: V) {
            let newest = {
                // Not across a step of the model: loom would run another thread into this lock.
                let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
                versions.push(std::sync::Arc::new(value));
                versions.len() - 1
            };
            self.current.store(newest, Ordering::Release);
        }
    }

    #[derive(Debug)]
    pub(crate) struct PublishedOption<V>(Published<Option<Arc<V>>>);

    impl<V> PublishedOption<V> {
        pub(crate) fn new(value: Arc<V>) -> Self {
            Self(Published::new(Some(value)))
        }

        pub(crate) fn load(&self) -> Option<Arc<V>> {
            (*self.0.load()).clone()
        }

        pub(crate) fn publish(&self, value: Option<Arc<V>>) {
            self.0.publish(value);
        }
    }

    /// The list as loom does not see it: a few places that are filled once. What is in them is shared memory of the model.
    #[derive(Debug)]
    pub(crate) struct AppendOnly<V> {
        places: Box<[std::sync::OnceLock<V>]>,
        filled: std::sync::atomic::AtomicUsize,
    }

    impl<V> AppendOnly<V> {
        /// As many as a model has of anything.
        const PLACES: usize = 8;

        pub(crate) fn new() -> Self {
            let places = (0..Self::PLACES).map(|_| std::sync::OnceLock::new()).collect();
            Self { places, filled: std::sync::atomic::AtomicUsize::new(0) }
        }

        pub(crate) fn get(&self, index: usize) -> Option<&V> {
            self.places.get(index)?.get()
        }

        pub(crate) fn len(&self) -> usize {
            self.filled.load(Ordering::SeqCst)
        }

        pub(crate) fn push(&self, value: V) {
            let index = self.filled.load(Ordering::SeqCst);
            assert!(self.places[index].set(value).is_ok(), "one thread at a time adds");
            self.filled.store(index + 1, Ordering::SeqCst);
        }
    }

    /// A bounded channel as a locked deque: stronger ordering than crossbeam's, same capacity.
    #[derive(Debug)]
    pub(crate) struct SegmentChannel<S> {
        capacity: usize,
        segments: Mutex<VecDeque<S>>,
    }

    impl<S> SegmentChannel<S> {
        pub(crate) fn bounded(capacity: usize) -> Self {
            Self { capacity, segments: Mutex::new(VecDeque::new()) }
        }

        pub(crate) fn try_send(&self, segment: S) -> Result<(), S> {
            let mut segments = self.segments.lock();
            if segments.len() == self.capacity {
                return Err(segment);
            }
            segments.push_back(segment);
            Ok(())
        }

        pub(crate) fn try_recv(&self) -> Option<S> {
            self.segments.lock().pop_front()
        }
    }

    /// crossbeam's `Parker` with an endless `park_timeout`.
    #[derive(Debug)]
    pub(crate) struct Parker(std::sync::Arc<(Mutex<bool>, Condvar)>);

    #[derive(Debug)]
    pub(crate) struct Unparker(std::sync::Arc<(Mutex<bool>, Condvar)>);

    pub(crate) fn parker() -> (Parker, Unparker) {
        let shared = std::sync::Arc::new((Mutex::new(false), Condvar::new()));
        (Parker(shared.clone()), Unparker(shared))
    }

    impl Parker {
        pub(crate) fn park_timeout(&self, _limit: Duration) {
            let (token, told) = &*self.0;
            let mut set = token.lock();
            while !*set {
                set = wait_for(told, set, None);
            }
            *set = false;
        }
    }

    impl Unparker {
        pub(crate) fn unpark(&self) {
            let (token, told) = &*self.0;
            *token.lock() = true;
            told.notify_all();
        }
    }
}
