//! A queue without threads: the callers drain it, after each put and before each wait.
//!
//! One caller drains at a time. A caller from inside a handler of the queue does not: the one below
//! it on the stack continues when the handler returns. A caller that drains another inline queue
//! does not wait for a second one, which may wait for the first: the thread that drains checks once
//! more after the lock is free, so that no item stays behind.

use crate::control::scheduler::Sleeper;
use crate::flow::pause::{Pause, slice};
use crate::flow::turn::task::{Cycle, DrainTask};
use crate::item::Item;
use crate::shared::{Control, InlineTask, TaskPlace};
use crate::sync::{Arc, Condvar, Duration, Instant, Mutex, now, time_since, wait_for};
use crate::thread_context::InlineScope;

/// The longest sleep before the next cycle, while a batch backs off or its handler is busy.
const MOST_SLEEP: Duration = Duration::from_millis(10);

impl<T: Item> InlineTask<T> {
    /// Takes the task, waiting while another caller has it.
    fn take(&self, limit: Option<Duration>) -> Result<TaskInHand<'_, T>, NotTaken> {
        let began = Instant::now();
        let mut place = self.place.lock();
        loop {
            if let Some(task) = place.task.take() {
                return Ok(TaskInHand { drain: self, task: Some(task) });
            }
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if place.has_ended {
                return Err(NotTaken::Ended);
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Err(NotTaken::Busy);
            }
            place = wait_for(&self.returned, place, left);
        }
    }
}

/// Why a caller does not drain the queue.
enum NotTaken {
    /// Another one does.
    Busy,
    /// The queue has ended.
    Ended,
}

/// The drain task in the hand of a caller, who returns it with this.
struct TaskInHand<'a, T: Item> {
    drain: &'a InlineTask<T>,
    /// `None`: the queue has ended.
    task: Option<DrainTask<T>>,
}

impl<T: Item> Drop for TaskInHand<'_, T> {
    fn drop(&mut self) {
        let mut place = self.drain.place.lock();
        place.task = self.task.take();
        place.has_ended = place.task.is_none();
        drop(place);
        self.drain.returned.notify_all();
    }
}

/// How far a caller has drained the queue.
enum Drained {
    All,
    /// A batch backs off, or its handler is busy, and the caller has no more time.
    Late,
    /// The queue has ended.
    Ended,
}

/// Makes the callers drain the queue.
pub(crate) fn start_inline<T: Item>(control: &Arc<Control<T>>, sleeper: Sleeper) {
    control.log_helper.leave_to_callers();
    let task = control.clone().drain_task(0, sleeper);
    let place = Mutex::new(TaskPlace { task: Some(task), has_ended: false });
    let _ = control.inline.0.set(InlineTask { place, returned: Condvar::new() });
}

impl<T: Item> Control<T> {
    /// Whether callers drain the queue.
    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        self.inline.0.get().is_some()
    }

    /// If the callers drain the queue: handles what is in it, or ends it if it is closed. Returns
    /// `false` if a batch still waits after `limit`, or another caller is still at work: the caller
    /// continues later. It is outside the host.
    pub(crate) fn run_inline(self: &Arc<Self>, limit: Option<Duration>) -> bool {
        let Some(drain) = self.inline.0.get() else { return true };
        let Some(scope) = InlineScope::enter(self.flow.address()) else { return true };
        let is_done = self.drain_inline(drain, &scope, limit);
        drop(scope);
        // Now the log may use the queue.
        self.log_helper.write_in_call();
        is_done
    }

    fn drain_inline(
        self: &Arc<Self>,
        drain: &InlineTask<T>,
        scope: &InlineScope,
        limit: Option<Duration>,
    ) -> bool {
        let began = now();
        let left = || limit.map(|limit| limit.saturating_sub(time_since(began)));
        let is_late = || left().is_some_and(|left| left.is_zero());
        loop {
            let wait = if scope.is_nested() { Some(Duration::ZERO) } else { left() };
            let mut hand = match drain.take(wait) {
                Ok(hand) => hand,
                Err(NotTaken::Ended) => return true,
                // The other caller checks once more when it has returned the task.
                Err(NotTaken::Busy) => return scope.is_nested(),
            };
            let Some(task) = &mut hand.task else { return true };
            match self.drain_with(task, is_late) {
                Drained::All => {}
                Drained::Late => return false,
                Drained::Ended => {
                    let mut task = hand.task.take();
                    // The queue may be dropped here: its items and handlers are dropped inside
                    // their host.
                    self.flow.host.clone().enter(&mut || drop(task.take()));
                    self.flow.ending.running().count_out();
                    return true;
                }
            }
            drop(hand);
            if self.is_all_handled() && !self.flow.ending.is_closing() {
                return true;
            }
        }
    }

    /// Ends a closed queue that its callers drain. What waits when the deadline has come is
    /// abandoned; a caller that is inside a handler then ends the queue later.
    pub(crate) fn end_inline<P: Pause>(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), P::Interrupt> {
        let mut is_over = false;
        while !is_over {
            pause.pause(&mut |limit| {
                is_over = self.run_inline(slice(limit, deadline));
                if !is_over && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    self.expire();
                    self.run_inline(Some(Duration::ZERO));
                    is_over = true;
                }
            })?;
        }
        Ok(())
    }

    fn drain_with(&self, task: &mut DrainTask<T>, is_late: impl Fn() -> bool) -> Drained {
        let _running = task.run_here();
        // No batch waits to become full.
        let _flushing = self.flow.flushes.begin();
        loop {
            self.is_all_handled();
            task.wake_up();
            match task.cycle() {
                Cycle::Worked | Cycle::Thin => {}
                Cycle::Over => {
                    task.end();
                    return Drained::Ended;
                }
                Cycle::Empty if self.is_all_handled() && !self.flow.ending.is_closing() => {
                    return Drained::All;
                }
                Cycle::Empty if is_late() => return Drained::Late,
                Cycle::Empty => {
                    if let Some((attempt, limit)) = task.prepare_sleep(Cycle::Empty) {
                        attempt.leave();
                        self.flow.flushes.wait(|| false, Some(limit.min(MOST_SLEEP)));
                    }
                }
            }
        }
    }
}
