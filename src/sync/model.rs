//! The twins for loom.

use std::collections::VecDeque;
use std::sync::PoisonError;
pub(crate) use std::sync::{Arc, OnceLock, Weak};

pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use loom::thread::JoinHandle;
pub(crate) use loom::thread_local;

use crate::sync::locks::{Condvar, Mutex, wait_for};
use crate::sync::{Duration, Instant};

#[allow(clippy::unnecessary_wraps)] // as outside the model
pub(crate) fn spawn(
    _name: String,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    Ok(loom::thread::spawn(body))
}

pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns zero: the model has no time, and threads must not depend on the clock.
pub(crate) fn time_since(_start: Instant) -> Duration {
    Duration::ZERO
}

/// A deadline that is never due: the model has no time. Deadlines are ordered by their limits,
/// which, unlike the clock, are the same in every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Self(limit)
    }

    pub(crate) fn since(_start: Instant, limit: Duration) -> Self {
        Self(limit)
    }

    #[allow(clippy::unnecessary_wraps)] // as outside the model
    pub(crate) fn time_left(self) -> Option<Duration> {
        Some(self.0)
    }
}

/// A published value: an index into versions that are never freed. Only the index is shared memory
/// to loom, so a reader may see an old version, as with the real type.
#[derive(Debug)]
struct Published<V> {
    versions: std::sync::Mutex<Vec<std::sync::Arc<V>>>,
    current: AtomicUsize,
}

impl<V> Published<V> {
    fn new(value: V) -> Self {
        Self {
            versions: std::sync::Mutex::new(vec![std::sync::Arc::new(value)]),
            current: AtomicUsize::new(0),
        }
    }

    fn load(&self) -> std::sync::Arc<V> {
        let current = self.current.load(Ordering::Acquire);
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)[current].clone()
    }

    fn publish(&self, value: V) {
        let newest = {
            // Released before the next step of the model, at which loom may switch to a thread that
            // takes this lock.
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

/// A value that is set once, with the ordering of `OnceLock`, which is invisible to loom.
#[derive(Debug)]
pub(crate) struct SetOnce<V> {
    is_set: AtomicBool,
    value: OnceLock<V>,
}

impl<V> SetOnce<V> {
    pub(crate) fn new() -> Self {
        Self { is_set: AtomicBool::new(false), value: OnceLock::new() }
    }

    pub(crate) fn get(&self) -> Option<&V> {
        self.is_set.load(Ordering::Acquire).then(|| self.value.get()).flatten()
    }

    pub(crate) fn set(&self, value: V) -> Result<(), V> {
        self.value.set(value)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }
}

/// The list, invisible to loom: a few places that are filled once. Their contents are visible to
/// loom.
#[derive(Debug)]
pub(crate) struct AppendOnly<V> {
    places: Box<[std::sync::OnceLock<V>]>,
    filled: std::sync::atomic::AtomicUsize,
}

impl<V> AppendOnly<V> {
    /// No model needs more.
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

/// crossbeam's `Parker`, except that `park_timeout` never times out, unless for a [`MOMENT`].
#[derive(Debug)]
pub(crate) struct Parker(std::sync::Arc<(Mutex<bool>, Condvar)>);

#[derive(Debug)]
pub(crate) struct Unparker(std::sync::Arc<(Mutex<bool>, Condvar)>);

pub(crate) fn parker() -> (Parker, Unparker) {
    let shared = std::sync::Arc::new((Mutex::new(false), Condvar::new()));
    (Parker(shared.clone()), Unparker(shared))
}

/// The only limit at which a park times out.
pub(crate) const MOMENT: Duration = Duration::from_nanos(1);

impl Parker {
    pub(crate) fn park_timeout(&self, limit: Duration) {
        if limit == MOMENT {
            loom::thread::yield_now();
            *self.0.0.lock() = false;
            return;
        }
        let (token, changed) = &*self.0;
        let mut set = token.lock();
        while !*set {
            set = wait_for(changed, set, None);
        }
        *set = false;
    }
}

impl Unparker {
    pub(crate) fn unpark(&self) {
        let (token, changed) = &*self.0;
        *token.lock() = true;
        changed.notify_all();
    }
}
