//! The process around the queues: its exit and its forks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;

use super::handler::forget_tokens;
use super::interpreter::{InterpreterPause, deadline_of, enter_child};
use super::item::PyItem;
use crate::control::balance::control_thread;
use crate::control::scheduler::{forget_pools, live_pools};
use crate::control::shutdown_waits;
use crate::flow::produce::slice;
use crate::thread_context::forget_drain_thread;
use crate::{Pause, WeakQueue};

/// What the workers of shared pools and the control thread get to end, when there is no queue any
/// more.
const LAST_STEPS: Duration = Duration::from_secs(1);

struct Live {
    queue: WeakQueue<PyItem>,
    shutdown_timeout: Option<f64>,
}

/// Set when the interpreter's exit closes all queues: a queue made later would never be closed.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Whether the exit of the interpreter has begun to close the queues.
#[pyfunction]
pub(crate) fn is_exiting() -> bool {
    // Relaxed: an early answer; `register` asks again under the lock that it is set under.
    EXITING.load(Ordering::Relaxed)
}

/// Every queue that has drain threads, in order of creation. Locked while attached and never across
/// a wait, so a fork, for which no other thread is attached, with a GIL or without, never finds it
/// locked.
static LIVE: Mutex<Vec<Live>> = Mutex::new(Vec::new());

/// False: the exit has closed all queues, and would not close this one.
pub(crate) fn register(queue: WeakQueue<PyItem>, shutdown_timeout: Option<f64>) -> bool {
    let mut live = LIVE.lock();
    if is_exiting() {
        return false;
    }
    live.retain(|one| !one.queue.is_gone());
    live.push(Live { queue, shutdown_timeout });
    true
}

/// Closes every live queue, registered or not, the last created first: what was accepted is
/// delivered, within each queue's `shutdown_timeout`, counted from now.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) -> PyResult<()> {
    let live = begin_exit();
    for one in &live {
        one.queue.close_to_outside();
    }
    let deadlines =
        live.iter().map(|one| deadline_of(one.shutdown_timeout)).collect::<PyResult<Vec<_>>>()?;
    for (one, deadline) in live.iter().zip(deadlines).rev() {
        one.queue.shutdown_with(deadline, &mut InterpreterPause(py))?;
    }
    wait_for_threads(py)
}

/// From here on `register` takes no more.
fn begin_exit() -> Vec<Live> {
    let mut live = LIVE.lock();
    // Relaxed: the lock publishes it.
    EXITING.store(true, Ordering::Relaxed);
    std::mem::take(&mut *live)
}

/// Threads that belong to no queue alone: none of them may come back into an interpreter that
/// finalizes. One that is stuck in a handler is left to the guard in `guarded_call.rs`.
fn wait_for_threads(py: Python<'_>) -> PyResult<()> {
    let deadline = Some(Instant::now() + LAST_STEPS);
    for pool in live_pools() {
        while !pool.has_ended() && deadline.is_some_and(|deadline| Instant::now() < deadline) {
            InterpreterPause(py).pause(&mut |limit| {
                pool.wait_ended(slice(limit, deadline));
            })?;
        }
    }
    py.detach(|| control_thread::wait_ended(deadline));
    Ok(())
}

/// In a forked child: the drain threads are not here, and their locks may be held for ever.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    enter_child();
    std::mem::forget(std::mem::take(&mut *LIVE.lock()));
    forget_pools();
    control_thread::forget();
    shutdown_waits::forget();
    forget_tokens();
    forget_drain_thread();
}
