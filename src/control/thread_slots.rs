//! What the other threads of a queue see of each drain thread, and how they wake it.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `waker` | see `scheduler/park.rs` | producers, control side, drain threads |
//! | `tally` | drain thread `i`; an expiring shutdown | statistics, balancer |
//! | `cycles`, `cpu_ns`, `longest_handoff_ns` | drain thread `i`, by plain stores | statistics |
//! | `asked_to_hand_over` | control side (set), drain thread `i` (clear) | drain thread `i` |

use std::ops::Index;

use crate::control::scheduler::Waker;
use crate::flow::partition::{Partition, Signal};
use crate::flow::route::Route;
use crate::observe::{ThreadFigures, ThreadTally};
use crate::rules::{Rule, rule_off};
use crate::sync::{AtomicBool, AtomicU64, Duration, Ordering, fence};

/// What others see of one drain thread.
#[derive(Debug)]
pub(crate) struct ThreadSlot {
    pub(crate) waker: Waker,
    pub(crate) tally: ThreadTally,
    cycles: AtomicU64,
    cpu_ns: AtomicU64,
    /// Some partition may have been revoked from this thread since it last checked.
    asked_to_hand_over: AtomicBool,
    longest_handoff_ns: AtomicU64,
}

impl ThreadSlot {
    fn new(waker: Waker) -> Self {
        Self {
            waker,
            tally: ThreadTally::new(),
            cycles: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            asked_to_hand_over: AtomicBool::new(false),
            longest_handoff_ns: AtomicU64::new(0),
        }
    }

    // ---- called by the control side -------------------------------------------------------------

    /// After a partition was revoked from the thread.
    pub(crate) fn request_handoff(&self) {
        // Release: pairs with the AcqRel swap in `take_handoff_request`; a thread that sees the
        // mark finds the word.
        self.asked_to_hand_over.store(true, Ordering::Release);
    }

    // ---- called by the drain thread itself ------------------------------------------------------

    /// Whether the thread was asked to hand a partition over. Relaxed: the caller has fenced, or a
    /// mark that is missed now is seen before sleep.
    #[inline]
    pub(crate) fn is_handoff_requested(&self) -> bool {
        self.asked_to_hand_over.load(Ordering::Relaxed)
    }

    /// Clears the mark, before the thread checks its partitions.
    #[inline]
    pub(crate) fn take_handoff_request(&self) {
        // AcqRel: pairs with the Release in `request_handoff`.
        self.asked_to_hand_over.swap(false, Ordering::AcqRel);
    }

    /// At a quiescent point.
    #[inline]
    pub(crate) fn count_cycle(&self) {
        // Relaxed load: only this thread writes it. Release: what the cycle did is visible to a
        // thread that sees the number.
        self.cycles.store(self.cycles.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// With the time from revoke to assign.
    pub(crate) fn note_handoff(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: a figure for statistics, written by this thread only.
        self.longest_handoff_ns
            .store(took.max(self.longest_handoff_ns.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    pub(crate) fn note_cpu_time(&self) {
        // Relaxed: a figure for statistics, ordered by nothing.
        self.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
    }

    // ---- called by statistics -------------------------------------------------------------------

    pub(crate) fn figures(&self) -> ThreadFigures {
        ThreadFigures {
            counts: self.tally.counts(),
            // Relaxed, all three: figures of each thread, ordered by nothing.
            longest_handoff: Duration::from_nanos(self.longest_handoff_ns.load(Ordering::Relaxed)),
            cycles: self.cycles.load(Ordering::Relaxed),
            cpu: Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(not(loom))]
fn thread_cpu_ns() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

#[cfg(loom)]
fn thread_cpu_ns() -> u64 {
    0
}

/// The slots of all drain threads of a queue, by index.
#[derive(Debug)]
pub(crate) struct ThreadSlots(Box<[ThreadSlot]>);

impl ThreadSlots {
    pub(crate) fn new(wakers: Vec<Waker>) -> Self {
        Self(wakers.into_iter().map(ThreadSlot::new).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ThreadSlot> {
        self.0.iter()
    }

    /// After a put: wakes the thread inside the partition, as deep as `signal` reaches.
    #[inline]
    pub(crate) fn wake_inside<T>(
        &self,
        route: &Route<T>,
        partition: &Partition<T>,
        signal: Signal,
    ) {
        if signal == Signal::Nothing {
            return;
        }
        // SeqCst: pairs with the fence in `Sleeper::prepare`: either this thread sees it asleep, or
        // it sees the put.
        if !rule_off(Rule::PutFence) {
            fence(Ordering::SeqCst);
        }
        // The thread inside, not the next owner: it is the one that can act on it now.
        let inside = route.owner(partition.index).load().inside();
        self.0[inside].waker.wake(signal);
    }

    pub(crate) fn wake_all(&self) {
        // SeqCst: as in `wake_inside`.
        fence(Ordering::SeqCst);
        for slot in &self.0 {
            slot.waker.wake(Signal::Pressure);
        }
    }
}

impl Index<usize> for ThreadSlots {
    type Output = ThreadSlot;

    #[inline]
    fn index(&self, thread: usize) -> &ThreadSlot {
        &self.0[thread]
    }
}
