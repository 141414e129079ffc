//! The process around the queues: its exit, and its forks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::config::Settings;
use super::exceptions;
use super::handler::{HandlerOptions, coroutine_type, forget_desks};
use super::interpreter::{
    InterpreterPause, Timeout, deadline_of, prepare_threads, run_fork_hooks, settle_in_child,
    watch_forks,
};
use super::item::{PyItem, has_gil, prepare_arrow_data};
use super::life::forget_restarts;
use super::results::{forget_lines, future_class};
use crate::control::balance::control_thread;
use crate::control::helpers;
use crate::control::scheduler::{forget_pools, live_pools};
use crate::control::supervisor;
use crate::control::waits;
use crate::flow::pause::slice;
use crate::thread_context::forget_drain_thread;
use crate::{Pause, WeakQueue};

/// How long the workers of shared pools and the control thread have to end after the last queue.
const LAST_STEPS: Duration = Duration::from_secs(1);

struct LiveQueue {
    queue: WeakQueue<PyItem>,
    shutdown_timeout: Option<f64>,
}

/// Set when the exit of the interpreter closes all queues: a queue made later would stay open.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Whether the exit of the interpreter has begun to close the queues.
#[pyfunction]
pub(crate) fn is_exiting() -> bool {
    // Relaxed: an early answer; `register` checks again under the lock that the flag is set under.
    EXITING.load(Ordering::Relaxed)
}

/// Every queue that has drain threads, in order of creation. Locked while attached and never across
/// a wait: a fork happens while no other thread is attached, with a GIL or without, and so never
/// finds the lock held.
static LIVE: Mutex<Vec<LiveQueue>> = Mutex::new(Vec::new());

/// Returns `false` if the exit has closed all queues already, and would not close this one.
pub(crate) fn register(queue: WeakQueue<PyItem>, shutdown_timeout: Option<f64>) -> bool {
    let mut live = LIVE.lock();
    if is_exiting() {
        return false;
    }
    live.retain(|other| !other.queue.is_gone());
    live.push(LiveQueue { queue, shutdown_timeout });
    true
}

/// Close every live queue, registered or not, in reverse order of creation. Accepted items are
/// delivered, within each queue's `shutdown_timeout`, counted from the call.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) -> PyResult<()> {
    forget_parent(py, false)?;
    let live = begin_exit();
    for LiveQueue { queue, .. } in &live {
        queue.close_to_outside();
    }
    let deadlines = live
        .iter()
        .map(|LiveQueue { shutdown_timeout, .. }| deadline_of(shutdown_timeout.map(Timeout)))
        .collect::<PyResult<Vec<_>>>()?;
    for (LiveQueue { queue, .. }, deadline) in live.iter().zip(deadlines).rev() {
        py.detach(|| queue.end_inline());
        queue.shutdown_with(deadline, &mut InterpreterPause(py))?;
    }
    wait_for_threads(py)
}

/// From here on `register` accepts no more queues.
fn begin_exit() -> Vec<LiveQueue> {
    let mut live = LIVE.lock();
    // Relaxed: the lock publishes it.
    EXITING.store(true, Ordering::Relaxed);
    std::mem::take(&mut *live)
}

/// Waits for the threads that queues share: none of them may return into an interpreter that
/// finalizes. A thread that is stuck in a handler is left to the guard in `guarded_call.rs`.
fn wait_for_threads(py: Python<'_>) -> PyResult<()> {
    let deadline = Some(Instant::now() + LAST_STEPS);
    for pool in live_pools() {
        while !pool.has_ended() && deadline.is_some_and(|deadline| Instant::now() < deadline) {
            InterpreterPause(py).pause(&mut |limit| {
                pool.wait_ended(slice(limit, deadline));
            })?;
        }
    }
    py.detach(|| {
        control_thread::wait_ended(deadline);
        supervisor::wait_ended(deadline);
        helpers::wait_ended(deadline);
    });
    Ok(())
}

/// Count forks, and fill all lazy statics of the bindings before they have threads. A fork during
/// an initialization would leave the child waiting for a thread that does not exist there.
///
/// Args:
///     config: A `BatchQueueConfig` with a retry policy and a balancer. Reading it fills the
///         statics that hold the names of its attributes.
///     options: A `HandlerOptions`, likewise.
#[pyfunction]
#[pyo3(signature = (config: "Any", options: "Any"))]
pub(crate) fn prepare_for_forks(
    py: Python<'_>,
    config: &Bound<'_, PyAny>,
    options: &Bound<'_, PyAny>,
) -> PyResult<()> {
    watch_forks()?;
    config.extract::<Settings<'_>>()?;
    options.extract::<HandlerOptions<'_>>()?;
    exceptions::import_all(py)?;
    coroutine_type(py)?;
    has_gil(py);
    future_class(py)?;
    prepare_threads(py);
    prepare_arrow_data(py)?;
    // Those of PyO3 itself that drain threads and producers reach.
    let class = py.get_type::<PyString>();
    class.fully_qualified_name()?;
    class.mro();
    PyList::empty(py).try_iter()?.size_hint();
    Ok(())
}

/// Forget, in a forked child, all queues of the parent: their drain threads do not exist here, and
/// their locks may be held forever. Do nothing in any other process, or for the second time.
///
/// Python's hook for forks calls this. In the child of a host written in C that forks without those
/// hooks, every entry into the package whose state a parent may have left calls it, and it runs
/// them.
///
/// Args:
///     in_hook: Whether the hook calls.
#[pyfunction]
#[pyo3(signature = (in_hook=false))]
pub(crate) fn forget_parent(py: Python<'_>, in_hook: bool) -> PyResult<()> {
    let is_new = settle_in_child(|| {
        std::mem::forget(std::mem::take(&mut *LIVE.lock()));
        forget_pools();
        control_thread::forget();
        supervisor::forget();
        helpers::forget();
        waits::forget();
        forget_desks();
        forget_drain_thread();
        forget_restarts();
        forget_lines();
    });
    if is_new && !in_hook && has_gil(py) { run_fork_hooks(py) } else { Ok(()) }
}
