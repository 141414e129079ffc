//! What the other threads of a queue see of each drain thread, and how they wake it.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `waker` | see `threads/park.rs` | producers, control side, drain threads |
//! | `tally` | drain thread `i`; an expiring shutdown | statistics, balancer |
//! | `cycles`, `cpu_ns`, `longest_handoff_ns` | drain thread `i`, by plain stores | statistics |
//! | `progress` | drain thread `i` | control side, supervisor |
//! | `reach`, `has_run`, `is_dismissed` | supervisor | drain threads; statistics |
//! | `in_slow_call` | drain thread `i` | supervisor |
//! | `runner` | drain thread `i`, or the worker that runs it, under its lock | watchdog |
//! | `is_running` | see [`Spares`] | all threads |

use std::ops::Index;

use crossbeam_utils::CachePadded;

use crate::observe::{ThreadFigures, ThreadTally};
use crate::sync::{
    Arc, AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Duration, Mutex, Ordering, fence,
};
use crate::threads::context::KnownThread;
use crate::threads::park::{Signal, Sleeper, Waker};

/// No partition has this number.
const OUTSIDE: usize = usize::MAX;

/// No time since the start of a queue.
const NEVER: u64 = u64::MAX;

/// What others see of one drain thread.
#[derive(Debug)]
pub(crate) struct ThreadSlot {
    pub(crate) waker: Waker,
    /// Apart from `waker`, which producers read: drain thread `i` writes the rest with each turn.
    pub(crate) tally: CachePadded<ThreadTally>,
    cycles: AtomicU64,
    cpu_ns: AtomicU64,
    progress: CachePadded<Progress>,
    longest_handoff_ns: AtomicU64,
    is_running: AtomicBool,
    /// Whether it has ever run.
    has_run: AtomicBool,
    /// Whether it is to leave.
    is_dismissed: AtomicBool,
    /// A [`Reach`].
    reach: AtomicU8,
    /// Whether it is in a call that was expected to be slow.
    in_slow_call: AtomicBool,
    /// The thread that it is, or, on a pool, the worker that runs it.
    runner: Mutex<Option<Arc<KnownThread>>>,
}

/// How the supervisor last found a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reach {
    Here,
    /// Without progress for a tick, in a call or elsewhere.
    Away,
    /// The same for so long that it may never return.
    Lost,
}

/// Written by the drain thread with each turn and call.
#[derive(Debug)]
struct Progress {
    /// The partition that the thread is inside of, or `OUTSIDE`.
    partition: AtomicUsize,
    turns: AtomicU64,
    /// The time in calls with items so far.
    busy_ns: AtomicU64,
    /// When a handler last returned quickly, since the queue's start; or `NEVER`.
    last_quick_call_ms: AtomicU64,
}

impl ThreadSlot {
    fn new(waker: Waker, is_running: bool) -> Self {
        Self {
            waker,
            tally: CachePadded::new(ThreadTally::new()),
            cycles: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            progress: CachePadded::new(Progress {
                partition: AtomicUsize::new(OUTSIDE),
                turns: AtomicU64::new(0),
                busy_ns: AtomicU64::new(0),
                last_quick_call_ms: AtomicU64::new(NEVER),
            }),
            longest_handoff_ns: AtomicU64::new(0),
            is_running: AtomicBool::new(is_running),
            has_run: AtomicBool::new(is_running),
            is_dismissed: AtomicBool::new(false),
            reach: AtomicU8::new(Reach::Here as u8),
            in_slow_call: AtomicBool::new(false),
            runner: Mutex::new(None),
        }
    }

    // ---- called by the control side -------------------------------------------------------------

    /// Whether the thread is inside a partition. The caller has fenced.
    pub(crate) fn is_inside(&self, partition: usize) -> bool {
        // Acquire: pairs with the Release in `go_outside` and `go_inside`; if the thread has left
        // the partition, all that it did there is visible.
        self.progress.partition.load(Ordering::Acquire) == partition
    }

    /// The turns of the thread so far.
    pub(crate) fn turns(&self) -> u64 {
        // Relaxed: ordered by the caller's fence, where it has one.
        self.progress.turns.load(Ordering::Relaxed)
    }

    /// The cycles of the thread so far.
    pub(crate) fn cycles(&self) -> u64 {
        // Relaxed: a figure, ordered by nothing.
        self.cycles.load(Ordering::Relaxed)
    }

    /// The time in calls with items so far, the present one included.
    pub(crate) fn busy(&self) -> Duration {
        let present = self.tally.counts().calling.map_or(Duration::ZERO, |call| call.1.elapsed());
        // Relaxed: a figure, ordered by nothing.
        Duration::from_nanos(self.progress.busy_ns.load(Ordering::Relaxed)) + present
    }

    /// When a handler last returned quickly, since the queue's start.
    pub(crate) fn last_quick_call(&self) -> Option<Duration> {
        // Relaxed: a figure, ordered by nothing.
        let at = self.progress.last_quick_call_ms.load(Ordering::Relaxed);
        (at != NEVER).then_some(Duration::from_millis(at))
    }

    /// Whether the thread has been out of reach for a tick of the supervisor.
    pub(crate) fn is_away(&self) -> bool {
        // Relaxed: a hint, ordered by nothing.
        self.reach.load(Ordering::Relaxed) != Reach::Here as u8
    }

    /// Whether the thread has been in one call for so long that it may never return.
    fn is_lost(&self) -> bool {
        // Relaxed: as in `is_away`.
        self.reach.load(Ordering::Relaxed) == Reach::Lost as u8
    }

    /// Whether the thread is in a call that was expected to be slow.
    pub(crate) fn in_slow_call(&self) -> bool {
        // Relaxed: a hint, ordered by nothing.
        self.in_slow_call.load(Ordering::Relaxed)
    }

    /// Called by the supervisor.
    pub(crate) fn set_reach(&self, reach: Reach) {
        // Relaxed: as in `is_away`.
        self.reach.store(reach as u8, Ordering::Relaxed);
    }

    /// Whether there is such a thread at the moment. Always, but for spare ones.
    pub(crate) fn is_running(&self) -> bool {
        // Acquire: pairs with the Release in `set_running`; what a spare thread did before it left
        // is visible.
        self.is_running.load(Ordering::Acquire)
    }

    /// Called by the supervisor before it starts a spare thread, and by the thread when it leaves.
    pub(crate) fn set_running(&self, is_running: bool) {
        // Relaxed, both: published by the store below, or by the start of the thread.
        if is_running {
            self.has_run.store(true, Ordering::Relaxed);
            self.is_dismissed.store(false, Ordering::Relaxed);
        }
        // Release: as in `is_running`.
        self.is_running.store(is_running, Ordering::Release);
    }

    /// Called by the supervisor, which then wakes the thread after a fence: it owns no partition.
    pub(crate) fn dismiss(&self) {
        // Relaxed: ordered by the caller's fence.
        self.is_dismissed.store(true, Ordering::Relaxed);
    }

    /// Whether the thread is to leave. Before it sleeps, it has fenced.
    pub(crate) fn is_dismissed(&self) -> bool {
        // Relaxed: as in `dismiss`.
        self.is_dismissed.load(Ordering::Relaxed)
    }

    /// Whether the thread has ever run.
    pub(crate) fn has_run(&self) -> bool {
        // Relaxed: a figure, ordered by nothing.
        self.has_run.load(Ordering::Relaxed)
    }

    /// The thread that runs it, or did last.
    pub(crate) fn runner(&self) -> Option<Arc<KnownThread>> {
        self.runner.lock().clone()
    }

    // ---- called by the drain thread itself ------------------------------------------------------

    /// When a thread begins to run it.
    pub(crate) fn set_runner(&self, thread: Arc<KnownThread>) {
        let mut runner = self.runner.lock();
        if !runner.as_ref().is_some_and(|known| Arc::ptr_eq(known, &thread)) {
            *runner = Some(thread);
        }
    }

    /// Before a call that will take long, until the result is dropped.
    pub(crate) fn begin_slow_call(&self) -> SlowCall<'_> {
        // Relaxed: as in `in_slow_call`.
        self.in_slow_call.store(true, Ordering::Relaxed);
        SlowCall(self)
    }

    /// Before the thread checks that it owns the partition; it fences in between.
    #[inline]
    pub(crate) fn go_inside(&self, partition: usize) {
        // Release: as in `go_outside`, for a thread that went from one partition to the next.
        self.progress.partition.store(partition, Ordering::Release);
        // In loom, which has no ticks that would read it, this would only add steps to each model.
        if !cfg!(loom) {
            // Relaxed: only this thread writes it, and it is ordered by the caller's fence.
            let turns = self.progress.turns.load(Ordering::Relaxed);
            self.progress.turns.store(turns + 1, Ordering::Relaxed);
        }
    }

    /// When the thread has nothing of the partition in flight.
    #[inline]
    pub(crate) fn go_outside(&self) {
        // Release: pairs with the Acquire in `is_inside`.
        self.progress.partition.store(OUTSIDE, Ordering::Release);
    }

    /// After a call with items.
    #[inline]
    pub(crate) fn note_busy(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed, both: a figure, written by this thread only.
        let before = self.progress.busy_ns.load(Ordering::Relaxed);
        self.progress.busy_ns.store(before.saturating_add(took), Ordering::Relaxed);
    }

    /// After a handler has returned quickly, at a time since the queue's start.
    #[inline]
    pub(crate) fn note_quick_call(&self, at: Duration) {
        // Relaxed: a figure, ordered by nothing.
        let at = u64::try_from(at.as_millis()).unwrap_or(NEVER - 1);
        self.progress.last_quick_call_ms.store(at, Ordering::Relaxed);
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

/// While it lives, a drain thread is in a call that will take long.
pub(crate) struct SlowCall<'a>(&'a ThreadSlot);

impl Drop for SlowCall<'_> {
    fn drop(&mut self) {
        // Relaxed: as in `in_slow_call`.
        self.0.in_slow_call.store(false, Ordering::Relaxed);
    }
}

#[cfg(not(any(loom, miri)))]
fn thread_cpu_ns() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

// Miri has no such clock.
#[cfg(any(loom, miri))]
fn thread_cpu_ns() -> u64 {
    0
}

/// The slots of all drain threads of a queue, by index: first those that always run, then the spare
/// ones.
#[derive(Debug)]
pub(crate) struct ThreadSlots {
    all: Box<[ThreadSlot]>,
    /// How many always run.
    permanent: usize,
    pub(crate) spares: Spares,
}

impl ThreadSlots {
    pub(crate) fn new(wakers: Vec<Waker>, spares: Spares) -> Self {
        let permanent = wakers.len() - spares.most();
        let slot = |(thread, waker)| ThreadSlot::new(waker, thread < permanent);
        Self { all: wakers.into_iter().enumerate().map(slot).collect(), permanent, spares }
    }

    /// How many threads always run. These are the ones that partitions are spread over.
    pub(crate) fn len(&self) -> usize {
        self.permanent
    }

    /// How many there may be, spare ones included.
    pub(crate) fn most(&self) -> usize {
        self.all.len()
    }

    /// Whether one of them can take over from another.
    pub(crate) fn may_be_taken_over(&self) -> bool {
        // loom has no clock, and so no visits.
        self.most() > 1 && !cfg!(loom)
    }

    /// All of them, spare ones included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ThreadSlot> {
        self.all.iter()
    }

    /// Whether all threads but one, or all, may never return from their calls.
    pub(crate) fn is_one_left(&self) -> bool {
        self.all.iter().filter(|slot| slot.is_running() && !slot.is_lost()).count() <= 1
    }

    /// Those that always run.
    pub(crate) fn permanent(&self) -> impl Iterator<Item = &ThreadSlot> {
        self.all[..self.permanent].iter()
    }

    /// After a put: wakes the thread inside the partition, as deep as `signal` reaches. `inside`:
    /// its number, read behind the fence.
    #[inline]
    pub(crate) fn wake_inside(&self, signal: Signal, inside: impl FnOnce() -> usize) {
        if signal == Signal::Nothing {
            return;
        }
        // SeqCst: pairs with the fence in `Sleeper::prepare`: either this thread sees it asleep, or
        // it sees the put.
        fence(Ordering::SeqCst);
        self.all[inside()].waker.wake(signal);
    }

    pub(crate) fn wake_all(&self) {
        // SeqCst: as in `wake_inside`.
        fence(Ordering::SeqCst);
        for slot in &self.all {
            slot.waker.wake(Signal::Pressure);
        }
    }
}

impl Index<usize> for ThreadSlots {
    type Output = ThreadSlot;

    #[inline]
    fn index(&self, thread: usize) -> &ThreadSlot {
        &self.all[thread]
    }
}

/// Spare drain threads: started by the supervisor while all others are held up, and dismissed when
/// they have had nothing to do for a while.
///
/// A spare thread is a drain thread like the others, but that no balancer plans for it, and that it
/// owns partitions only until their threads are reachable again.
///
/// ```text
///   idle ──start (supervisor)──▶ running ──dismiss (supervisor)──▶ leaving ──(itself)──▶ idle
///                                   └─────────────── the queue ends ──────────────▶ ended
/// ```
///
/// | field | written by | read by |
/// |---|---|---|
/// | `sleepers` | spare threads that start and leave | the same |
/// | `is_running`, in the slot of each | supervisor (set), the thread (clear) | all threads |
#[derive(Debug)]
pub(crate) struct Spares {
    /// The number of the first: those of the other drain threads come before it.
    first: usize,
    /// For each, its side of its sleep, unless it runs.
    sleepers: Mutex<Vec<Option<Sleeper>>>,
    most: usize,
}

impl Spares {
    pub(crate) fn new(first: usize, sleepers: Vec<Sleeper>) -> Self {
        let most = sleepers.len();
        Self { first, sleepers: Mutex::new(sleepers.into_iter().map(Some).collect()), most }
    }

    /// How many there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The numbers of all.
    pub(crate) fn numbers(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.most
    }

    /// Called by the spare thread that starts.
    pub(crate) fn take(&self, thread: usize) -> Sleeper {
        match self.sleepers.lock()[thread - self.first].take() {
            Some(sleeper) => sleeper,
            None => unreachable!("a spare thread is started after it has left"),
        }
    }

    /// Called by the spare thread that leaves, as the last thing that it does with the queue.
    pub(crate) fn give_back(&self, thread: usize, sleeper: Sleeper) {
        self.sleepers.lock()[thread - self.first] = Some(sleeper);
    }
}
