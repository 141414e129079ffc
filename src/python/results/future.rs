//! `FutureBase`: what `concurrent.futures.Future` is, in Rust.
//!
//! A future of the standard library makes a lock and a condition when it is made, which costs more
//! than to queue and handle the item. Here both are made only for `concurrent.futures.wait` and
//! `as_completed`, which use them directly; `result` waits without them.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::PyTimeoutError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;

use super::settler::{Ended, Settler, call_back, error_value};
use super::state::{Ending, Known, Mail, Sleeper, Standard, State, Watch, exception_of};
use super::submissions::Submissions;
use crate::Pause;
use crate::control::scheduler::is_worker;
use crate::flow::pause::slice;
use crate::python::errors::submitted_before_fork;
use crate::python::exceptions::{BatchQueueError, CancelledError, InvalidStateError};
use crate::python::interpreter::{GuardedRef, InterpreterPause, Timeout, deadline_of, generation};
use crate::thread_context::{drained_queue, on_drain_thread};

/// The class that `submit` makes instances of: `FutureBase` and `concurrent.futures.Future`.
pub(crate) fn future_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let import =
        || PyResult::Ok(py.import("batchqueue.queues.callbacks")?.getattr("ItemFuture")?.unbind());
    Ok(CLASS.get_or_try_init(py, import)?.bind(py))
}

/// The methods of a future. Threads may call them concurrently.
#[pyclass(frozen, subclass, module = "batchqueue._core")]
pub(crate) struct FutureBase {
    known: Mutex<Known>,
    generation: u32,
}

impl FutureBase {
    /// All that the future knows. In a forked child, what is not done never will be: it ends here.
    fn known(&self, py: Python<'_>) -> MutexGuard<'_, Known> {
        let known = self.known.lock();
        if self.generation == generation() || known.is_done() {
            return known;
        }
        drop(known);
        let error = Ending::error(&error_value(py, submitted_before_fork()));
        let mut known = self.known.lock();
        if !known.is_done() {
            known.end(error);
            // They belong to the parent: to threads, loops and a queue that are not here.
            std::mem::forget((known.watch.take(), known.listed.take()));
        }
        known
    }

    /// The future is in a queue's list.
    pub(super) fn list(&self, submissions: Arc<Submissions>, place: usize) {
        self.known.lock().listed = Some((submissions, place));
    }

    /// Its end goes to an event loop as well.
    pub(crate) fn send_to(&self, mail: Mail) {
        self.known.lock().watch().mail = Some(mail);
    }

    /// Its item is about to be in a call. Returns `false` if it was cancelled.
    pub(crate) fn begin(&self) -> bool {
        let mut known = self.known.lock();
        if known.state == State::Pending {
            known.state = State::Running;
        }
        known.state != State::Cancelled
    }

    pub(super) fn end(&self, py: Python<'_>, ending: Ending) -> Ended {
        let mut known = self.known.lock();
        if !known.may_end(&ending) {
            drop(known);
            return Ended::Before(ending);
        }
        if let Some(standard) = &known.standard {
            let standard = standard.clone_ref(py);
            return Ended::Conditional(standard, ending);
        }
        known.end(ending);
        Ended::Now(self.leave(known))
    }

    /// Ends a future whose condition is held.
    pub(super) fn end_held(&self, ending: Ending) -> Ended {
        let mut known = self.known.lock();
        if !known.may_end(&ending) {
            drop(known);
            return Ended::Before(ending);
        }
        known.end(ending);
        Ended::Now(self.leave(known))
    }

    /// Takes it off the queue's list.
    fn leave(&self, mut known: MutexGuard<'_, Known>) -> Option<Box<Watch>> {
        let (watch, listed) = (known.watch.take(), known.listed.take());
        drop(known);
        // After the lock is released. The caller has another reference.
        drop(listed.and_then(|(submissions, place)| submissions.remove(place, self)));
        watch
    }

    /// The error of a future whose item is gone; `None` if the future is done.
    pub(super) fn lost_error(&self) -> Option<PyErr> {
        let known = self.known.lock();
        if known.is_done() {
            return None;
        }
        let submissions = known.listed.as_ref().map(|(submissions, _)| submissions.clone());
        drop(known);
        Some(submissions.map_or_else(
            || BatchQueueError::new_err("the item was dropped without a result"),
            |submissions| submissions.abandoned_error(),
        ))
    }

    /// Waits until the future is done.
    fn wait(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<()> {
        let (sleeper, would_wait_forever) = {
            let mut known = self.known(py);
            if known.is_done() {
                return Ok(());
            }
            let listed = known.listed.as_ref().filter(|_| timeout.is_none() && on_drain_thread());
            let would_wait_forever = listed.is_some_and(|(submissions, _)| {
                (submissions.is_pooled && is_worker())
                    || drained_queue() == Some(submissions.core())
            });
            let sleeper = Arc::<Sleeper>::default();
            if !would_wait_forever {
                known.watch().sleepers.push(sleeper.clone());
            }
            (sleeper, would_wait_forever)
        };
        if would_wait_forever {
            return Err(BatchQueueError::new_err(
                "a handler waits for a result of the queue that it handles, or of one on the same \
                 shared scheduler, which may need the thread that waits: use add_done_callback, \
                 or give a timeout",
            ));
        }
        let waited = sleep(py, &sleeper, timeout);
        if !matches!(waited, Ok(true)) {
            let mut known = self.known.lock();
            if let Some(watch) = &mut known.watch {
                watch.sleepers.retain(|other| !Arc::ptr_eq(other, &sleeper));
            }
            let is_done = known.is_done();
            drop(known);
            if !waited? && !is_done {
                return Err(PyTimeoutError::new_err(()));
            }
        }
        Ok(())
    }

    fn standard(&self, py: Python<'_>) -> PyResult<Standard> {
        if let Some(standard) = &self.known(py).standard {
            return Ok(standard.clone_ref(py));
        }
        let made = Standard {
            condition: py.import("threading")?.getattr("Condition")?.call0()?.unbind(),
            waiters: PyList::empty(py).into_any().unbind(),
        };
        let mut known = self.known.lock();
        let kept = known.standard.get_or_insert_with(|| Box::new(made.clone_ref(py))).clone_ref(py);
        drop(known);
        drop(made);
        Ok(kept)
    }

    /// Ends the future as its user or its maker asks; whether it was not done.
    fn end_as_asked(slf: &Bound<'_, Self>, ending: Ending) -> bool {
        let mut settler = Settler::new(slf.py());
        let ended = settler.end(slf, ending);
        settler.finish();
        ended
    }
}

/// Returns whether the future ended; `false` if time ran out.
fn sleep(py: Python<'_>, sleeper: &Sleeper, timeout: Option<Timeout>) -> PyResult<bool> {
    // As in `concurrent.futures`, a time below 0 is over already.
    let deadline = deadline_of(timeout.map(|Timeout(seconds)| Timeout(seconds.max(0.0))))?;
    loop {
        let mut is_over = false;
        InterpreterPause(py).pause(&mut |limit| {
            is_over = sleeper.wait(slice(limit, deadline));
        })?;
        if is_over {
            return Ok(true);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(false);
        }
    }
}

#[pymethods]
impl FutureBase {
    #[new]
    fn new() -> Self {
        Self { known: Mutex::new(Known::new()), generation: generation() }
    }

    /// Cancel the item, if no handler has got it. It is not handled then, and counts as consumed.
    ///
    /// Returns:
    ///     True if the item is cancelled. False if it is in a call, or the future is done.
    fn cancel(slf: &Bound<'_, Self>) -> bool {
        let is_pending = slf.get().known(slf.py()).state == State::Pending;
        if is_pending {
            Self::end_as_asked(slf, Ending::Cancelled);
        }
        Self::cancelled(slf)
    }

    /// Whether the item was cancelled.
    fn cancelled(slf: &Bound<'_, Self>) -> bool {
        slf.get().known(slf.py()).state == State::Cancelled
    }

    /// Whether the item is in a call, or waits for its next attempt.
    fn running(slf: &Bound<'_, Self>) -> bool {
        slf.get().known(slf.py()).state == State::Running
    }

    /// Whether the item was cancelled, or there is a result or an error.
    fn done(slf: &Bound<'_, Self>) -> bool {
        slf.get().known(slf.py()).is_done()
    }

    /// Wait for the result.
    ///
    /// Args:
    ///     timeout: Seconds to wait. Default: no limit.
    ///
    /// Returns:
    ///     What the handler returned for the item.
    ///
    /// Raises:
    ///     CancelledError: The item was cancelled.
    ///     TimeoutError: Time ran out. The item is still queued, or in a call.
    ///     BatchQueueError: Called without a timeout from a handler of the same queue.
    #[pyo3(signature = (timeout=None) -> "Any")]
    fn result(slf: &Bound<'_, Self>, timeout: Option<Timeout>) -> PyResult<Py<PyAny>> {
        let (this, py) = (slf.get(), slf.py());
        this.wait(py, timeout)?;
        let known = this.known(py);
        let (error, traceback) = match &known.ending {
            Some(Ending::Result(value)) => return Ok(value.clone_ref(py)),
            Some(Ending::Error(error, traceback)) => {
                (error.clone_ref(py), traceback.as_ref().map(|traceback| traceback.clone_ref(py)))
            }
            _ => return Err(CancelledError::new_err(())),
        };
        drop(known);
        let error = error.into_bound(py);
        // An exception that refuses attributes is still the one to raise.
        let _ = error.setattr("__traceback__", traceback);
        Err(PyErr::from_value(error))
    }

    /// Wait for the end.
    ///
    /// Args:
    ///     timeout: Seconds to wait. Default: no limit.
    ///
    /// Returns:
    ///     The error, or None if there is a result.
    ///
    /// Raises:
    ///     CancelledError: The item was cancelled.
    ///     TimeoutError: Time ran out.
    ///     BatchQueueError: Called without a timeout from a handler of the same queue.
    #[pyo3(signature = (timeout=None) -> "BaseException | None")]
    fn exception(slf: &Bound<'_, Self>, timeout: Option<Timeout>) -> PyResult<Option<Py<PyAny>>> {
        let (this, py) = (slf.get(), slf.py());
        this.wait(py, timeout)?;
        let known = this.known(py);
        match &known.ending {
            Some(Ending::Result(_)) => Ok(None),
            Some(Ending::Error(error, _)) => Ok(Some(error.clone_ref(py))),
            _ => Err(CancelledError::new_err(())),
        }
    }

    /// Call a function with the future when it is done; immediately if it is.
    ///
    /// Args:
    ///     function: Runs on the thread that ends the future, most often a drain thread. What it
    ///         raises is logged.
    #[pyo3(signature = (function: "Any"))]
    fn add_done_callback(slf: &Bound<'_, Self>, function: Bound<'_, PyAny>) {
        let mut known = slf.get().known(slf.py());
        if known.is_done() {
            drop(known);
            call_back(slf, &function);
        } else {
            known.watch().callbacks.push(GuardedRef::new(function.unbind()));
        }
    }

    /// For those that make futures: the work begins, unless it was cancelled.
    fn set_running_or_notify_cancel(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let mut known = slf.get().known(slf.py());
        match known.state {
            State::Cancelled => Ok(false),
            State::Pending => {
                known.state = State::Running;
                Ok(true)
            }
            State::Running | State::Finished => {
                Err(InvalidStateError::new_err("the future is running or done"))
            }
        }
    }

    /// For those that make futures: end it with a result.
    #[pyo3(signature = (result: "Any"))]
    fn set_result(slf: &Bound<'_, Self>, result: Bound<'_, PyAny>) -> PyResult<()> {
        Self::ended(Self::end_as_asked(slf, Ending::result(result)))
    }

    /// For those that make futures: end it with an error.
    #[pyo3(signature = (exception: "BaseException"))]
    fn set_exception(slf: &Bound<'_, Self>, exception: &Bound<'_, PyAny>) -> PyResult<()> {
        let error = exception_of(exception)?;
        Self::ended(Self::end_as_asked(slf, Ending::error(&error)))
    }

    /// The name of the state in `concurrent.futures`.
    #[getter]
    fn _state(slf: &Bound<'_, Self>) -> &'static str {
        match slf.get().known(slf.py()).state {
            State::Pending => "PENDING",
            State::Running => "RUNNING",
            State::Cancelled => "CANCELLED_AND_NOTIFIED",
            State::Finished => "FINISHED",
        }
    }

    /// The condition that `concurrent.futures.wait` holds.
    #[getter]
    fn _condition(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Ok(slf.get().standard(slf.py())?.condition)
    }

    /// The list that `concurrent.futures.wait` enters itself in.
    #[getter]
    fn _waiters(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Ok(slf.get().standard(slf.py())?.waiters)
    }

    /// Whether it is done, whether it was cancelled, the result, the error: for asyncio.
    #[pyo3(signature = () -> "tuple[bool, bool, Any, BaseException | None]")]
    fn _get_snapshot(slf: &Bound<'_, Self>) -> (bool, bool, Option<Py<PyAny>>, Option<Py<PyAny>>) {
        let py = slf.py();
        let known = slf.get().known(py);
        let (result, error) = match &known.ending {
            Some(Ending::Result(value)) => (Some(value.clone_ref(py)), None),
            Some(Ending::Error(error, _)) => (None, Some(error.clone_ref(py))),
            _ => (None, None),
        };
        (known.is_done(), known.state == State::Cancelled, result, error)
    }

    #[allow(clippy::needless_pass_by_value)]
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.known.try_lock().map_or(Ok(()), |known| known.traverse(&visit))
    }

    fn __clear__(&self) {
        let mut known = self.known.lock();
        let taken = (known.ending.take(), known.watch.take(), known.standard.take());
        drop(known);
        drop(taken);
    }
}

impl FutureBase {
    fn ended(was_open: bool) -> PyResult<()> {
        if was_open {
            return Ok(());
        }
        Err(InvalidStateError::new_err("the future is done already"))
    }
}
