//! Threads of the process that come back to queues at set times: one runs balancers
//! (`balance/control_thread.rs`), one lets other threads take over from one that is held up
//! (`supervisor.rs`).
//!
//! Such a thread starts when its first queue asks for it, and ends with the last queue.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `plan` | queues that start, ask for a visit, or end; the thread | the same |

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustc_hash::FxHashMap;

use crate::sync::{Arc, Condvar, Duration, Instant, Mutex, MutexGuard, Weak, spawn, wait_for};

/// When a thread comes back to a queue whose visit panicked.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// What a thread does for each of its queues.
pub(crate) trait Duty: 'static {
    /// A queue as the thread sees it.
    type Queue: ?Sized + Send + Sync + 'static;

    /// The name of the thread.
    const THREAD: &'static str;

    /// Visits a queue. Returns after what time it comes again, if not on request only.
    fn visit(queue: Arc<Self::Queue>) -> Option<Duration>;
}

pub(crate) struct Agenda<D: Duty> {
    plan: Mutex<Plan<D::Queue>>,
    changed: Condvar,
    duty: PhantomData<fn() -> D>,
}

/// Queues are known by their address.
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
    /// Adds a queue, which is visited after `first`, or only on request.
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

    /// Asks for a visit at `time`, or sooner. `queue`: its address.
    pub(crate) fn request(&self, queue: usize, time: Instant) {
        self.plan.lock().request(queue, time);
        self.changed.notify_all();
    }

    pub(crate) fn unregister(&self, queue: usize) {
        self.plan.lock().remove(queue);
        self.changed.notify_all();
    }

    /// Waits until the queue, which was unregistered, is not being visited any more.
    pub(crate) fn wait_unvisited(&self, queue: usize) {
        let mut plan = self.plan.lock();
        while plan.visited == Some(queue) {
            plan = wait_for(&self.changed, plan, None);
        }
    }

    /// Waits until the thread has ended, which it does when no queue is left, or until `deadline`.
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
            // It was dropped before it was started.
            plan.remove(address);
            return plan;
        };
        plan.visited = Some(address);
        drop(plan);
        // A panic is reported where it happens; the other queues are visited all the same.
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
