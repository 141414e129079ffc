//! Rest and sleep of a drain thread, or of a drain task on a shared pool, without lost wake-ups.
//!
//! `state` is written by the drain thread (awake, resting, sleeping) and by its wakers (awake,
//! pressed). Both sides follow the same order: *store, fence, load*. The drain thread stores its
//! state and then checks for work; a producer stores its work and then checks the state. So at
//! least one of them sees the other's store.
//!
//! Pressure on an awake thread is recorded: `PRESSED` stays until the thread next prepares to
//! sleep. Only if it is set must the thread check how full its partitions are, each under its gate.

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
    /// Do not wake the drain thread.
    Nothing,
    /// The partition was empty: wake a sleeping thread, but not a resting one.
    FirstItem,
    /// The partition is half full, or nearly full where items linger: end a rest as well.
    Pressure,
}

/// How deeply a drain thread sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SleepKind {
    /// Lets a batch form: pressure ends it, a first item does not.
    Rest,
    /// There is nothing to do: any signal ends it.
    Sleep,
}

/// The sleeping side: a drain thread or task.
#[derive(Debug)]
pub(crate) struct Sleeper {
    state: Arc<AtomicU8>,
    /// `None` for a task on a shared pool, which leaves its worker while the pool keeps its timer.
    parker: Option<Parker>,
}

/// The waking side: other threads.
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

    /// Publishes that the thread is about to sleep. The caller must then check for work once more.
    pub(crate) fn prepare(&self, kind: SleepKind) -> SleepAttempt<'_> {
        let state = if kind == SleepKind::Rest { RESTING } else { SLEEPING };
        // Relaxed: ordered by the fence, which pairs with the fence of a waker's caller before
        // `Waker::wake`. A swap, like every change of `state`: a waker's exchange would have no
        // defined order among plain stores.
        let before = self.state.swap(state, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        SleepAttempt { sleeper: self, is_pressed: before == PRESSED }
    }

    /// Marks a task that left its worker to sleep as awake again.
    pub(crate) fn wake_up(&self) {
        // Relaxed: a waker that still reads the old state unparks once too often, which ends a
        // later sleep early. `PRESSED` is a separate bit, so it survives if a waker has set it.
        self.state.fetch_and(PRESSED, Ordering::Relaxed);
    }
}

/// Proof that wakers see the thread as asleep. Dropped without [`sleep`](Self::sleep), it leaves
/// the thread awake.
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
    /// Wakes the thread if `signal` ends its kind of sleep. The caller has stored its change, and
    /// fenced.
    pub(crate) fn wake(&self, signal: Signal) {
        // Relaxed: ordered by the caller's fence.
        let state = self.state.load(Ordering::Relaxed);
        // Relaxed: the exchanges only ensure that only one waker makes the system call.
        let is_asleep = match (signal, state) {
            (Signal::FirstItem, SLEEPING) => self
                .state
                .compare_exchange(SLEEPING, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok(),
            (Signal::Pressure, AWAKE | RESTING | SLEEPING) => {
                self.state.swap(PRESSED, Ordering::Relaxed) & (RESTING | SLEEPING) != 0
            }
            // Already pressed: the thread's next exchange sees that, and then the thread sees the
            // caller's change.
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

    /// Whether the thread is resting or sleeping, or about to.
    pub(crate) fn is_asleep(&self) -> bool {
        // Relaxed: only a hint.
        self.state.load(Ordering::Relaxed) & (RESTING | SLEEPING) != 0
    }

    /// Ends the sleep as its limit would: without changing the state.
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
