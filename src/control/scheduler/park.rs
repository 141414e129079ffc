//! How a drain thread, or a drain task on a shared pool, rests and sleeps without missing a
//! wake-up.
//!
//! `state` is written by the drain thread (awake, resting, sleeping) and by whoever wakes it
//! (awake, pressed). Both sides follow the same order: *store, fence, look*. The thread stores its
//! state and then looks for work; a producer stores its work and then looks at the state. So at
//! least one of them sees the other.
//!
//! Pressure that meets a thread awake is left with it: `PRESSED` stays until the thread prepares to
//! sleep again. So only then has it to look how full its partitions are, each under its gate.

use crate::control::scheduler::TaskHandle;
use crate::flow::partition::Signal;
use crate::rules::{Rule, rule_off};
use crate::sync::{Arc, AtomicU8, Duration, OnceLock, Ordering, Parker, Unparker, fence, parker};

const AWAKE: u8 = 0;
const RESTING: u8 = 1;
const SLEEPING: u8 = 2;
/// Awake, and told of pressure since it last prepared to sleep.
const PRESSED: u8 = 4;

/// How deep a drain thread sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SleepKind {
    /// So that a batch can form: a first item does not end it, pressure does.
    Rest,
    /// Nothing to do: anything ends it.
    Sleep,
}

/// The drain thread's side.
#[derive(Debug)]
pub(crate) struct Sleeper {
    state: Arc<AtomicU8>,
    /// A task on a shared pool has none: it leaves its worker, and the pool keeps the time.
    parker: Option<Parker>,
}

/// Everybody else's side.
#[derive(Debug)]
pub(crate) struct Waker {
    state: Arc<AtomicU8>,
    target: WakeTarget,
}

#[derive(Debug)]
enum WakeTarget {
    Thread(Unparker),
    /// Set before the queue is anybody's.
    Task(OnceLock<TaskHandle>),
}

/// For a drain thread.
pub(crate) fn sleeper() -> (Sleeper, Waker) {
    let state = Arc::new(AtomicU8::new(AWAKE));
    let (parker, unparker) = parker();
    (
        Sleeper { state: state.clone(), parker: Some(parker) },
        Waker { state, target: WakeTarget::Thread(unparker) },
    )
}

/// For a drain task on a shared pool.
pub(crate) fn task_sleeper() -> (Sleeper, Waker) {
    let state = Arc::new(AtomicU8::new(AWAKE));
    (
        Sleeper { state: state.clone(), parker: None },
        Waker { state, target: WakeTarget::Task(OnceLock::new()) },
    )
}

impl Sleeper {
    /// Says that the thread is about to sleep. It must look once more for work before it does.
    pub(crate) fn prepare(&self, kind: SleepKind) -> SleepAttempt<'_> {
        let state = if kind == SleepKind::Rest { RESTING } else { SLEEPING };
        // Relaxed: ordered by the fence, which pairs with the fence that a waker's caller makes
        // before `Waker::wake`. A swap, as every change of `state`: between plain stores a waker's
        // exchange has no clear place.
        let before = self.state.swap(state, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        SleepAttempt { sleeper: self, is_pressed: before == PRESSED }
    }

    /// A task that left its worker asleep runs again.
    pub(crate) fn wake_up(&self) {
        // Relaxed: a waker that still reads the old state unparks once too often, which ends one
        // later sleep early. A bit of its own, so that it stays if a waker has written it.
        self.state.fetch_and(PRESSED, Ordering::Relaxed);
    }
}

/// Proof that wakers see the thread as asleep. Dropped without [`sleep`](Self::sleep), the thread
/// stays awake.
#[derive(Debug)]
pub(crate) struct SleepAttempt<'a> {
    sleeper: &'a Sleeper,
    is_pressed: bool,
}

impl SleepAttempt<'_> {
    /// Whether somebody has told of pressure since the attempt before.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_pressed
    }

    /// Sleeps until woken or until `limit` has passed; may return early.
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
    /// Wakes the thread if it sleeps as deep as `signal` reaches. The caller stored its news and
    /// fenced before.
    pub(crate) fn wake(&self, signal: Signal) {
        // Relaxed: ordered by the caller's fence.
        let state = self.state.load(Ordering::Relaxed);
        // Relaxed: the exchanges only make sure that one waker pays for the system call.
        let is_asleep = match (signal, state) {
            (Signal::FirstItem, SLEEPING) => self
                .state
                .compare_exchange(SLEEPING, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok(),
            (Signal::Pressure, AWAKE) if rule_off(Rule::KeepPressure) => false,
            (Signal::Pressure, AWAKE | RESTING | SLEEPING) => {
                self.state.swap(PRESSED, Ordering::Relaxed) & (RESTING | SLEEPING) != 0
            }
            // Pressed: the thread's next exchange finds that, and after that one it sees the
            // caller's news.
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

    /// Ends the sleep as its limit would: nobody has news, and nobody changes the state.
    #[cfg(all(test, loom))]
    pub(crate) fn time_out(&self) {
        if let WakeTarget::Thread(unparker) = &self.target {
            unparker.unpark();
        }
    }

    /// Where the wake-ups of a drain task go.
    pub(crate) fn notify_through(&self, handle: TaskHandle) {
        if let WakeTarget::Task(place) = &self.target {
            // Set once, when the task is made.
            let _ = place.set(handle);
        }
    }
}
