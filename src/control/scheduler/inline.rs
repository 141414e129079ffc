//! A queue without threads: the callers drain it, after each put and before each wait.
//!
//! One caller drains at a time. A caller from inside a handler of the queue does not: the one below
//! it on the stack continues when the handler returns. A caller that drains another inline queue
//! does not wait for a second one, which may wait for the first: the thread that drains checks once
//! more after the lock is free, so that no item stays behind.

use crate::control::close::CloseOnPanic;
use crate::control::scheduler::Sleeper;
use crate::flow::pause::{Pause, slice};
use crate::flow::turn::cycle::{Cycle, DrainTask};
use crate::item::Item;
use crate::shared::Shared;
use crate::sync::{Arc, Duration, Instant, Mutex, OnceLock, now, time_since};
use crate::thread_context::{DrainScope, InlineScope};

/// The longest sleep before the next cycle, while a batch backs off or its handler is busy.
const MOST_SLEEP: Duration = Duration::from_millis(10);

/// The drain task of an inline queue; empty once the queue has ended.
pub(crate) struct InlineDrain<T: Item>(OnceLock<Mutex<Option<DrainTask<T>>>>);

impl<T: Item> Default for InlineDrain<T> {
    /// That of a queue with threads.
    fn default() -> Self {
        Self(OnceLock::new())
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
pub(crate) fn start<T: Item>(shared: &Arc<Shared<T>>, sleeper: Sleeper) {
    let task = DrainTask::new(0, shared.clone(), sleeper);
    let _ = shared.inline.0.set(Mutex::new(Some(task)));
}

impl<T: Item> Shared<T> {
    /// Whether callers drain the queue.
    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        self.inline.0.get().is_some()
    }

    /// If the callers drain the queue: handles what is in it, or ends it if it is closed. Returns
    /// `false` if a batch still waits after `limit`: the caller continues later. It is outside the
    /// host.
    pub(crate) fn run_inline(self: &Arc<Self>, limit: Option<Duration>) -> bool {
        let Some(inline) = self.inline.0.get() else { return true };
        let Some(scope) = InlineScope::enter(self.address()) else { return true };
        let is_done = self.drain_inline(inline, &scope, limit);
        drop(scope);
        // Now the log may use the queue.
        self.log_helper.write_lines();
        is_done
    }

    fn drain_inline(
        self: &Arc<Self>,
        inline: &Mutex<Option<DrainTask<T>>>,
        scope: &InlineScope,
        limit: Option<Duration>,
    ) -> bool {
        let began = now();
        let is_late = || limit.is_some_and(|limit| time_since(began) >= limit);
        loop {
            let slot = if scope.is_nested() { inline.try_lock() } else { Some(inline.lock()) };
            // Another thread drains, and checks once more when it has freed the lock.
            let Some(mut slot) = slot else { return true };
            let Some(task) = &mut *slot else { return true };
            match self.drain_with(task, is_late) {
                Drained::All => {}
                Drained::Late => return false,
                Drained::Ended => {
                    let mut task = slot.take();
                    // The queue may be dropped here: its items and handlers are dropped inside
                    // their host.
                    self.host.clone().enter(&mut || drop(task.take()));
                    self.ending.running().count_out();
                    return true;
                }
            }
            drop(slot);
            if self.is_all_handled() && !self.ending.is_closing() {
                return true;
            }
        }
    }

    /// Ends a closed queue that its callers drain. What waits when the deadline has come is
    /// abandoned.
    pub(crate) fn end_inline<P: Pause>(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), P::Interrupt> {
        let mut is_done = false;
        while !is_done {
            pause.pause(&mut |limit| {
                is_done = self.run_inline(slice(limit, deadline));
                if !is_done && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    self.expire();
                }
            })?;
        }
        Ok(())
    }

    fn drain_with(
        self: &Arc<Self>,
        task: &mut DrainTask<T>,
        is_late: impl Fn() -> bool,
    ) -> Drained {
        let _mark = DrainScope::of(self);
        let _unwinding = CloseOnPanic(self.clone());
        task.note_runner();
        // No batch waits to become full.
        let _flushing = self.flushes.begin();
        loop {
            self.is_all_handled();
            task.wake_up();
            match task.cycle() {
                Cycle::Worked | Cycle::Thin => {}
                Cycle::Over => {
                    task.end();
                    return Drained::Ended;
                }
                Cycle::Empty if self.is_all_handled() && !self.ending.is_closing() => {
                    return Drained::All;
                }
                Cycle::Empty if is_late() => return Drained::Late,
                Cycle::Empty => {
                    if let Some((attempt, limit)) = task.prepare_sleep(Cycle::Empty) {
                        attempt.leave();
                        self.flushes.wait(|| false, Some(limit.min(MOST_SLEEP)));
                    }
                }
            }
        }
    }
}
