//! A queue on a shared pool: its single drain task runs cycle after cycle on any free worker.
//!
//! A rest or a sleep is a timer of the pool. The task publishes that it sleeps, checks once more,
//! and leaves the worker in that state; from then on a wake-up notifies the pool, even if the step
//! has not quite ended.

use std::io;

use crate::control::scheduler::{After, Live, PoolRef, PoolTask, Sleeper};
use crate::flow::turn::task::{Cycle, DrainTask};
use crate::item::Item;
use crate::shared::Control;
use crate::sync::{Arc, Mutex};

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

/// How the workers of a pool run: like the queue's own drain threads.
pub(crate) fn live_of<T: Item>(host: Arc<dyn crate::flow::handler::host::Host<T>>) -> Live {
    Arc::new(move |body| host.live(body))
}

/// The error message for a pool that cannot start.
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
                    // The queue may be dropped here: its items and handlers are dropped inside
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
