//! Dedicated drain threads: each belongs to one queue and does nothing else.

use crate::control::close::CloseOnPanic;
use crate::control::scheduler::Sleeper;
use crate::control::scheduler::running::CountOut;
use crate::error::ConfigError;
use crate::flow::turn::cycle::{Cycle, DrainTask};
use crate::item::Item;
use crate::shared::Shared;
use crate::sync::{Arc, JoinHandle, spawn};
use crate::thread_context::DrainScope;

/// Starts one thread for each sleeper, named `batchqueue-<queue>-<n>`.
///
/// # Errors
/// The system cannot start another thread. The queue is closed then, and the threads that did start
/// end.
pub(crate) fn start<T: Item>(
    shared: &Arc<Shared<T>>,
    sleepers: Vec<Sleeper>,
) -> Result<Vec<JoinHandle<()>>, ConfigError> {
    let threads = sleepers.len();
    let mut joins = Vec::with_capacity(threads);
    for (index, sleeper) in sleepers.into_iter().enumerate() {
        let name = format!("batchqueue-{}-{index}", shared.name);
        let mine = shared.clone();
        match spawn(name, move || live(index, mine, sleeper)) {
            Ok(handle) => joins.push(handle),
            Err(cause) => {
                // Partitions of threads that never started would never be finished: expiry makes
                // the other threads leave.
                shared.close();
                shared.expire();
                for _ in index..threads {
                    shared.ending.running().count_out();
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

/// Starts a spare thread, which is counted as running.
pub(crate) fn start_spare<T: Item>(shared: &Arc<Shared<T>>, index: usize) -> std::io::Result<()> {
    let (name, mine) = (format!("batchqueue-{}-{index}", shared.name), shared.clone());
    spawn(name, move || {
        let sleeper = mine.threads.spares.take(index);
        live(index, mine, sleeper);
    })
    .map(drop)
}

fn live<T: Item>(index: usize, shared: Arc<Shared<T>>, sleeper: Sleeper) {
    // Dropped last, so that nothing of this thread is left when a wait for the threads returns.
    let _count_out = CountOut(shared.ending.running().clone());
    let host = shared.host.clone();
    let mut task = Some(DrainTask::new(index, shared, sleeper));
    let of_task = host.clone();
    host.live(Box::new(move || {
        if let Some(dismissed) = task.take_if(run) {
            return dismissed.leave_early();
        }
        // The queue may be dropped with its last thread: its items and handlers are dropped inside
        // their host.
        of_task.enter(&mut || drop(task.take()));
    }));
}

/// Runs until the queue has ended, or the thread, which is a spare one, is dismissed: then it
/// returns `true`.
fn run<T: Item>(task: &mut DrainTask<T>) -> bool {
    let _mark = DrainScope::of(task.shared(), &task.shared().log_helper);
    let _unwinding = CloseOnPanic(task.shared().clone());
    task.note_runner();
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
