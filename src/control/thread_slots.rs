//! What the other threads of a queue see of each drain thread, and how they wake it.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `waker` | see `scheduler/park.rs` | producers, control side, drain threads |
//! | `tally` | drain thread `i`; an expiring shutdown | statistics, balancer |
//! | `cycles`, `cpu_ns`, `longest_handoff_ns` | drain thread `i`, by plain stores | statistics |
//! | `inside` | drain thread `i` | control side |

use std::ops::Index;

use crossbeam_utils::CachePadded;

use crate::control::scheduler::Waker;
use crate::flow::partition::{Partition, Signal};
use crate::flow::route::Route;
use crate::observe::{ThreadFigures, ThreadTally};
use crate::rules::{Rule, rule_off};
use crate::sync::{AtomicU64, AtomicUsize, Duration, Ordering, fence};

/// No partition has this number.
const OUTSIDE: usize = usize::MAX;

/// What others see of one drain thread.
#[derive(Debug)]
pub(crate) struct ThreadSlot {
    pub(crate) waker: Waker,
    /// Apart from `waker`, which producers read: drain thread `i` writes the rest with each turn.
    pub(crate) tally: CachePadded<ThreadTally>,
    cycles: AtomicU64,
    cpu_ns: AtomicU64,
    /// The partition that the thread is inside of, or `OUTSIDE`.
    inside: CachePadded<AtomicUsize>,
    longest_handoff_ns: AtomicU64,
}

impl ThreadSlot {
    fn new(waker: Waker) -> Self {
        Self {
            waker,
            tally: CachePadded::new(ThreadTally::new()),
            cycles: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            inside: CachePadded::new(AtomicUsize::new(OUTSIDE)),
            longest_handoff_ns: AtomicU64::new(0),
        }
    }

    // ---- called by the control side -------------------------------------------------------------

    /// Whether the thread is inside a partition. The caller has fenced.
    pub(crate) fn is_inside(&self, partition: usize) -> bool {
        // Acquire: pairs with the Release in `go_outside` and `go_inside`; if the thread has left
        // the partition, all that it did there is visible.
        self.inside.load(Ordering::Acquire) == partition
    }

    // ---- called by the drain thread itself ------------------------------------------------------

    /// Before the thread checks that it owns the partition; it fences in between.
    #[inline]
    pub(crate) fn go_inside(&self, partition: usize) {
        // Release: as in `go_outside`, for a thread that went from one partition to the next.
        self.inside.store(partition, Ordering::Release);
    }

    /// When the thread has nothing of the partition in hand.
    #[inline]
    pub(crate) fn go_outside(&self) {
        // Release: pairs with the Acquire in `is_inside`.
        self.inside.store(OUTSIDE, Ordering::Release);
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
