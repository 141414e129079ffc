//! A pool of workers that several queues share: one task per queue, and no worker ever sleeps for a
//! single one of them.
//!
//! One lock guards everything. It is held for a few steps of bookkeeping per turn, that is per
//! batch and not per item, and queues on a shared pool are those with little traffic; several locks
//! would buy nothing but more orders in which things can happen. Nothing that belongs to a task
//! runs or is dropped under it.
//!
//! The protocol, and why no task is forgotten: `README.md` beside this file.

use std::{fmt, io};

use super::running::RunningThreads;
use super::tasks::{After, PoolTask, TaskId, Tasks, Turn};
use super::worker::{Employer, Live, spawn_worker, works_for};
use crate::rules::{Rule, rule_off};
use crate::sync::{Arc, Condvar, Deadline, Duration, Mutex, MutexGuard, wait_for};

/// How many workers a pool may have while some of them are blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Twice as many as places: for waits that may not end by themselves.
    Twice,
    /// As many as it takes: for waits of which there is at most one per task.
    None,
}

/// Workers and their tasks. It works until it is closed, whoever holds it.
pub(crate) struct Pool {
    name: String,
    live: Live,
    /// Threads that have not ended; counted out by each as its very last act.
    running: Arc<RunningThreads>,
    size: usize,
    state: Mutex<State>,
    /// For workers that wait. Notified once per task that enters the queue, and by
    /// [`Pool::pass_on`].
    work: Condvar,
}

struct State {
    tasks: Tasks,
    /// Workers that have not decided to leave.
    workers: usize,
    /// Those of them that wait inside a [`Compensation`].
    blocked: usize,
    /// Those of the blocked that need not heed the limit.
    beyond_limit: usize,
    /// Those of them that wait for work. One that was told and is on its way still counts.
    waiting: usize,
    /// The moment up to which timers are provided for: a waiting worker will wake by itself then.
    keeper: Option<Deadline>,
    /// Workers ever started, for their names.
    started: usize,
}

impl State {
    /// A worker's wait has ended.
    fn leave(&mut self, limit: Limit) {
        self.blocked -= 1;
        self.beyond_limit -= usize::from(limit == Limit::None);
    }

    /// More workers can run than the pool has places for: one that blocked has come back.
    fn has_surplus(&self, size: usize) -> bool {
        self.workers - self.blocked > size
    }

    /// Whether the first timer comes before anybody wakes for it.
    fn lacks_keeper(&self) -> bool {
        self.tasks.first_timer().is_some_and(|first| self.keeper.is_none_or(|kept| first < kept))
    }
}

impl Pool {
    /// Starts `size` workers, at least one, in threads named `batchqueue-<name>-<n>`.
    pub(crate) fn start(name: &str, size: usize, live: Live) -> io::Result<Arc<Self>> {
        let size = size.max(1);
        let state = State {
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

    /// Takes a task in and queues it at once. On a closed pool the task is as good as done.
    pub(crate) fn add(self: &Arc<Self>, task: Arc<dyn PoolTask>) -> TaskHandle {
        let mut state = self.state.lock();
        let added = state.tasks.add(task);
        if added.is_ok() {
            self.wake_worker(&state);
        }
        // Before a refused task, which dies with `added`.
        drop(state);
        TaskHandle { pool: self.clone(), id: added.ok() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The number of workers that it was started with.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Says that the calling worker is about to wait for something that may need a worker of this
    /// pool, so that another one takes its place until the guard is dropped. `None`: there are
    /// twice as many workers as places already, or the system has no thread left; then it must not
    /// wait.
    pub(crate) fn begin_blocking(self: &Arc<Self>, limit: Limit) -> Option<Compensation> {
        debug_assert!(self.runs_current_thread(), "only a worker of the pool blocks it");
        let mut state = self.state.lock();
        // Without this worker there are still enough, when one has come back and none has left for
        // it yet.
        let enough = state.has_surplus(self.size) || rule_off(Rule::Compensate);
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
                log::error!(target: "batchqueue", "pool {}: no thread for a worker that blocks: {cause}", self.name);
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
    /// Idempotent; does not wait, so a worker may call it as well.
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

    /// Waits until a worker ends or `limit` has passed; may return early. Whether all workers have
    /// ended.
    #[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
    pub(crate) fn wait_ended(&self, limit: Option<Duration>) -> bool {
        self.running.wait(limit);
        self.has_ended()
    }

    // ---- for workers
    // -----------------------------------------------------------------------------------------

    fn wait_for_work<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        // One worker wakes for the first timer and not all of them.
        let keeps = if state.lacks_keeper() { state.tasks.first_timer() } else { None };
        if keeps.is_some() {
            state.keeper = keeps;
        }
        state.waiting += 1;
        // A timer that has become due since the look at it is waited for no longer.
        let limit = keeps.map(|deadline| deadline.time_left().unwrap_or_default());
        state = wait_for(&self.work, state, limit);
        state.waiting -= 1;
        // Unless another one has come to wake earlier. If two wake at the same moment, one of them
        // is forgotten here: that costs a wake-up and never a timer.
        if keeps.is_some() && state.keeper == keeps {
            state.keeper = None;
        }
        state
    }

    /// What a worker does last before it turns away from the queue: if it leaves tasks behind, or a
    /// timer that nobody wakes for, another one must look.
    fn pass_on(&self, state: &State) {
        if (state.tasks.has_queued() || state.lacks_keeper()) && !rule_off(Rule::PassOn) {
            self.wake_worker(state);
        }
    }

    /// Workers that do not wait look at the queue before they do.
    fn wake_worker(&self, state: &State) {
        if state.waiting > 0 {
            self.work.notify_one();
        }
    }

    /// Workers in all, and those that wait for work.
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

    /// Waits for a task. `None`: this worker is to leave, and counts no more.
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

    /// A worker has ended without having worked.
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

/// Wakes one task.
#[derive(Debug, Clone)]
pub(crate) struct TaskHandle {
    pool: Arc<Pool>,
    /// `None`: the pool was closed before.
    id: Option<TaskId>,
}

impl TaskHandle {
    /// The task runs once more, from its beginning, after this. Nothing happens when it is done.
    ///
    /// What the caller wrote before is visible to that run: both hold the lock in between.
    pub(crate) fn notify(&self) {
        let Some(id) = self.id else { return };
        let mut state = self.pool.state.lock();
        if state.tasks.notify(id) {
            self.pool.wake_worker(&state);
        }
    }
}

/// While it lives, another worker stands in for the one that made it.
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
