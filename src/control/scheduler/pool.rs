//! A pool of workers that several queues share: one task per queue, and no worker ever sleeps on
//! behalf of a single task.
//!
//! One lock guards everything. It is held for a little bookkeeping per turn, that is per batch and
//! not per item, and queues on a shared pool have little traffic: several locks would only add
//! interleavings. No code of a task runs under it, and no task is dropped under it.
//!
//! `README.md` in this folder describes the protocol, and why no task is forgotten.

use std::{fmt, io};

use super::running::RunningThreads;
use super::tasks::{After, PoolTask, TaskId, Tasks, Turn};
use super::worker::{Employer, Live, spawn_worker, works_for};
use crate::sync::{Arc, Condvar, Deadline, Duration, Mutex, MutexGuard, wait_for};

/// How many workers a pool may have while some of them are blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Twice the pool's size: for waits that may never end on their own.
    Twice,
    /// No limit: for waits of which there is at most one per task.
    None,
}

/// Workers and their tasks. The pool runs until it is closed, whether or not references to it are
/// left.
pub(crate) struct Pool {
    name: String,
    live: Live,
    /// Threads that have not ended. Each counts itself out as its very last act.
    running: Arc<RunningThreads>,
    size: usize,
    state: Mutex<PoolState>,
    /// For workers that wait. Notified once per task that enters the queue, and by
    /// [`Pool::pass_on`].
    work: Condvar,
}

struct PoolState {
    tasks: Tasks,
    /// Workers that have not decided to leave.
    workers: usize,
    /// Workers that are blocked while a [`Compensation`] exists.
    blocked: usize,
    /// Blocked workers that the limit does not apply to.
    beyond_limit: usize,
    /// Workers that wait for work, including those that were notified and have not woken yet.
    waiting: usize,
    /// The deadline at which a waiting worker will wake for the first timer.
    keeper: Option<Deadline>,
    /// The number of workers ever started, for their names.
    started: usize,
}

impl PoolState {
    /// Called when a worker's wait has ended.
    fn leave(&mut self, limit: Limit) {
        self.blocked -= 1;
        self.beyond_limit -= usize::from(limit == Limit::None);
    }

    /// Whether more workers can run than the pool's size, because a blocked one has resumed.
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

    /// Adds a task and queues it immediately. On a closed pool the task counts as done.
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
    /// this pool: another worker replaces it until the guard is dropped. Returns `None` if there
    /// are already twice as many workers as the pool's size, or if the system cannot start another
    /// thread. The worker must not wait then.
    pub(crate) fn begin_blocking(self: &Arc<Self>, limit: Limit) -> Option<Compensation> {
        debug_assert!(self.runs_current_thread(), "only a worker of the pool blocks it");
        let mut state = self.state.lock();
        // Without this worker there are still enough if another has resumed and the surplus has not
        // left yet.
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

    /// Lets the workers end when the queue of tasks is empty, and gives up the tasks that rest.
    /// Idempotent. Does not wait, so a worker may call it too.
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
        // Only one worker wakes for the first timer.
        let keeps = if state.lacks_keeper() { state.tasks.first_timer() } else { None };
        if keeps.is_some() {
            state.keeper = keeps;
        }
        state.waiting += 1;
        // A timer that has become due in the meantime makes this wait end immediately.
        let limit = keeps.map(|deadline| deadline.time_left().unwrap_or_default());
        state = wait_for(&self.work, state, limit);
        state.waiting -= 1;
        // Unless another worker will wake earlier. If two wake at the same moment, one of them is
        // forgotten here, which costs a wake-up but never loses a timer.
        if keeps.is_some() && state.keeper == keeps {
            state.keeper = None;
        }
        state
    }

    /// The last step of a worker before it leaves the queue: if it leaves tasks behind, or a timer
    /// that no worker will wake for, it wakes another worker.
    fn pass_on(&self, state: &PoolState) {
        if state.tasks.has_queued() || state.lacks_keeper() {
            self.wake_worker(state);
        }
    }

    /// Workers that are not waiting check the queue before they do.
    fn wake_worker(&self, state: &PoolState) {
        if state.waiting > 0 {
            self.work.notify_one();
        }
    }

    /// The number of workers, and of those that wait for work.
    #[cfg(all(test, not(loom)))]
    pub(super) fn workers(&self) -> (usize, usize) {
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

    /// Waits for a task. Returns `None` if this worker must leave; it no longer counts then.
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

    /// Called when a worker has ended without running its body.
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
    /// Makes the task run a full step after this call. Does nothing if the task is done.
    ///
    /// What the caller wrote before is visible to that step: both hold the lock in between.
    pub(crate) fn notify(&self) {
        let Some(id) = self.id else { return };
        let mut state = self.pool.state.lock();
        if state.tasks.notify(id) {
            self.pool.wake_worker(&state);
        }
    }
}

/// While it exists, another worker replaces the one that created it.
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
