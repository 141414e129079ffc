//! The threads that drain a queue: dedicated ones that sleep between cycles, the workers of a
//! shared pool, or its callers.

use std::io;

use crate::control::state::{Control, InlineTask, TaskPlace};
use crate::error::ConfigError;
use crate::flow::turn::task::{Cycle, DrainTask};
use crate::item::Item;
use crate::sync::{
    Arc, Condvar, Duration, Instant, JoinHandle, Mutex, now, spawn, time_since, wait_for,
};
use crate::threads::context::InlineScope;
use crate::threads::park::Sleeper;
use crate::threads::pool::{After, CountOut, Live, PoolTask};
use crate::threads::pools::PoolRef;
use crate::threads::waits::{Pause, slice};

// Dedicated drain threads: each belongs to one queue and does nothing else.

/// Starts one thread for each sleeper, named `batchqueue-<queue>-<n>`.
///
/// # Errors
/// The system cannot start another thread. The queue is then closed, and the threads that did start
/// end.
pub(crate) fn start_dedicated<T: Item>(
    control: &Arc<Control<T>>,
    sleepers: Vec<Sleeper>,
) -> Result<Vec<JoinHandle<()>>, ConfigError> {
    let threads = sleepers.len();
    let mut joins = Vec::with_capacity(threads);
    for (index, sleeper) in sleepers.into_iter().enumerate() {
        let name = format!("batchqueue-{}-{index}", control.flow.name);
        let mine = control.clone();
        match spawn(name, move || live(index, mine, sleeper)) {
            Ok(handle) => joins.push(handle),
            Err(cause) => {
                // No thread will finish the partitions of those that did not start, so expiry makes
                // the others leave.
                control.close();
                control.expire();
                for _ in index..threads {
                    control.flow.ending.running().count_out();
                }
                return Err(ConfigError(format!(
                    "cannot start drain thread {} of {threads}: {cause}; ask for fewer threads",
                    index + 1
                )));
            }
        }
    }
    Ok(joins)
}

/// Starts a spare thread, already counted as running.
pub(crate) fn start_spare<T: Item>(control: &Arc<Control<T>>, index: usize) -> std::io::Result<()> {
    let (name, mine) = (format!("batchqueue-{}-{index}", control.flow.name), control.clone());
    spawn(name, move || {
        let sleeper = mine.flow.threads.spares.take(index);
        live(index, mine, sleeper);
    })
    .map(drop)
}

fn live<T: Item>(index: usize, control: Arc<Control<T>>, sleeper: Sleeper) {
    // Dropped last: when a wait for the threads returns, nothing of this thread is left.
    let _count_out = CountOut(control.flow.ending.running().clone());
    let host = control.flow.host.clone();
    let mut task = Some(control.drain_task(index, sleeper));
    let of_task = host.clone();
    host.live(Box::new(move || {
        if let Some(dismissed) = task.take_if(run) {
            return dismissed.leave_early();
        }
        // The last thread may drop the queue, whose items and handlers must be dropped inside their
        // host.
        of_task.enter(&mut || drop(task.take()));
    }));
}

/// Runs until the queue has ended. Returns `true` if the thread is a spare one that was dismissed
/// first.
fn run<T: Item>(task: &mut DrainTask<T>) -> bool {
    let _running = task.run_here();
    loop {
        match task.work() {
            Cycle::Worked => {}
            Cycle::Over => break,
            after @ (Cycle::Thin | Cycle::Empty) => {
                if let Some((attempt, limit)) = task.prepare_sleep(after) {
                    attempt.sleep(limit);
                }
            }
        }
    }
    let is_dismissed = task.is_dismissed();
    if !is_dismissed {
        task.end();
    }
    is_dismissed
}

// A queue without threads: callers drain it after each put and before each wait.
//
// One caller drains at a time. A call from inside one of the queue's handlers does not drain: the
// caller below it on the stack continues when the handler returns. A caller that is draining
// another inline queue does not wait for this one, whose caller may be waiting for that queue. The
// draining thread checks once more after releasing the lock, so no item is left behind.

/// The longest sleep before the next cycle, while a batch backs off or its handler is busy.
const MOST_SLEEP: Duration = Duration::from_millis(10);

impl<T: Item> InlineTask<T> {
    /// Takes the task, waiting up to `limit` while another caller has it.
    fn take(&self, limit: Option<Duration>) -> Result<TakenTask<'_, T>, NotTaken> {
        let began = Instant::now();
        let mut place = self.place.lock();
        loop {
            if let Some(task) = place.task.take() {
                return Ok(TakenTask { drain: self, task: Some(task) });
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
    /// Another caller does.
    Busy,
    /// The queue has ended.
    Ended,
}

/// The drain task while a caller runs it; returned on drop.
struct TakenTask<'a, T: Item> {
    drain: &'a InlineTask<T>,
    /// `None`: the queue has ended.
    task: Option<DrainTask<T>>,
}

impl<T: Item> Drop for TakenTask<'_, T> {
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
    /// A batch backs off or its handler is busy, and the caller is out of time.
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

    /// If callers drain the queue, handles what is in it, or ends it if it is closed. Returns
    /// `false` if a batch still waits after `limit` or another caller is still draining: the caller
    /// continues later. Called outside the host.
    pub(crate) fn run_inline(self: &Arc<Self>, limit: Option<Duration>) -> bool {
        let Some(drain) = self.inline.0.get() else { return true };
        let Some(scope) = InlineScope::enter(self.flow.address()) else { return true };
        let is_done = self.drain_inline(drain, &scope, limit);
        drop(scope);
        // Outside the scope, so the log may use the queue.
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
                // The other caller checks once more after returning the task.
                Err(NotTaken::Busy) => return scope.is_nested(),
            };
            let Some(task) = &mut hand.task else { return true };
            match self.drain_with(task, is_late) {
                Drained::All => {}
                Drained::Late => return false,
                Drained::Ended => {
                    let mut task = hand.task.take();
                    // This may drop the queue, whose items and handlers must be dropped inside
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

    /// Ends a closed queue that callers drain. At the deadline, items that still wait are
    /// abandoned; if a caller is inside a handler then, it ends the queue later.
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

// A queue on a shared pool: any free worker runs the next cycle of its single drain task.
//
// A rest or a sleep is a timer of the pool. The task publishes that it sleeps, checks once more,
// and leaves the worker; from then on a wake-up notifies the pool, even if the step has not quite
// ended.

struct PooledDrain<T: Item>(Mutex<Option<PooledTask<T>>>);

struct PooledTask<T: Item> {
    task: DrainTask<T>,
    /// The queue's share of the pool, released when the queue has ended.
    share: Arc<PoolRef>,
}

/// Puts the queue's drain task on its pool.
pub(crate) fn start_pooled<T: Item>(
    control: &Arc<Control<T>>,
    sleeper: Sleeper,
    share: Arc<PoolRef>,
) {
    let pool = share.pool().clone();
    let task = control.clone().drain_task(0, sleeper);
    let handle = pool.add(Arc::new(PooledDrain(Mutex::new(Some(PooledTask { task, share })))));
    // The task may run already, but no item can have been put yet.
    control.flow.threads[0].waker.notify_through(handle);
}

/// Runs the workers of a pool in the host, like the queue's own drain threads.
pub(crate) fn live_of<T: Item>(host: Arc<dyn crate::flow::handler::Host<T>>) -> Live {
    Arc::new(move |body| host.live(body))
}

/// Returns the error message for a pool that cannot start its threads.
pub(crate) fn no_threads(name: &str, size: usize, cause: &io::Error) -> String {
    format!(
        "cannot start the {size} threads of the shared scheduler {name:?}: {cause}; ask for fewer \
         threads"
    )
}

impl<T: Item> PoolTask for PooledDrain<T> {
    fn step(&self) -> After {
        // Never contended: the pool runs one step of a task at a time.
        let mut slot = self.0.lock();
        let Some(PooledTask { task, .. }) = &mut *slot else { return After::Done };
        let _running = task.run_here();
        task.wake_up();
        match task.cycle() {
            Cycle::Worked => After::Again,
            after @ (Cycle::Thin | Cycle::Empty) => match task.prepare_sleep(after) {
                Some((attempt, limit)) => {
                    attempt.leave();
                    After::Sleep(limit)
                }
                None => After::Again,
            },
            Cycle::Over => {
                task.end();
                if let Some(PooledTask { task, share }) = slot.take() {
                    let (host, running) =
                        (task.flow().host.clone(), task.flow().ending.running().clone());
                    let mut task = Some(task);
                    // This may drop the queue, whose items and handlers must be dropped inside
                    // their host.
                    host.enter(&mut || drop(task.take()));
                    drop(share);
                    running.count_out();
                }
                After::Done
            }
        }
    }
}
