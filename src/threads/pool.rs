//! A pool of workers that several queues share: one task per queue, and no worker ever sleeps on
//! behalf of a single task.
//!
//! One lock guards everything. It is held for a little bookkeeping per turn, that is per batch and
//! not per item, and queues on a shared pool have little traffic: more locks would only add
//! interleavings. No task runs or is dropped under it.
//!
//! `README.md` in this folder describes the protocol, and shows why no task is forgotten.

#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{fmt, io};

use rustc_hash::FxHashMap;

use crate::sync::{
    Arc, Condvar, Deadline, Duration, Mutex, MutexGuard, spawn, thread_local, wait_for,
};

/// How many workers a pool may have while some of them are blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Twice the pool's size: for waits that may never end.
    Twice,
    /// No limit: for waits that each task has at most one of.
    None,
}

/// Workers and their tasks. The pool runs until it is closed, whether or not references to it
/// remain.
pub(crate) struct Pool {
    name: String,
    live: Live,
    /// Threads that have not ended. Each counts itself out as its very last act.
    running: Arc<RunningThreads>,
    size: usize,
    state: Mutex<PoolState>,
    /// Wakes waiting workers. Notified once per task that enters the queue, and by
    /// [`Pool::pass_on`].
    work: Condvar,
}

struct PoolState {
    tasks: Tasks,
    /// Workers that have not decided to leave.
    workers: usize,
    /// Workers that are blocked while a [`Compensation`] exists.
    blocked: usize,
    /// Blocked workers that the limit does not count.
    beyond_limit: usize,
    /// Workers that wait for work, including those notified but not yet awake.
    waiting: usize,
    /// When a waiting worker will wake for the first timer.
    keeper: Option<Deadline>,
    /// The number of workers ever started, for their names.
    started: usize,
}

impl PoolState {
    /// Ends a worker's blocking wait.
    fn leave(&mut self, limit: Limit) {
        self.blocked -= 1;
        self.beyond_limit -= usize::from(limit == Limit::None);
    }

    /// Whether more workers can run than the pool's size allows, because a blocked one has resumed.
    fn has_surplus(&self, size: usize) -> bool {
        self.workers - self.blocked > size
    }

    /// Whether no worker will wake in time for the first timer.
    fn lacks_keeper(&self) -> bool {
        self.tasks.first_timer().is_some_and(|first| self.keeper.is_none_or(|kept| first < kept))
    }
}

impl Pool {
    /// Starts `size` workers, at least one, in threads named `batchqueue-<name>-<n>`.
    pub(crate) fn start(name: &str, size: usize, live: Live) -> io::Result<Arc<Self>> {
        let size = size.max(1);
        let state = PoolState {
            tasks: Tasks::default(),
            workers: size,
            blocked: 0,
            beyond_limit: 0,
            waiting: 0,
            keeper: None,
            started: size,
        };
        let pool = Arc::new(Self {
            name: name.to_owned(),
            live,
            running: Arc::new(RunningThreads::new(0)),
            size,
            state: Mutex::new(state),
            work: Condvar::new(),
        });
        for number in 0..size {
            if let Err(cause) = spawn_worker(&pool, number) {
                pool.close();
                return Err(cause);
            }
        }
        Ok(pool)
    }

    /// Adds a task and queues it immediately. On a closed pool, the task counts as done.
    pub(crate) fn add(self: &Arc<Self>, task: Arc<dyn PoolTask>) -> TaskHandle {
        let mut state = self.state.lock();
        let added = state.tasks.add(task);
        if added.is_ok() {
            self.wake_worker(&state);
        }
        // Released before a refused task is dropped with `added`.
        drop(state);
        TaskHandle { pool: self.clone(), id: added.ok() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The number of workers that the pool was started with.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Announces that the calling worker is about to wait for something that may need a worker of
    /// this pool: another worker replaces it until the guard is dropped. Returns `None` if the pool
    /// already has twice its size in workers, or if the system cannot start another thread. The
    /// worker must not wait then.
    pub(crate) fn begin_blocking(self: &Arc<Self>, limit: Limit) -> Option<Compensation> {
        debug_assert!(self.runs_current_thread(), "only a worker of the pool blocks it");
        let mut state = self.state.lock();
        // Enough workers remain if another has resumed and the surplus has not left yet.
        let enough = state.has_surplus(self.size);
        if !enough && limit == Limit::Twice && state.workers - state.beyond_limit >= 2 * self.size {
            return None;
        }
        state.blocked += 1;
        state.beyond_limit += usize::from(limit == Limit::None);
        if !enough {
            let number = state.started;
            state.started += 1;
            state.workers += 1;
            drop(state);
            if let Err(cause) = spawn_worker(self, number) {
                let name = &self.name;
                log::error!(
                    target: "batchqueue",
                    "pool {name}: no thread to replace a worker that blocks: {cause}"
                );
                let mut state = self.state.lock();
                state.workers -= 1;
                state.leave(limit);
                return None;
            }
        }
        Some(Compensation { pool: self.clone(), limit })
    }

    /// Whether the calling thread is a worker of this pool.
    pub(crate) fn runs_current_thread(&self) -> bool {
        works_for(self)
    }

    /// Lets the workers end once the task queue is empty, and gives up sleeping tasks. Idempotent.
    /// Does not wait, so a worker may call it.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        let given_up = state.tasks.close();
        self.work.notify_all();
        drop(state);
        drop(given_up);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.running.is_empty()
    }

    /// Waits until a worker ends or `limit` has passed. May return early. Returns whether all
    /// workers have ended.
    #[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
    pub(crate) fn wait_ended(&self, limit: Option<Duration>) -> bool {
        self.running.wait(limit, || false);
        self.has_ended()
    }

    // ---- for workers

    fn wait_for_work<'a>(&self, mut state: MutexGuard<'a, PoolState>) -> MutexGuard<'a, PoolState> {
        // Only one worker, the keeper, wakes for the first timer.
        let keeps = if state.lacks_keeper() { state.tasks.first_timer() } else { None };
        if keeps.is_some() {
            state.keeper = keeps;
        }
        state.waiting += 1;
        // If the timer is due by now, this wait ends immediately.
        let limit = keeps.map(|deadline| deadline.time_left().unwrap_or_default());
        state = wait_for(&self.work, state, limit);
        state.waiting -= 1;
        // Unless another worker has become keeper for an earlier timer. If both keep the same
        // deadline, this forgets the other, which costs a wake-up but never loses a timer.
        if keeps.is_some() && state.keeper == keeps {
            state.keeper = None;
        }
        state
    }

    /// Wakes another worker if queued tasks are left, or a timer that no worker will wake for. The
    /// last step of a worker before it turns away from the queue.
    fn pass_on(&self, state: &PoolState) {
        if state.tasks.has_queued() || state.lacks_keeper() {
            self.wake_worker(state);
        }
    }

    /// Wakes a waiting worker. Others check the queue before they wait.
    fn wake_worker(&self, state: &PoolState) {
        if state.waiting > 0 {
            self.work.notify_one();
        }
    }

    /// Returns the number of workers, and how many of them wait for work.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn workers(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.workers, state.waiting)
    }
}

impl Employer for Pool {
    fn name(&self) -> &str {
        &self.name
    }

    fn live(&self) -> &Live {
        &self.live
    }

    fn running(&self) -> &Arc<RunningThreads> {
        &self.running
    }

    /// Waits for a task. Returns `None` if this worker must leave; it is then not counted.
    fn next_turn(&self) -> Option<Turn> {
        let mut state = self.state.lock();
        let turn = loop {
            if state.has_surplus(self.size) {
                break None;
            }
            if let Some(turn) = state.tasks.take() {
                break Some(turn);
            }
            if state.tasks.is_closed() {
                break None;
            }
            state = self.wait_for_work(state);
        };
        if turn.is_none() {
            state.workers -= 1;
        }
        self.pass_on(&state);
        turn
    }

    fn give_back(&self, turn: &Turn, after: After) {
        self.state.lock().tasks.give_back(turn, after);
    }

    /// Notes that a worker has ended without running its body.
    fn lost_worker(&self) {
        self.state.lock().workers -= 1;
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// A handle that wakes one task.
#[derive(Debug, Clone)]
pub(crate) struct TaskHandle {
    pool: Arc<Pool>,
    /// `None` if the pool was already closed.
    id: Option<TaskId>,
}

impl TaskHandle {
    /// Makes the task run a full step after this call, unless it is done.
    ///
    /// That step sees everything the caller wrote before: both take the lock in between.
    pub(crate) fn notify(&self) {
        let Some(id) = self.id else { return };
        let mut state = self.pool.state.lock();
        if state.tasks.notify(id) {
            self.pool.wake_worker(&state);
        }
    }
}

/// A guard while another worker replaces the one that created it.
#[derive(Debug)]
#[must_use = "the worker counts as blocked until this is dropped"]
pub(crate) struct Compensation {
    pool: Arc<Pool>,
    limit: Limit,
}

impl Drop for Compensation {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.leave(self.limit);
        if state.has_surplus(self.pool.size) {
            self.pool.wake_worker(&state);
        }
    }
}

// The tasks of a pool: their states, the queue of tasks that wait for a worker, and the timers of
// sleeping tasks.
//
// ```text
//   add ──▶ Queued ──take──▶ Running ──notify──▶ RunningNotified
//             ▲ ▲               │ │                   │
//             │ └── Again ──────┘ │                   │
//             ├── Again, Sleep ───┼───────────────────┘
//             │                   └─ Sleep ──▶ Idle
//             └── notify, or its timer ─────────┘     Done, from either Running: no longer listed
// ```
//
// Plain data without locks or threads. All access is under the pool's lock.

/// A drain task. The pool never runs a task's `step` on two workers concurrently.
pub(crate) trait PoolTask: Send + Sync + 'static {
    /// Does a piece of work, and returns how to continue. Must not wait, except after
    /// [`Pool::begin_blocking`].
    ///
    /// A panic is logged and ends the task like [`After::Done`]: its half-finished state cannot be
    /// trusted with another step, and repeating it might never end.
    ///
    /// [`Pool::begin_blocking`]: crate::threads::pool::Pool::begin_blocking
    fn step(&self) -> After;
}

/// How a task continues after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// There is more to do: the task goes to the back of the queue.
    Again,
    /// There is nothing to do until a notification arrives or this time has passed.
    Sleep(Duration),
    /// The task is done. The pool drops it, on the worker and outside the lock.
    Done,
}

/// The id of a task within its pool. Ids are never reused, so a handle that outlives its task has
/// no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskId(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskState {
    /// Asleep, with a timer at this deadline.
    Idle(Deadline),
    /// In the queue, once.
    Queued,
    /// A worker has its [`Turn`].
    Running,
    /// A worker has its [`Turn`], and the task was notified since.
    RunningNotified,
}

struct TaskRecord {
    task: Arc<dyn PoolTask>,
    state: TaskState,
}

/// The exclusive right to run a task, from `take` to `give_back`.
pub(crate) struct Turn {
    id: TaskId,
    task: Arc<dyn PoolTask>,
}

impl Turn {
    pub(crate) fn step(&self) -> After {
        self.task.step()
    }
}

#[derive(Default)]
pub(crate) struct Tasks {
    entries: FxHashMap<TaskId, TaskRecord>,
    queue: VecDeque<TaskId>,
    timers: BTreeSet<(Deadline, TaskId)>,
    added: u64,
    closed: bool,
}

impl Tasks {
    /// Adds a task. Returns it if the table is closed, for the caller to drop outside the lock.
    pub(crate) fn add(&mut self, task: Arc<dyn PoolTask>) -> Result<TaskId, Arc<dyn PoolTask>> {
        if self.closed {
            return Err(task);
        }
        let id = TaskId(self.added);
        self.added += 1;
        self.entries.insert(id, TaskRecord { task, state: TaskState::Queued });
        self.queue.push_back(id);
        Ok(id)
    }

    /// Notifies a task. Returns whether it entered the queue.
    pub(crate) fn notify(&mut self, id: TaskId) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        match entry.state {
            TaskState::Idle(timer) => {
                // The timer ends with its sleep, so it never fires during a later one.
                self.timers.remove(&(timer, id));
                entry.state = TaskState::Queued;
                self.queue.push_back(id);
                true
            }
            TaskState::Running | TaskState::RunningNotified => {
                entry.state = TaskState::RunningNotified;
                false
            }
            TaskState::Queued => false,
        }
    }

    /// Takes the task that has waited longest for a worker. Tasks whose timers are due join the
    /// back of the queue first.
    pub(crate) fn take(&mut self) -> Option<Turn> {
        while let Some(&(deadline, id)) = self.timers.first()
            && deadline.time_left().is_none()
        {
            self.notify(id);
        }
        let id = self.queue.pop_front()?;
        let entry = self.entries.get_mut(&id)?;
        entry.state = TaskState::Running;
        Some(Turn { id, task: entry.task.clone() })
    }

    /// Ends a turn. This drops no task, because the turn still holds it; the caller drops the turn
    /// outside the lock.
    pub(crate) fn give_back(&mut self, turn: &Turn, after: After) {
        let id = turn.id;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match (entry.state, after) {
            // An unseen notification does not keep the task, which has declared itself done.
            (_, After::Done) => {
                self.entries.remove(&id);
            }
            (TaskState::Running, After::Sleep(_)) if self.closed => {
                self.entries.remove(&id);
            }
            (TaskState::Running, After::Sleep(limit)) => {
                let timer = Deadline::after(limit);
                entry.state = TaskState::Idle(timer);
                self.timers.insert((timer, id));
            }
            (_, After::Again | After::Sleep(_)) => {
                entry.state = TaskState::Queued;
                self.queue.push_back(id);
            }
        }
    }

    /// Whether a task waits for a worker.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    fn first_timer(&self) -> Option<Deadline> {
        self.timers.first().map(|&(deadline, _)| deadline)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Refuses further tasks, and gives up sleeping ones, which the caller drops outside the lock.
    /// Queued and running tasks are given up when they would sleep.
    pub(crate) fn close(&mut self) -> Vec<Arc<dyn PoolTask>> {
        self.closed = true;
        let resting = std::mem::take(&mut self.timers);
        resting
            .into_iter()
            .filter_map(|(_, id)| self.entries.remove(&id))
            .map(|entry| entry.task)
            .collect()
    }
}

// A worker of a shared pool runs turn after turn inside the pool's host, and finally counts itself
// out.

/// The whole life of a drain thread.
pub type ThreadBody = Box<dyn FnOnce() + Send>;

/// Runs the body of a worker. If the function never calls it, the pool continues with one worker
/// less.
pub(crate) type Live = Arc<dyn Fn(ThreadBody) + Send + Sync>;

/// A worker's view of its pool.
pub(crate) trait Employer: Send + Sync + 'static {
    fn name(&self) -> &str;

    fn live(&self) -> &Live;

    /// Threads that have not ended. Each counts itself out as its very last act.
    fn running(&self) -> &Arc<RunningThreads>;

    /// Waits for a task. Returns `None` if this worker must leave; it is then not counted.
    fn next_turn(&self) -> Option<Turn>;

    fn give_back(&self, turn: &Turn, after: After);

    /// Notes that a worker has ended without running its body.
    fn lost_worker(&self);
}

thread_local! {
    // Not `const`: loom's macro has no such form.
    #[allow(clippy::missing_const_for_thread_local)]
    /// The address of the pool whose worker this thread is, or 0 if it is not a worker. A worker
    /// keeps its pool alive.
    static WORKS_FOR: Cell<usize> = Cell::new(0);
}

/// Whether the calling thread is a worker of `pool`.
fn works_for<P: Employer>(pool: &P) -> bool {
    WORKS_FOR.with(Cell::get) == std::ptr::from_ref(pool) as usize
}

/// Whether the calling thread is a worker of any pool.
#[cfg(feature = "python")]
pub(crate) fn is_worker() -> bool {
    WORKS_FOR.with(Cell::get) != 0
}

/// Resets the worker state in a forked child, whose only thread is not a worker even if the forking
/// thread was.
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
pub(crate) fn forget_worker() {
    WORKS_FOR.with(|works_for| works_for.set(0));
}

/// Starts a worker that the pool has already counted.
fn spawn_worker<P: Employer>(pool: &Arc<P>, number: usize) -> io::Result<()> {
    pool.running().count_in();
    // Created outside the thread's body, so that it is dropped even if the thread does not start.
    let count_out = CountOut(pool.running().clone());
    let pool = pool.clone();
    spawn(format!("batchqueue-{}-{number}", pool.name()), move || {
        let _count_out = count_out;
        live(pool);
    })
    // Workers are not joined: the count shows when they have ended, and the last reference to a
    // pool may be dropped on a worker.
    .map(drop)
}

/// Runs a worker. Takes the pool by value, to drop it before the worker is counted out.
#[allow(clippy::needless_pass_by_value)]
fn live<P: Employer>(pool: Arc<P>) {
    WORKS_FOR.with(|works_for| works_for.set(Arc::as_ptr(&pool) as usize));
    let mut idle = IdleWorker(Some(pool.clone()));
    (pool.live())(Box::new(move || {
        let Some(pool) = idle.0.take() else { return };
        while let Some(turn) = pool.next_turn() {
            run(&*pool, turn);
        }
    }));
}

/// A worker that has not run its body. Dropped in that state, it is lost to the pool.
struct IdleWorker<P: Employer>(Option<Arc<P>>);

impl<P: Employer> Drop for IdleWorker<P> {
    fn drop(&mut self) {
        if let Some(pool) = &self.0 {
            pool.lost_worker();
        }
    }
}

fn run<P: Employer>(pool: &P, turn: Turn) {
    let after = guarded(pool.name(), || turn.step()).unwrap_or(After::Done);
    pool.give_back(&turn, after);
    // Drops a task that is done, outside the lock: its end may close this very pool.
    guarded(pool.name(), || drop(turn));
}

/// Runs `body`. Returns `None` if it panicked, which is logged: a task never ends its worker.
fn guarded<R>(pool: &str, body: impl FnOnce() -> R) -> Option<R> {
    let panic = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => return Some(result),
        Err(panic) => panic,
    };
    let cause = panic.downcast_ref::<&str>().copied();
    let cause = cause
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    log::error!(target: "batchqueue", "pool {pool}: a task panicked and is given up: {cause}");
    None
}

// The number of threads of a queue or of a pool that have not ended.

/// The number of drain threads or workers that have not ended. Outlives the queue or pool, so that
/// a thread can count itself out as its last act, after everything it held is gone.
#[derive(Debug)]
pub(crate) struct RunningThreads {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug)]
struct Counts {
    running: usize,
    /// Threads that have not begun to end.
    unended: usize,
}

impl Default for RunningThreads {
    fn default() -> Self {
        Self::new(0)
    }
}

impl RunningThreads {
    pub(crate) fn new(count: usize) -> Self {
        let counts = Counts { running: count, unended: count };
        Self { counts: Mutex::new(counts), changed: Condvar::new() }
    }

    /// Counts a thread in, before it starts.
    pub(crate) fn count_in(&self) {
        let mut counts = self.counts.lock();
        counts.running += 1;
        counts.unended += 1;
    }

    /// Counts a thread in and returns `true`, unless all have ended.
    pub(crate) fn count_in_if_any(&self) -> bool {
        let mut counts = self.counts.lock();
        let is_any = counts.running > 0;
        counts.running += usize::from(is_any);
        counts.unended += usize::from(is_any);
        is_any
    }

    /// Marks the beginning of a thread's end: its last step before it lets go of its queue, or the
    /// end of one that did not start. Returns whether it is the last.
    pub(crate) fn begin_end(&self) -> bool {
        let mut counts = self.counts.lock();
        counts.unended -= 1;
        counts.unended == 0
    }

    pub(crate) fn count_out(&self) {
        self.counts.lock().running -= 1;
        self.changed.notify_all();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.counts.lock().running == 0
    }

    /// Waits until a thread ends, [`notify`](Self::notify) is called because the wait `is_over`, or
    /// `limit` has passed. May return early.
    pub(crate) fn wait(&self, limit: Option<Duration>, is_over: impl Fn() -> bool) {
        let counts = self.counts.lock();
        if counts.running > 0 && !is_over() {
            drop(wait_for(&self.changed, counts, limit));
        }
    }

    /// Ends all waits. Called after the state that `is_over` in [`wait`](Self::wait) checks has
    /// changed.
    pub(crate) fn notify(&self) {
        // Under the lock: a thread that checked before this is waiting by now.
        drop(self.counts.lock());
        self.changed.notify_all();
    }
}

/// A guard that counts a thread out when dropped, however the thread ends.
pub(crate) struct CountOut(pub(crate) Arc<RunningThreads>);

impl Drop for CountOut {
    fn drop(&mut self) {
        self.0.count_out();
    }
}

#[cfg(all(test, not(loom)))]
mod tasks_tests {
    use super::*;
    use crate::testing::threads::task;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_sleep_that_ends_early_removes_its_timer() {
        let mut tasks = Tasks::default();
        let Ok(id) = tasks.add(task(|| After::Done)) else { panic!("an open table takes a task") };
        let turn = tasks.take().unwrap();
        tasks.give_back(&turn, After::Sleep(HOUR));
        assert!(tasks.notify(id));
        assert_eq!(tasks.first_timer(), None);
        let turn = tasks.take().unwrap();
        tasks.give_back(&turn, After::Sleep(3 * HOUR));
        assert!(tasks.first_timer().unwrap().time_left().unwrap() > 2 * HOUR);
        assert!(tasks.take().is_none());
    }
}
