//! The tasks of one pool: their states, the queue of those that wait for a worker, and the timers
//! of those that rest.
//!
//! ```text
//!   add ──▶ Queued ──take──▶ Running ──notify──▶ RunningNotified
//!             ▲ ▲               │ │                   │
//!             │ └── Again ──────┘ │                   │
//!             ├── Again, Sleep ───┼───────────────────┘
//!             │                   └─ Sleep ──▶ Idle
//!             └── notify, or its timer ─────────┘           Done, from either Running: no longer in the table
//! ```
//!
//! Plain data without locks or threads: everything here happens under the lock of the pool.

use std::collections::{BTreeSet, VecDeque};

use rustc_hash::FxHashMap;

use crate::rules::{Rule, rule_off};
use crate::sync::{Arc, Deadline, Duration};

/// One drain task. The pool never runs `step` of one task on two workers at once.
pub(crate) trait PoolTask: Send + Sync + 'static {
    /// Does a piece of work and says how to go on. It must not wait, except inside
    /// [`Pool::begin_blocking`].
    ///
    /// A panic is logged and ends the task as [`After::Done`] would: what it left behind half done
    /// cannot be trusted to another step, and repeating it could go on for ever.
    ///
    /// [`Pool::begin_blocking`]: super::Pool::begin_blocking
    fn step(&self) -> After;
}

/// How a task goes on after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// There is more to do: to the back of the queue.
    Again,
    /// Nothing to do until a notification, or until this time has passed.
    Sleep(Duration),
    /// Never again. The pool drops the task, on the worker and under no lock.
    Done,
}

/// Names a task within its pool. Never used twice, so a handle that outlives its task means
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TaskId(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Rests, with a timer at this deadline.
    Idle(Deadline),
    /// In the queue, once.
    Queued,
    /// A worker has its [`Turn`].
    Running,
    /// The same, and it was notified since.
    RunningNotified,
}

struct TaskRecord {
    task: Arc<dyn PoolTask>,
    state: State,
}

/// The right to run a task, and the proof that nobody else does: there is one from `take` to
/// `give_back`.
pub(super) struct Turn {
    id: TaskId,
    task: Arc<dyn PoolTask>,
}

impl Turn {
    pub(super) fn step(&self) -> After {
        self.task.step()
    }
}

#[derive(Default)]
pub(super) struct Tasks {
    entries: FxHashMap<TaskId, TaskRecord>,
    queue: VecDeque<TaskId>,
    timers: BTreeSet<(Deadline, TaskId)>,
    added: u64,
    closed: bool,
}

impl Tasks {
    /// Gives the task back when the table is closed, for the caller to drop outside the lock.
    pub(super) fn add(&mut self, task: Arc<dyn PoolTask>) -> Result<TaskId, Arc<dyn PoolTask>> {
        if self.closed {
            return Err(task);
        }
        let id = TaskId(self.added);
        self.added += 1;
        self.entries.insert(id, TaskRecord { task, state: State::Queued });
        self.queue.push_back(id);
        Ok(id)
    }

    /// Whether the task has come into the queue by this.
    pub(super) fn notify(&mut self, id: TaskId) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        match entry.state {
            State::Idle(timer) => {
                // The timer goes with the rest that it was for: it never fires into a later one.
                self.timers.remove(&(timer, id));
                entry.state = State::Queued;
                self.queue.push_back(id);
                true
            }
            State::Running if rule_off(Rule::OneWorkerPerTask) => {
                self.queue.push_back(id);
                true
            }
            State::Running if rule_off(Rule::RememberNotification) => false,
            State::Running | State::RunningNotified => {
                entry.state = State::RunningNotified;
                false
            }
            State::Queued => false,
        }
    }

    /// The task that has waited longest for a worker. Timers that are due go to the back of the
    /// queue before.
    pub(super) fn take(&mut self) -> Option<Turn> {
        while let Some(&(deadline, id)) = self.timers.first()
            && deadline.time_left().is_none()
        {
            self.notify(id);
        }
        let id = self.queue.pop_front()?;
        let entry = self.entries.get_mut(&id)?;
        entry.state = State::Running;
        Some(Turn { id, task: entry.task.clone() })
    }

    /// The end of a turn. No task is dropped by this, because the turn still holds it; the caller
    /// drops that outside the lock.
    pub(super) fn give_back(&mut self, turn: &Turn, after: After) {
        let id = turn.id;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match (entry.state, after) {
            // A notification that a task has not seen does not keep it: it said that nothing can
            // follow.
            (_, After::Done) => {
                self.entries.remove(&id);
            }
            (State::Running, After::Sleep(_)) if self.closed => {
                self.entries.remove(&id);
            }
            (State::Running, After::Sleep(limit)) => {
                let timer = Deadline::after(limit);
                entry.state = State::Idle(timer);
                self.timers.insert((timer, id));
            }
            (_, After::Again | After::Sleep(_)) => {
                entry.state = State::Queued;
                self.queue.push_back(id);
            }
        }
    }

    /// Whether a task waits for a worker.
    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn first_timer(&self) -> Option<Deadline> {
        self.timers.first().map(|&(deadline, _)| deadline)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// No task comes in any more, and none rests any more: those that rest are given up and
    /// returned, for the caller to drop outside the lock; those that are queued or run will be when
    /// they want to rest.
    pub(super) fn close(&mut self) -> Vec<Arc<dyn PoolTask>> {
        self.closed = true;
        let resting = std::mem::take(&mut self.timers);
        resting
            .into_iter()
            .filter_map(|(_, id)| self.entries.remove(&id))
            .map(|entry| entry.task)
            .collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::control::scheduler::support::task;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_rest_that_ends_early_takes_its_timer_along() {
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
