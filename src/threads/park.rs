//! How a drain thread, or a drain task on a shared pool, rests and sleeps without lost wake-ups.
//!
//! `state` is written by the drain thread (awake, resting, sleeping) and by the threads that wake
//! it (awake, pressed). Both sides follow the same order: *store, fence, load*. The drain thread
//! stores its state and then checks for work; a producer stores its work and then checks the state.
//! So at least one of them sees the other's store.
//!
//! Pressure on an awake thread is recorded: `PRESSED` stays until the thread prepares to sleep
//! again. So only then must it check how full its partitions are, each under its gate.

use crate::sync::{Arc, AtomicU8, Duration, OnceLock, Ordering, Parker, Unparker, fence, parker};
use crate::threads::pool::TaskHandle;

const AWAKE: u8 = 0;

const RESTING: u8 = 1;

const SLEEPING: u8 = 2;

/// Awake, and pressure was signalled since the thread last prepared to sleep.
const PRESSED: u8 = 4;

/// The effect of a put, which decides whether to wake the drain thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    /// The drain thread need not be notified.
    Nothing,
    /// The partition was empty: wake a sleeping thread, but let a resting one rest.
    FirstItem,
    /// The partition is half full, or nearly full where items linger: end a rest as well.
    Pressure,
}

/// How deep a drain thread sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SleepKind {
    /// Lets a batch form: a first item does not end it, pressure does.
    Rest,
    /// There is nothing to do: any signal ends it.
    Sleep,
}

/// The drain thread's side of its sleep.
#[derive(Debug)]
pub(crate) struct Sleeper {
    state: Arc<AtomicU8>,
    /// `None` for a task on a shared pool: it leaves its worker, and the pool keeps its timer.
    parker: Option<Parker>,
}

/// The other threads' side: wakes the drain thread.
#[derive(Debug)]
pub(crate) struct Waker {
    state: Arc<AtomicU8>,
    target: WakeTarget,
}

#[derive(Debug)]
enum WakeTarget {
    Thread(Unparker),
    /// Set before any other thread can use the queue.
    Task(OnceLock<TaskHandle>),
}

/// Creates both sides for a drain thread.
pub(crate) fn sleeper() -> (Sleeper, Waker) {
    let state = Arc::new(AtomicU8::new(AWAKE));
    let (parker, unparker) = parker();
    (
        Sleeper { state: state.clone(), parker: Some(parker) },
        Waker { state, target: WakeTarget::Thread(unparker) },
    )
}

/// Creates both sides for a drain task on a shared pool.
pub(crate) fn task_sleeper() -> (Sleeper, Waker) {
    let state = Arc::new(AtomicU8::new(AWAKE));
    (
        Sleeper { state: state.clone(), parker: None },
        Waker { state, target: WakeTarget::Task(OnceLock::new()) },
    )
}

impl Sleeper {
    /// Whether it belongs to a task on a shared pool.
    pub(crate) fn is_on_pool(&self) -> bool {
        self.parker.is_none()
    }

    /// Publishes that the thread is about to sleep. It must check once more for work before it
    /// does.
    pub(crate) fn prepare(&self, kind: SleepKind) -> SleepAttempt<'_> {
        let state = if kind == SleepKind::Rest { RESTING } else { SLEEPING };
        // Relaxed: ordered by the fence, which pairs with the fence that a waker's caller makes
        // before `Waker::wake`. A swap, like every change of `state`: the order of a waker's
        // exchange among plain stores would be undefined.
        let before = self.state.swap(state, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        SleepAttempt { sleeper: self, is_pressed: before == PRESSED }
    }

    /// Called when a task that left its worker to sleep runs again.
    pub(crate) fn wake_up(&self) {
        // Relaxed: a waker that still reads the old state unparks once too often, which ends a
        // later sleep early. `PRESSED` is a separate bit, so that it stays if a waker has set it.
        self.state.fetch_and(PRESSED, Ordering::Relaxed);
    }
}

/// Proof that wakers see the thread as asleep. If it is dropped without [`sleep`](Self::sleep), the
/// thread stays awake.
#[derive(Debug)]
pub(crate) struct SleepAttempt<'a> {
    sleeper: &'a Sleeper,
    is_pressed: bool,
}

impl SleepAttempt<'_> {
    /// Whether pressure was signalled since the previous attempt.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    /// Sleeps until woken or until `limit` has passed. May return early.
    pub(crate) fn sleep(self, limit: Duration) {
        if let Some(parker) = &self.sleeper.parker {
            parker.park_timeout(limit);
        }
    }

    /// Leaves the worker of a shared pool: the task sleeps until [`Sleeper::wake_up`].
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for SleepAttempt<'_> {
    fn drop(&mut self) {
        self.sleeper.wake_up();
    }
}

impl Waker {
    /// Wakes the thread if `signal` ends its kind of sleep. The caller has stored its change and
    /// fenced before.
    pub(crate) fn wake(&self, signal: Signal) {
        // Relaxed: ordered by the caller's fence.
        let state = self.state.load(Ordering::Relaxed);
        // Relaxed: the exchanges only ensure that a single waker makes the system call.
        let is_asleep = match (signal, state) {
            (Signal::FirstItem, SLEEPING) => self
                .state
                .compare_exchange(SLEEPING, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok(),
            (Signal::Pressure, AWAKE | RESTING | SLEEPING) => {
                self.state.swap(PRESSED, Ordering::Relaxed) & (RESTING | SLEEPING) != 0
            }
            // Pressed already: the thread's next exchange sees it, and after that the thread sees
            // the caller's change.
            _ => false,
        };
        if is_asleep {
            match &self.target {
                WakeTarget::Thread(unparker) => unparker.unpark(),
                WakeTarget::Task(handle) => {
                    if let Some(handle) = handle.get() {
                        handle.notify();
                    }
                }
            }
        }
    }

    /// Whether the thread rests or sleeps, or is about to.
    pub(crate) fn is_asleep(&self) -> bool {
        // Relaxed: a hint, ordered by nothing.
        self.state.load(Ordering::Relaxed) & (RESTING | SLEEPING) != 0
    }

    /// Ends the sleep as its limit would: without a change of the state.
    #[cfg(all(test, loom))]
    pub(crate) fn time_out(&self) {
        if let WakeTarget::Thread(unparker) = &self.target {
            unparker.unpark();
        }
    }

    /// Sets the handle through which a drain task is woken.
    pub(crate) fn notify_through(&self, handle: TaskHandle) {
        if let WakeTarget::Task(target) = &self.target {
            // Set once, when the task is created.
            let _ = target.set(handle);
        }
    }
}
