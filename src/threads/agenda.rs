//! Per-process threads that visit queues at set times: the control thread runs balancers
//! (`control/rebalancer.rs`), the supervisor lets other threads take over from one that is held up
//! (`control/supervisor.rs`).
//!
//! Each thread starts when the first queue needs it, and ends with the last queue.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `plan` | queues that start, request a visit, or end; the thread | the thread; waits for it |

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustc_hash::FxHashMap;

use crate::sync::{
    Arc, AtomicU8, Condvar, Duration, Forgettable, Instant, Mutex, MutexGuard, OnceLock, Ordering,
    Weak, fence, spawn, wait_for,
};
use crate::threads::pool::{CountOut, RunningThreads};

/// The delay until the next visit of a queue whose visit panicked.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// The work of a thread for each of its queues.
pub(crate) trait Duty: 'static {
    /// The thread's view of a queue.
    type Queue: ?Sized + Send + Sync + 'static;

    /// The name of the thread.
    const THREAD: &'static str;

    /// Visits a queue. Returns the delay until the next visit, or `None` if the queue is visited on
    /// request only.
    fn visit(queue: Arc<Self::Queue>) -> Option<Duration>;
}

pub(crate) struct Agenda<D: Duty> {
    plan: Mutex<Plan<D::Queue>>,
    changed: Condvar,
    duty: PhantomData<fn() -> D>,
}

/// The visits of a thread. Queues are identified by their addresses.
struct Plan<Q: ?Sized> {
    entries: FxHashMap<usize, Entry<Q>>,
    /// The next visit of each queue that has one.
    times: BTreeSet<(Instant, usize)>,
    /// The queue that is being visited.
    visited: Option<usize>,
    /// Whether the thread is running.
    is_running: bool,
}

struct Entry<Q: ?Sized> {
    queue: Weak<Q>,
    next: Option<Instant>,
}

impl<Q: ?Sized> Plan<Q> {
    /// Plans a visit at `time`, unless there is an earlier one.
    fn request(&mut self, queue: usize, time: Instant) {
        let Some(entry) = self.entries.get_mut(&queue) else { return };
        if let Some(before) = entry.next {
            if before <= time {
                return;
            }
            self.times.remove(&(before, queue));
        }
        entry.next = Some(time);
        self.times.insert((time, queue));
    }

    fn remove(&mut self, queue: usize) {
        if let Some(Entry { next: Some(next), .. }) = self.entries.remove(&queue) {
            self.times.remove(&(next, queue));
        }
    }
}

impl<D: Duty> Default for Agenda<D> {
    fn default() -> Self {
        let plan = Plan {
            entries: FxHashMap::default(),
            times: BTreeSet::new(),
            visited: None,
            is_running: false,
        };
        Self { plan: Mutex::new(plan), changed: Condvar::new(), duty: PhantomData }
    }
}

impl<D: Duty> Agenda<D> {
    /// Adds a queue. Its first visit is after `first`, or on request if that is `None`.
    pub(crate) fn register(&self, queue: Weak<D::Queue>, first: Option<Duration>) {
        let (address, mut plan) = (address(&queue), self.plan.lock());
        plan.entries.insert(address, Entry { queue, next: None });
        if let Some(first) = first {
            plan.request(address, Instant::now() + first);
        }
        drop(plan);
        self.changed.notify_all();
    }

    /// Starts the thread if it is not running.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let mut plan = self.plan.lock();
        if !plan.is_running && !plan.entries.is_empty() {
            let itself = self.clone();
            spawn(D::THREAD.to_owned(), move || itself.run())?;
            plan.is_running = true;
        }
        Ok(())
    }

    /// Requests a visit at `time` or sooner of the queue with this address.
    pub(crate) fn request(&self, queue: usize, time: Instant) {
        self.plan.lock().request(queue, time);
        self.changed.notify_all();
    }

    pub(crate) fn unregister(&self, queue: usize) {
        self.plan.lock().remove(queue);
        self.changed.notify_all();
    }

    /// Waits until an unregistered queue is no longer being visited.
    fn wait_unvisited(&self, queue: usize) {
        let mut plan = self.plan.lock();
        while plan.visited == Some(queue) {
            plan = wait_for(&self.changed, plan, None);
        }
    }

    /// Waits until the thread has ended, or until `deadline`. The thread ends when no queue is
    /// left; while one is, this does not wait.
    #[cfg(feature = "python")]
    pub(crate) fn wait_ended(&self, deadline: Option<Instant>) {
        let mut plan = self.plan.lock();
        while plan.is_running && plan.entries.is_empty() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            plan = wait_for(&self.changed, plan, left);
        }
    }

    fn run(&self) {
        let mut plan = self.plan.lock();
        while !plan.entries.is_empty() {
            let now = Instant::now();
            plan = match plan.times.first().copied() {
                Some((due, queue)) if due <= now => self.visit(plan, queue),
                Some((due, _)) => wait_for(&self.changed, plan, Some(due - now)),
                None => wait_for(&self.changed, plan, None),
            };
        }
        plan.is_running = false;
        self.changed.notify_all();
    }

    /// Visits one queue, outside the lock.
    fn visit<'a>(
        &'a self,
        mut plan: MutexGuard<'a, Plan<D::Queue>>,
        address: usize,
    ) -> MutexGuard<'a, Plan<D::Queue>> {
        let began = Instant::now();
        plan.times.pop_first();
        let Some(entry) = plan.entries.get_mut(&address) else { return plan };
        entry.next = None;
        let Some(queue) = entry.queue.upgrade() else {
            // The queue was dropped before it was started.
            plan.remove(address);
            return plan;
        };
        plan.visited = Some(address);
        drop(plan);
        // A panic is reported where it happens. Visits of other queues continue.
        let again = catch_unwind(AssertUnwindSafe(|| D::visit(queue))).unwrap_or(Some(AFTER_PANIC));
        let mut plan = self.plan.lock();
        plan.visited = None;
        if let Some(again) = again {
            plan.request(address, began + again);
        }
        self.changed.notify_all();
        plan
    }
}

fn address<Q: ?Sized>(queue: &Weak<Q>) -> usize {
    queue.as_ptr().cast::<()>() as usize
}

static SUPERVISOR: Forgettable<Agenda<Supervise>> = Forgettable::new();

struct Supervise;

/// A target of the supervisor's visits: a queue with several drain threads, or a queue's watchdog.
pub(crate) trait Supervised: Send + Sync {
    /// Returns the delay until the next visit, or `None` if none has to follow.
    fn tick(self: Arc<Self>) -> Option<Duration>;
}

impl Duty for Supervise {
    type Queue = dyn Supervised;
    const THREAD: &'static str = "batchqueue-supervisor";

    fn visit(queue: Arc<dyn Supervised>) -> Option<Duration> {
        queue.tick()
    }
}

/// Waits until the supervisor has ended; see [`Agenda::wait_ended`].
#[cfg(feature = "python")]
pub(crate) fn wait_supervisor_ended(deadline: Option<Instant>) {
    SUPERVISOR.get().wait_ended(deadline);
}

/// Resets the supervisor in a forked child, where its thread does not exist and its lock may never
/// be released.
#[cfg(feature = "python")]
pub(crate) fn forget_supervisor() {
    SUPERVISOR.forget();
}

/// The supervisor's visits that a queue's threads have requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Visits {
    None,
    /// One, a second away.
    Rare,
    /// One per tick.
    Ticks,
}

/// The requested visits of a queue, and the means by which its threads request more.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `visits` | drain threads (raise), supervisor (clear) | drain threads |
/// | `visited` | the start of the queue, once | drain threads that request visits |
#[derive(Debug)]
pub(crate) struct Arming {
    visits: AtomicU8,
    /// The address of the visited queue.
    visited: OnceLock<usize>,
}

impl Arming {
    /// Creates the visits of a queue. One that needs no visits never requests any.
    pub(crate) fn new(needs_visits: bool) -> Self {
        let first = if needs_visits { Visits::None } else { Visits::Ticks };
        Self { visits: AtomicU8::new(first as u8), visited: OnceLock::new() }
    }

    /// Registers the queue for visits on request.
    pub(crate) fn register(&self, visited: Weak<dyn Supervised>) {
        let _ = self.visited.set(address(&visited));
        SUPERVISOR.get().register(visited, None);
    }

    /// Ends the visits of a queue that has ended, and waits for a visit in progress: that must not
    /// hold the last reference, or it would drop the user's handlers.
    pub(crate) fn unregister(&self) {
        if let Some(&visited) = self.visited.get() {
            let supervisor = SUPERVISOR.get();
            supervisor.unregister(visited);
            supervisor.wait_unvisited(visited);
        }
    }

    /// Whether at least such visits are requested. The caller has stored what it begins, and
    /// fenced.
    #[inline]
    pub(crate) fn has(&self, visits: Visits) -> bool {
        // Relaxed: ordered by the caller's fence, which pairs with the one in `clear`.
        self.visits.load(Ordering::Relaxed) >= visits as u8
    }

    /// Requests visits, the first `after` this time, unless at least such visits are already
    /// requested.
    #[cold]
    pub(crate) fn ask(&self, visits: Visits, after: Duration) {
        if self.raise(visits)
            && let Some(&visited) = self.visited.get()
        {
            let supervisor = SUPERVISOR.get();
            supervisor.request(visited, Instant::now() + after);
            if supervisor.start().is_err() {
                // The system has no thread left; the next turn tries again.
                self.clear();
            }
        }
    }

    /// Raises the level to `visits`. Returns whether the caller has to request them.
    pub(crate) fn raise(&self, visits: Visits) -> bool {
        // Relaxed: it only decides which thread requests the visits.
        self.visits.fetch_max(visits as u8, Ordering::Relaxed) < visits as u8
    }

    /// Clears the requests. The caller then checks whether a thread has begun something in between.
    pub(crate) fn clear(&self) {
        self.visits.store(Visits::None as u8, Ordering::Relaxed);
        // SeqCst: pairs with the fence of a thread that enters a partition: either that thread sees
        // that visits have ended, or the caller sees its turn.
        fence(Ordering::SeqCst);
    }
}

/// Visits of the supervisor without requests: each returns the delay until the next.
#[derive(Default)]
pub(crate) struct OwnVisits(OnceLock<Arc<dyn Supervised>>);

impl OwnVisits {
    /// Begins the visits, after `first`. If the system has no thread left, the first turn of a
    /// queue tries again.
    pub(crate) fn begin(&self, visited: Arc<dyn Supervised>, first: Duration) {
        let supervisor = SUPERVISOR.get();
        supervisor.register(Arc::downgrade(self.0.get_or_init(|| visited)), Some(first));
        let _ = supervisor.start();
    }

    /// Ends the visits, and waits for one in progress.
    pub(crate) fn end(&self) {
        if let Some(visited) = self.unregister() {
            SUPERVISOR.get().wait_unvisited(visited);
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn visited(&self) -> Option<&Arc<dyn Supervised>> {
        self.0.get()
    }

    fn unregister(&self) -> Option<usize> {
        let visited = Arc::as_ptr(self.0.get()?).cast::<()>() as usize;
        SUPERVISOR.get().unregister(visited);
        Some(visited)
    }
}

impl Drop for OwnVisits {
    fn drop(&mut self) {
        self.unregister();
    }
}

// Helper threads run user code that the control thread and the supervisor must not wait for: custom
// balancers (`control/rebalancer.rs`) and the log (`log_helper.rs`).

/// The helper threads of the process.
static HELPERS: Forgettable<RunningThreads> = Forgettable::new();

/// Starts a helper thread.
pub(crate) fn spawn_helper(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let helpers = HELPERS.get();
    helpers.count_in();
    let count_out = CountOut(helpers);
    spawn(name.to_owned(), move || {
        let _count_out = count_out;
        body();
    })
    .map(drop)
}

/// Waits until no helper is running, or until `deadline`.
#[cfg(feature = "python")]
pub(crate) fn wait_helpers_ended(deadline: Option<Instant>) {
    let helpers = HELPERS.get();
    while !helpers.is_empty() {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        helpers.wait(left, || false);
    }
}

/// Resets the helpers in a forked child, where their threads do not exist.
#[cfg(feature = "python")]
pub(crate) fn forget_helpers() {
    HELPERS.forget();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_does_not_wait_for_the_look_that_a_side_call_has_asked_for() {
        let arming = Arming::new(true);
        assert!(arming.raise(Visits::Rare));
        assert!(arming.has(Visits::Rare) && !arming.has(Visits::Ticks));
        assert!(arming.raise(Visits::Ticks));
        assert!(!arming.raise(Visits::Rare) && !arming.raise(Visits::Ticks));
        arming.clear();
        assert!(!arming.has(Visits::Rare));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::sync::AtomicU64;
    use crate::testing::loom::model;

    /// A turn begins while the visits end: either it requests more, or they continue.
    #[test]
    fn loom_turn_while_the_visits_end() {
        model(2, || {
            let shared = Arc::new((Arming::new(false), AtomicU64::new(0)));
            let drain = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (arming, turns) = &*shared;
                    turns.store(1, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    !arming.has(Visits::Ticks) && arming.raise(Visits::Ticks)
                })
            };
            let (arming, turns) = &*shared;
            arming.clear();
            let is_idle = turns.load(Ordering::Relaxed) == 0;
            let continues = !is_idle && arming.raise(Visits::Ticks);
            assert!(drain.join().unwrap() || continues);
        });
    }
}
