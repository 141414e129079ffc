//! The process around the queues: its exit, and its forks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::PyTypeInfo;
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
use super::results::future_class;
use crate::control::agenda::{forget_supervisor, wait_supervisor_ended};
use crate::control::balance::control_thread;
use crate::control::helpers::{forget_helpers, wait_helpers_ended};
use crate::control::log_helper::PATIENCE;
use crate::control::scheduler::{forget_pools, live_pools};
use crate::control::waits;
use crate::flow::pause::slice;
use crate::thread_context::forget_drain_thread;
use crate::{Pause, WeakQueue};

/// How long the workers of shared pools and the control thread have to end after the last queue.
const LAST_STEPS: Duration = Duration::from_secs(1);

/// How many more callbacks than live queues `atexit` keeps before those of ended queues go.
const ENDED_CALLBACKS: usize = 256;

struct LiveQueue {
    /// Its place among all queues, in order of creation. A queue that a forked child restarts has
    /// the place of its original.
    number: u64,
    queue: WeakQueue<PyItem>,
    shutdown_timeout: Option<f64>,
}

/// Every queue that has drain threads, and how far the exit of the interpreter has come.
struct LiveQueues {
    /// In order of creation.
    queues: Vec<LiveQueue>,
    /// How many callbacks `atexit` has.
    callbacks: usize,
    /// What the queues that the exit has ended took of their time.
    spent: Duration,
    /// How long the exit has waited for the log.
    spent_on_log: Duration,
    /// Whether Ctrl-C has ended the wait for a queue.
    is_interrupted: bool,
    /// Set by the last callback: a queue made later would stay open.
    is_over: bool,
}

/// Locked while attached and never across a wait: a fork happens while no other thread is attached,
/// with a GIL or without, and so never finds the lock held.
static LIVE: Mutex<LiveQueues> = Mutex::new(LiveQueues {
    queues: Vec::new(),
    callbacks: 0,
    spent: Duration::ZERO,
    spent_on_log: Duration::ZERO,
    is_interrupted: false,
    is_over: false,
});

/// Set when the exit of the interpreter ends the first queue.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Whether the exit of the interpreter has begun to close the queues.
#[pyfunction]
pub(crate) fn is_exiting() -> bool {
    // Relaxed: the answer may be out of date when it is returned.
    EXITING.load(Ordering::Relaxed)
}

/// Whether the exit has closed all queues, and would not close another.
pub(crate) fn is_exit_over() -> bool {
    LIVE.lock().is_over
}

/// Lets the exit of the interpreter end a queue. Returns `false` if that has ended the last one.
///
/// `atexit` calls the last callback first, so what the application registered before is called when
/// the queue has delivered.
pub(crate) fn register(
    py: Python<'_>,
    number: u64,
    queue: WeakQueue<PyItem>,
    shutdown_timeout: Option<f64>,
) -> PyResult<bool> {
    let has_ended_callbacks = {
        let mut live = LIVE.lock();
        if live.is_over {
            return Ok(false);
        }
        live.queues.retain(|other| !other.queue.is_gone());
        let place = live.queues.partition_point(|other| other.number < number);
        live.queues.insert(place, LiveQueue { number, queue, shutdown_timeout });
        live.callbacks += 1;
        live.callbacks > 2 * live.queues.len() + ENDED_CALLBACKS
    };
    let atexit = py.import("atexit")?;
    if has_ended_callbacks {
        // One pass for many queues: it compares all callbacks of the process, each by its own rule.
        if let Err(error) = atexit.call_method1("unregister", (EndedQueues,)) {
            error.write_unraisable(py, None);
        }
        let mut live = LIVE.lock();
        live.callbacks = live.queues.len();
    }
    atexit.call_method1("register", (QueueExit { number },))?;
    Ok(true)
}

/// What `atexit` has of a queue. It ends the queue and all that were made after it, the newest
/// first.
#[pyclass(frozen, module = "batchqueue._core")]
struct QueueExit {
    number: u64,
}

#[pymethods]
impl QueueExit {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        forget_parent(py, false)?;
        let queues = {
            let mut live = LIVE.lock();
            let first = live.queues.partition_point(|other| other.number < self.number);
            live.queues.split_off(first)
        };
        end(py, &queues)
    }
}

/// Equals the callback of each queue that is gone.
#[pyclass(frozen, module = "batchqueue._core")]
struct EndedQueues;

#[pymethods]
impl EndedQueues {
    #[allow(clippy::unused_self)] // as Python calls it
    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<QueueExit>().is_ok_and(|callback| {
            let (live, number) = (LIVE.lock(), callback.get().number);
            live.queues.binary_search_by_key(&number, |queue| queue.number).is_err()
        })
    }
}

/// End every queue that is left, in reverse order of creation: the last callback of the exit.
/// Accepted items are delivered, within each queue's `shutdown_timeout`.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) -> PyResult<()> {
    forget_parent(py, false)?;
    let queues = {
        let mut live = LIVE.lock();
        live.is_over = true;
        std::mem::take(&mut live.queues)
    };
    let ended = end(py, &queues);
    wait_for_threads(py).and(ended)
}

/// Ends queues, the last one first, within what is left of their time. From Ctrl-C on, a queue that
/// has items left abandons them; handlers that have none left are closed as usual.
fn end(py: Python<'_>, queues: &[LiveQueue]) -> PyResult<()> {
    // Relaxed: as in `is_exiting`.
    EXITING.store(true, Ordering::Relaxed);
    let deadline_after = |spent: Duration, shutdown_timeout: Option<f64>| {
        // The queues before it took their part, so that the exit as a whole takes no longer than
        // the longest timeout.
        let left = shutdown_timeout.map(|timeout| (timeout - spent.as_secs_f64()).max(0.0));
        deadline_of(left.map(Timeout))
    };
    let spent = LIVE.lock().spent;
    for LiveQueue { queue, shutdown_timeout, .. } in queues {
        queue.close_to_outside(deadline_after(spent, *shutdown_timeout)?);
    }
    let mut ended = Ok(());
    for LiveQueue { queue, shutdown_timeout, .. } in queues.iter().rev() {
        let began = Instant::now();
        let (spent, is_interrupted) = {
            let live = LIVE.lock();
            (live.spent, live.is_interrupted)
        };
        let deadline = if is_interrupted && !queue.is_all_handled() {
            Some(began)
        } else {
            deadline_after(spent, *shutdown_timeout)?
        };
        let mut result = queue.end_with(deadline, &mut InterpreterPause(py));
        if result.is_err() {
            let _ = queue.end_with(Some(began), &mut InterpreterPause(py));
        }
        LIVE.lock().spent += began.elapsed();
        result = result.and(wait_logged(py, queue));
        if let Err(interrupt) = result {
            LIVE.lock().is_interrupted = true;
            ended = ended.and(Err(interrupt));
        }
    }
    ended
}

/// Waits for the lines of a queue. Many queues and a log that hangs keep the exit no longer than
/// one of them.
fn wait_logged(py: Python<'_>, queue: &WeakQueue<PyItem>) -> PyResult<()> {
    let began = Instant::now();
    let left = PATIENCE.saturating_sub(LIVE.lock().spent_on_log);
    let waited = queue.wait_logged(began + left, &mut InterpreterPause(py));
    LIVE.lock().spent_on_log += began.elapsed();
    waited
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
        wait_supervisor_ended(deadline);
        wait_helpers_ended(deadline);
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
    QueueExit::type_object(py);
    EndedQueues::type_object(py);
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
        {
            let mut live = LIVE.lock();
            std::mem::forget(std::mem::take(&mut live.queues));
            (live.spent, live.spent_on_log) = (Duration::ZERO, Duration::ZERO);
            live.is_interrupted = false;
        }
        forget_pools();
        control_thread::forget();
        forget_supervisor();
        forget_helpers();
        waits::forget();
        forget_desks();
        forget_drain_thread();
        forget_restarts();
    });
    if is_new && !in_hook && has_gil(py) { run_fork_hooks(py) } else { Ok(()) }
}
