//! The locks and condition variables of `std` or of loom, without poisoning. Code that catches a
//! panic deals with the state behind the locks.
//!
//! `parking_lot` is not used here because it keeps all waiting threads of a process in one table. A
//! forked child inherits the table with threads that do not exist there, on stacks that its own
//! threads reuse, and crashes at the next wait
//! (<https://github.com/Amanieu/parking_lot/issues/515>). The bindings use it for locks that are
//! taken while attached to the interpreter: no thread can be waiting for those during a fork.
//!
//! These locks are not fair.

#[cfg(not(loom))]
use std::sync as locks;
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::TryLockError;
#[cfg(not(loom))]
use std::thread::yield_now;

pub(crate) use locks::MutexGuard;
#[cfg(loom)]
use loom::sync as locks;

use crate::sync::Duration;

/// The attempts at a contended lock before the thread sleeps.
#[cfg(not(loom))]
const YIELDS: usize = 8;

#[derive(Debug)]
pub(crate) struct Mutex<V>(locks::Mutex<V>);

// Not derived: loom's mutex has no default.
impl<V: Default> Default for Mutex<V> {
    fn default() -> Self {
        Self::new(V::default())
    }
}

impl<V> Mutex<V> {
    pub(crate) fn new(value: V) -> Self {
        Self(locks::Mutex::new(value))
    }

    #[inline]
    #[cfg(not(loom))]
    pub(crate) fn lock(&self) -> MutexGuard<'_, V> {
        match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => self.lock_contended(),
        }
    }

    #[cfg(not(loom))]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, V>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Yields a few times before it sleeps, as `parking_lot` does: this crate's locks are held over
    /// a few statements, so the holder of a contended one was probably preempted. The mutex of
    /// `std` spins for longer than the lock is held, and then puts the thread to sleep.
    #[cold]
    #[cfg(not(loom))]
    fn lock_contended(&self) -> MutexGuard<'_, V> {
        for _ in 0..YIELDS {
            yield_now();
            match self.0.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(guard)) => return guard.into_inner(),
                Err(TryLockError::WouldBlock) => (),
            }
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(loom)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, V> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(loom)]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, V>> {
        self.0.try_lock().ok()
    }
}

#[derive(Debug)]
pub(crate) struct Condvar(locks::Condvar);

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(locks::Condvar::new())
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }
}

/// Waits on `condvar` for at most `limit`, or without a limit if it is `None`. May return early.
#[cfg(not(loom))]
pub(crate) fn wait_for<'a, V>(
    condvar: &Condvar,
    guard: MutexGuard<'a, V>,
    limit: Option<Duration>,
) -> MutexGuard<'a, V> {
    match limit {
        Some(limit) => {
            condvar.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
        }
        None => condvar.0.wait(guard).unwrap_or_else(PoisonError::into_inner),
    }
}

/// Waits without a limit: the model has no time.
#[cfg(loom)]
pub(crate) fn wait_for<'a, V>(
    condvar: &Condvar,
    guard: MutexGuard<'a, V>,
    _limit: Option<Duration>,
) -> MutexGuard<'a, V> {
    condvar.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
