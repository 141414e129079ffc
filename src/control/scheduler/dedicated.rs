//! Dedicated drain threads: each belongs to one queue and does nothing else.

use crate::control::scheduler::Sleeper;
use crate::control::scheduler::running::CountOut;
use crate::error::ConfigError;
use crate::flow::turn::task::{Cycle, DrainTask};
use crate::item::Item;
use crate::shared::Control;
use crate::sync::{Arc, JoinHandle, spawn};

/// Starts one thread for each sleeper, named `batchqueue-<queue>-<n>`.
///
/// # Errors
/// The system cannot start another thread. The queue is closed then, and the threads that did start
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
                // Partitions of threads that never started would never be finished: expiry makes
                // the other threads leave.
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

/// Starts a spare thread, which is counted as running.
pub(crate) fn start_spare<T: Item>(control: &Arc<Control<T>>, index: usize) -> std::io::Result<()> {
    let (name, mine) = (format!("batchqueue-{}-{index}", control.flow.name), control.clone());
    spawn(name, move || {
        let sleeper = mine.flow.threads.spares.take(index);
        live(index, mine, sleeper);
    })
    .map(drop)
}

fn live<T: Item>(index: usize, control: Arc<Control<T>>, sleeper: Sleeper) {
    // Dropped last, so that nothing of this thread is left when a wait for the threads returns.
    let _count_out = CountOut(control.flow.ending.running().clone());
    let host = control.flow.host.clone();
    let mut task = Some(control.drain_task(index, sleeper));
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
