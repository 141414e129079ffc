//! The state of each drain thread that a queue's other threads see, and its waker.
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

/// The number of no partition.
const OUTSIDE: usize = usize::MAX;

/// A value for no time since the start of a queue.
const NEVER: u64 = u64::MAX;

/// The state of one drain thread that other threads see.
#[derive(Debug)]
pub(crate) struct ThreadSlot {
    pub(crate) waker: Waker,
    /// Padded from `waker`, which producers read: drain thread `i` writes the rest in each turn.
    pub(crate) tally: CachePadded<ThreadTally>,
    cycles: AtomicU64,
    cpu_ns: AtomicU64,
    progress: CachePadded<Progress>,
    longest_handoff_ns: AtomicU64,
    is_running: AtomicBool,
    /// Whether the thread has ever run.
    has_run: AtomicBool,
    /// Whether the thread has to leave.
    is_dismissed: AtomicBool,
    /// A [`Reach`].
    reach: AtomicU8,
    /// Whether the thread is in a call that was expected to be slow.
    in_slow_call: AtomicBool,
    /// The thread itself, or, on a pool, the worker that runs the task.
    runner: Mutex<Option<Arc<KnownThread>>>,
}

/// The state in which the supervisor last found a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reach {
    Here,
    /// No progress for a tick, in a call or elsewhere.
    Away,
    /// No progress for so long that it may never return.
    Lost,
}

/// The fields that the drain thread writes in each turn and call.
#[derive(Debug)]
struct Progress {
    /// The partition that the thread is in, or `OUTSIDE`.
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
        // Acquire: pairs with the Release in `go_outside` and `go_inside`. If the thread has left
        // the partition, everything it did there is visible.
        self.progress.partition.load(Ordering::Acquire) == partition
    }

    /// Returns the number of turns so far.
    pub(crate) fn turns(&self) -> u64 {
        // Relaxed: ordered by the caller's fence, if it has one.
        self.progress.turns.load(Ordering::Relaxed)
    }

    /// Returns the number of cycles so far.
    pub(crate) fn cycles(&self) -> u64 {
        // Relaxed: a figure, ordered by nothing.
        self.cycles.load(Ordering::Relaxed)
    }

    /// Returns the time in calls with items so far, including the current one.
    pub(crate) fn busy(&self) -> Duration {
        let present = self.tally.counts().calling.map_or(Duration::ZERO, |call| call.1.elapsed());
        // Relaxed: a figure, ordered by nothing.
        Duration::from_nanos(self.progress.busy_ns.load(Ordering::Relaxed)) + present
    }

    /// Returns when a handler last returned quickly, since the queue's start.
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

    /// Whether the thread currently exists. Permanent threads always do.
    pub(crate) fn is_running(&self) -> bool {
        // Acquire: pairs with the Release in `set_running`. What a spare thread did before it left
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

    /// Makes the thread, which owns no partition, leave. Called by the supervisor, which then
    /// fences and wakes the thread.
    pub(crate) fn dismiss(&self) {
        // Relaxed: ordered by the caller's fence.
        self.is_dismissed.store(true, Ordering::Relaxed);
    }

    /// Whether the thread has to leave. Before it sleeps, the caller has fenced.
    pub(crate) fn is_dismissed(&self) -> bool {
        // Relaxed: as in `dismiss`.
        self.is_dismissed.load(Ordering::Relaxed)
    }

    /// Whether the thread has ever run.
    pub(crate) fn has_run(&self) -> bool {
        // Relaxed: a figure, ordered by nothing.
        self.has_run.load(Ordering::Relaxed)
    }

    /// Returns the thread that runs it, or that did last.
    pub(crate) fn runner(&self) -> Option<Arc<KnownThread>> {
        self.runner.lock().clone()
    }

    // ---- called by the drain thread itself ------------------------------------------------------

    /// Records the thread that begins to run it.
    pub(crate) fn set_runner(&self, thread: Arc<KnownThread>) {
        let mut runner = self.runner.lock();
        if !runner.as_ref().is_some_and(|known| Arc::ptr_eq(known, &thread)) {
            *runner = Some(thread);
        }
    }

    /// Marks the thread as in a slow call until the result is dropped.
    pub(crate) fn begin_slow_call(&self) -> SlowCall<'_> {
        // Relaxed: as in `in_slow_call`.
        self.in_slow_call.store(true, Ordering::Relaxed);
        SlowCall(self)
    }

    /// Notes that the thread enters a partition. The caller then fences, and checks that it owns
    /// the partition.
    #[inline]
    pub(crate) fn go_inside(&self, partition: usize) {
        // Release: as in `go_outside`, for a thread that goes straight from one partition to the
        // next.
        self.progress.partition.store(partition, Ordering::Release);
        // loom has no ticks that would read this: it would only add steps to each model.
        if !cfg!(loom) {
            // Relaxed: only this thread writes it, and the caller's fence orders it.
            let turns = self.progress.turns.load(Ordering::Relaxed);
            self.progress.turns.store(turns + 1, Ordering::Relaxed);
        }
    }

    /// Notes that the thread has nothing of the partition in flight.
    #[inline]
    pub(crate) fn go_outside(&self) {
        // Release: pairs with the Acquire in `is_inside`.
        self.progress.partition.store(OUTSIDE, Ordering::Release);
    }

    /// Adds the time of a call with items.
    #[inline]
    pub(crate) fn note_busy(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed, both: a statistic that only this thread writes.
        let before = self.progress.busy_ns.load(Ordering::Relaxed);
        self.progress.busy_ns.store(before.saturating_add(took), Ordering::Relaxed);
    }

    /// Records when a handler has returned quickly, since the queue's start.
    #[inline]
    pub(crate) fn note_quick_call(&self, at: Duration) {
        // Relaxed: a figure, ordered by nothing.
        let at = u64::try_from(at.as_millis()).unwrap_or(NEVER - 1);
        self.progress.last_quick_call_ms.store(at, Ordering::Relaxed);
    }

    /// Counts a cycle, at a quiescent point.
    #[inline]
    pub(crate) fn count_cycle(&self) {
        // Relaxed load: only this thread writes it. Release: a thread that sees the number also
        // sees what the cycle did.
        self.cycles.store(self.cycles.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Records the time from revoke to assign of a handoff.
    pub(crate) fn note_handoff(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: a statistic that only this thread writes.
        self.longest_handoff_ns
            .store(took.max(self.longest_handoff_ns.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    pub(crate) fn note_cpu_time(&self) {
        // Relaxed: a statistic that orders nothing.
        self.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
    }

    // ---- called by statistics -------------------------------------------------------------------

    pub(crate) fn figures(&self) -> ThreadFigures {
        ThreadFigures {
            counts: self.tally.counts(),
            // Relaxed, all three: statistics that order nothing.
            longest_handoff: Duration::from_nanos(self.longest_handoff_ns.load(Ordering::Relaxed)),
            cycles: self.cycles.load(Ordering::Relaxed),
            cpu: Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed)),
        }
    }
}

/// A guard while a drain thread is in a call that is expected to be slow.
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

/// The slots of a queue's drain threads, by index: permanent threads first, then spare ones.
#[derive(Debug)]
pub(crate) struct ThreadSlots {
    all: Box<[ThreadSlot]>,
    /// The number of permanent threads.
    permanent: usize,
    pub(crate) spares: Spares,
}

impl ThreadSlots {
    pub(crate) fn new(wakers: Vec<Waker>, spares: Spares) -> Self {
        let permanent = wakers.len() - spares.most();
        let slot = |(thread, waker)| ThreadSlot::new(waker, thread < permanent);
        Self { all: wakers.into_iter().enumerate().map(slot).collect(), permanent, spares }
    }

    /// Returns the number of permanent threads, over which partitions are spread.
    pub(crate) fn len(&self) -> usize {
        self.permanent
    }

    /// Returns the largest number of threads, including spare ones.
    pub(crate) fn most(&self) -> usize {
        self.all.len()
    }

    /// Whether one thread can take over from another.
    pub(crate) fn may_be_taken_over(&self) -> bool {
        // loom has no clock, and so no visits.
        self.most() > 1 && !cfg!(loom)
    }

    /// Iterates over all threads, including spare ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ThreadSlot> {
        self.all.iter()
    }

    /// Whether all running threads, or all but one, may never return from their calls.
    pub(crate) fn is_one_left(&self) -> bool {
        self.all.iter().filter(|slot| slot.is_running() && !slot.is_lost()).count() <= 1
    }

    /// Iterates over the permanent threads.
    pub(crate) fn permanent(&self) -> impl Iterator<Item = &ThreadSlot> {
        self.all[..self.permanent].iter()
    }

    /// After a put, wakes the thread inside the partition if `signal` ends its sleep. `inside`
    /// returns the thread's number, and is called after the fence.
    #[inline]
    pub(crate) fn wake_inside(&self, signal: Signal, inside: impl FnOnce() -> usize) {
        if signal == Signal::Nothing {
            return;
        }
        // SeqCst: pairs with the fence in `Sleeper::prepare`: either this thread sees the other
        // asleep, or the other sees the put.
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

/// Spare drain threads: started by the supervisor while all others are held up, and dismissed after
/// a while without work.
///
/// A spare thread is a drain thread like the others, except that no balancer plans for it, and that
/// it owns partitions only until their threads are reachable again.
///
/// ```text
///   idle ──start (supervisor)──▶ running ──dismiss (supervisor)──▶ leaving ──(itself)──▶ idle
///                                   └─────────────── the queue ends ──────────────▶ ended
/// ```
///
/// | field | written by | read by |
/// |---|---|---|
/// | `sleepers` | spare threads that start and leave | spare threads |
/// | `is_running`, in the slot of each | supervisor (set), the thread (clear) | all threads |
#[derive(Debug)]
pub(crate) struct Spares {
    /// The number of the first spare thread, after those of the permanent threads.
    first: usize,
    /// The sleeper of each spare thread, unless it is running.
    sleepers: Mutex<Vec<Option<Sleeper>>>,
    most: usize,
}

impl Spares {
    pub(crate) fn new(first: usize, sleepers: Vec<Sleeper>) -> Self {
        let most = sleepers.len();
        Self { first, sleepers: Mutex::new(sleepers.into_iter().map(Some).collect()), most }
    }

    /// Returns the largest number of spare threads.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Returns the numbers of the spare threads.
    pub(crate) fn numbers(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.most
    }

    /// Takes the sleeper of a spare thread. Called by the thread when it starts.
    pub(crate) fn take(&self, thread: usize) -> Sleeper {
        match self.sleepers.lock()[thread - self.first].take() {
            Some(sleeper) => sleeper,
            None => unreachable!("a spare thread is started after it has left"),
        }
    }

    /// Returns the sleeper of a spare thread. Called by the thread as the last thing it does with
    /// the queue.
    pub(crate) fn give_back(&self, thread: usize, sleeper: Sleeper) {
        self.sleepers.lock()[thread - self.first] = Some(sleeper);
    }
}
