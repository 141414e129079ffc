//! The tasks of a pool: their states, the queue of tasks that wait for a worker, and the timers of
//! tasks that sleep.
//!
//! ```text
//!   add ──▶ Queued ──take──▶ Running ──notify──▶ RunningNotified
//!             ▲ ▲               │ │                   │
//!             │ └── Again ──────┘ │                   │
//!             ├── Again, Sleep ───┼───────────────────┘
//!             │                   └─ Sleep ──▶ Idle
//!             └── notify, or its timer ─────────┘     Done, from either Running: no longer listed
//! ```
//!
//! Plain data without locks or threads: all access is under the pool's lock.

use std::collections::{BTreeSet, VecDeque};

use rustc_hash::FxHashMap;

use crate::sync::{Arc, Deadline, Duration};

/// A drain task. The pool never runs `step` of a task on two workers concurrently.
pub(crate) trait PoolTask: Send + Sync + 'static {
    /// Does a piece of work and returns how to continue. It must not wait, except after
    /// [`Pool::begin_blocking`].
    ///
    /// A panic is logged and ends the task like [`After::Done`]: its half-finished state cannot be
    /// trusted to another step, and repeating it might never end.
    ///
    /// [`Pool::begin_blocking`]: super::Pool::begin_blocking
    fn step(&self) -> After;
}

/// How a task continues after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// There is more to do: it goes to the back of the queue.
    Again,
    /// There is nothing to do until a notification, or until this time has passed.
    Sleep(Duration),
    /// The task is done. The pool drops it, on the worker and outside the lock.
    Done,
}

/// Identifies a task within its pool. Ids are never reused, so a handle that outlives its task has
/// no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TaskId(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskState {
    /// Sleeps, with a timer at this deadline.
    Idle(Deadline),
    /// In the queue, once.
    Queued,
    /// A worker has its [`Turn`].
    Running,
    /// A worker has its [`Turn`], and it was notified since.
    RunningNotified,
}

struct TaskRecord {
    task: Arc<dyn PoolTask>,
    state: TaskState,
}

/// The right to run a task, and the proof that no other worker does: it exists from `take` to
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
    /// Adds a task. Returns it if the table is closed, for the caller to drop outside the lock.
    pub(super) fn add(&mut self, task: Arc<dyn PoolTask>) -> Result<TaskId, Arc<dyn PoolTask>> {
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
    pub(super) fn notify(&mut self, id: TaskId) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        match entry.state {
            TaskState::Idle(timer) => {
                // The timer is removed with its sleep, so it never fires during a later one.
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

    /// Takes the task that has waited longest for a worker. Tasks whose timers are due enter the
    /// back of the queue first.
    pub(super) fn take(&mut self) -> Option<Turn> {
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
    pub(super) fn give_back(&mut self, turn: &Turn, after: After) {
        let id = turn.id;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match (entry.state, after) {
            // An unseen notification does not keep the task: it has declared that it is done.
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
    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn first_timer(&self) -> Option<Deadline> {
        self.timers.first().map(|&(deadline, _)| deadline)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Accepts no further task, and lets none sleep any more. Sleeping tasks are given up and
    /// returned, for the caller to drop outside the lock; queued and running tasks are given up
    /// when they would sleep.
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
