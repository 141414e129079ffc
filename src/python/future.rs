//! Futures with the results of submitted items.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::{PyBaseException, PyTimeoutError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use slab::Slab;

use crate::python::errors::{
    BatchQueueError, CancelledError, InvalidStateError, QueueClosedError, submitted_before_fork,
};
use crate::python::interpreter::{
    GuardedRef, InterpreterPause, Timeout, deadline_of, describe_error, error_value, generation,
    guarded_call, log, release,
};
use crate::sync::{Condvar, Duration, locks, wait_for};
use crate::threads::context::{drained_log, drained_queue, on_drain_thread};
use crate::threads::pool::is_worker;
use crate::threads::waits::{Pause, slice};

// `FutureBase`: `concurrent.futures.Future` in Rust.
//
// A future of the standard library creates a lock and a condition, which costs more than queueing
// and handling the item. Here both are created only for `concurrent.futures.wait` and
// `as_completed`, which use them directly; `result` waits without them.

/// Returns the class of the futures of `submit`: `FutureBase` and `concurrent.futures.Future`.
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
    /// Locks the state. In a forked child, a future that is not done never will be, so it ends
    /// here.
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
            // These belong to threads, loops and a queue of the parent, which do not exist here.
            std::mem::forget((known.watch.take(), known.listed.take()));
        }
        known
    }

    /// Delivers the end of the future to an event loop as well.
    pub(crate) fn send_to(&self, mail: Mail) {
        self.known.lock().watch().mail = Some(mail);
    }

    /// Marks the future as running, before the item is in a call. Returns `false` if it was
    /// cancelled.
    pub(crate) fn begin(&self) -> bool {
        let mut known = self.known.lock();
        if known.state == State::Pending {
            known.state = State::Running;
        }
        known.state != State::Cancelled
    }

    fn end(&self, ending: Ending) -> Ended {
        let known = self.known.lock();
        match &known.standard {
            Some(standard) if known.may_end(&ending) => {
                Ended::Conditional(standard.clone(), ending)
            }
            _ => self.end_held(known, ending),
        }
    }

    /// Ends a future whose condition, if it has one, is held.
    fn end_held(&self, mut known: MutexGuard<'_, Known>, ending: Ending) -> Ended {
        if !known.may_end(&ending) {
            drop(known);
            return Ended::Before;
        }
        known.end(ending);
        let (watch, listed) = (known.watch.take(), known.listed.take());
        drop(known);
        // Removed from the queue's list after the lock is released. The caller has another
        // reference.
        drop(listed.and_then(|(submissions, place)| submissions.remove(place, self)));
        Ended::Now(watch)
    }

    /// Returns the error of a future whose item is gone, or `None` if the future is done.
    fn lost_error(&self) -> Option<PyErr> {
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
        let mut known = self.known(py);
        if known.is_done() {
            return Ok(());
        }
        let listed = known.listed.as_ref().filter(|_| timeout.is_none() && on_drain_thread());
        let would_wait_forever = listed.is_some_and(|(submissions, _)| {
            (submissions.is_pooled && is_worker())
                || drained_queue() == Some(submissions.core.load(Ordering::Relaxed))
        });
        if would_wait_forever {
            return Err(BatchQueueError::new_err(
                "a handler waits for a result of the queue that it handles, or of a queue on a \
                 shared scheduler, which may need the thread that waits: use add_done_callback, \
                 or give a timeout",
            ));
        }
        let sleeper = Arc::<Sleeper>::default();
        known.watch().sleepers.push(sleeper.clone());
        drop(known);
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

    fn standard(&self, py: Python<'_>) -> PyResult<Arc<Standard>> {
        if let Some(standard) = &self.known(py).standard {
            return Ok(standard.clone());
        }
        let made = Arc::new(Standard {
            condition: py.import("threading")?.getattr("Condition")?.call0()?.unbind(),
            waiters: PyList::empty(py).into_any().unbind(),
        });
        Ok(self.known.lock().standard.get_or_insert_with(|| made.clone()).clone())
    }

    /// Ends the future on behalf of its maker.
    fn set(slf: &Bound<'_, Self>, ending: Ending) -> PyResult<()> {
        if Settler::new(slf.py()).end(slf, ending) {
            return Ok(());
        }
        Err(InvalidStateError::new_err("the future is done already"))
    }
}

/// Waits for the end of a future. Returns `false` if time ran out.
fn sleep(py: Python<'_>, sleeper: &Sleeper, timeout: Option<Timeout>) -> PyResult<bool> {
    // As in `concurrent.futures`, a negative timeout has already expired.
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
        Self { known: Mutex::default(), generation: generation() }
    }

    /// Cancel the item, if no handler has got it. It is not handled then, and counts as consumed.
    ///
    /// Returns:
    ///     True if the item is cancelled. False if it is in a call, or the future is done.
    fn cancel(slf: &Bound<'_, Self>) -> bool {
        let is_pending = slf.get().known(slf.py()).state == State::Pending;
        if is_pending {
            Settler::new(slf.py()).end(slf, Ending::Cancelled);
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
    fn set_result(slf: &Bound<'_, Self>, result: Bound<'_, PyAny>) -> PyResult<()> {
        Self::set(slf, Ending::result(result))
    }

    /// For those that make futures: end it with an error.
    #[pyo3(signature = (exception: "BaseException"))]
    fn set_exception(slf: &Bound<'_, Self>, exception: &Bound<'_, PyAny>) -> PyResult<()> {
        if !exception.is_instance_of::<PyBaseException>() {
            return Err(PyTypeError::new_err(format!(
                "exception is {}; give an instance of an exception class",
                exception.repr()?
            )));
        }
        Self::set(slf, Ending::error(exception))
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
        Ok(slf.get().standard(slf.py())?.condition.clone_ref(slf.py()))
    }

    /// The list that `concurrent.futures.wait` enters itself in.
    #[getter]
    fn _waiters(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Ok(slf.get().standard(slf.py())?.waiters.clone_ref(slf.py()))
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

// The state of a future, and how it ends.

/// The state of a future.
///
/// ```text
///  Pending ──its item is in a call──▶ Running ──▶ Finished
///     │                                              ▲
///     ├──────────── refused, dropped ────────────────┘
///     └──cancel──▶ Cancelled
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Pending,
    Running,
    Cancelled,
    Finished,
}

/// The outcome of a future.
pub(crate) enum Ending {
    Cancelled,
    Result(GuardedRef),
    /// An exception. Many futures may share one, so each raise begins with this traceback.
    Error(GuardedRef, Option<GuardedRef>),
}

impl Ending {
    pub(crate) fn result(value: Bound<'_, PyAny>) -> Self {
        Self::Result(GuardedRef::new(value.unbind()))
    }

    pub(crate) fn error(error: &Bound<'_, PyAny>) -> Self {
        let traceback =
            error.getattr("__traceback__").ok().filter(|traceback| !traceback.is_none());
        Self::Error(
            GuardedRef::new(error.clone().unbind()),
            traceback.map(|traceback| GuardedRef::new(traceback.unbind())),
        )
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::Cancelled => Ok(()),
            Self::Result(value) => visit.call(&**value),
            Self::Error(error, traceback) => {
                visit.call(&**error)?;
                visit.call(traceback.as_deref())
            }
        }
    }
}

/// The delivery of a future's end to an event loop.
pub(crate) struct Mail {
    /// An object with `deliver(list)`.
    pub(crate) mailbox: GuardedRef,
    /// The future of the loop.
    pub(crate) destination: GuardedRef,
}

/// The parts of a future that `wait` and `as_completed` of `concurrent.futures` use.
struct Standard {
    /// A `threading.Condition`.
    condition: Py<PyAny>,
    /// A list.
    waiters: Py<PyAny>,
}

/// The waiters to notify at the end of a future; most futures have none.
#[derive(Default)]
struct Watch {
    sleepers: Vec<Arc<Sleeper>>,
    callbacks: Vec<GuardedRef>,
    mail: Option<Mail>,
}

impl Watch {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for callback in &self.callbacks {
            visit.call(&**callback)?;
        }
        if let Some(mail) = &self.mail {
            visit.call(&*mail.mailbox)?;
            visit.call(&*mail.destination)?;
        }
        Ok(())
    }
}

/// A thread that waits for a future.
#[derive(Debug, Default)]
struct Sleeper {
    is_called: locks::Mutex<bool>,
    changed: Condvar,
}

impl Sleeper {
    fn call(&self) {
        *self.is_called.lock() = true;
        self.changed.notify_all();
    }

    /// Waits detached. Returns whether the future has ended.
    fn wait(&self, limit: Option<Duration>) -> bool {
        let mut is_called = self.is_called.lock();
        if !*is_called {
            is_called = wait_for(&self.changed, is_called, limit);
        }
        *is_called
    }
}

/// The state of a future. Locked while attached, and never across a wait or a call into Python, so
/// a fork, which happens while no other thread is attached, never finds the lock held.
#[derive(Default)]
struct Known {
    state: State,
    /// The result or error of a finished future.
    ending: Option<Ending>,
    /// The queue's list that holds the future while it is not done, and its place there.
    listed: Option<(Arc<Submissions>, usize)>,
    watch: Option<Box<Watch>>,
    /// Created on demand, because it costs as much as all the rest.
    standard: Option<Arc<Standard>>,
}

impl Known {
    fn is_done(&self) -> bool {
        matches!(self.state, State::Cancelled | State::Finished)
    }

    fn watch(&mut self) -> &mut Watch {
        self.watch.get_or_insert_default()
    }

    /// Whether the future may end in this way now.
    fn may_end(&self, ending: &Ending) -> bool {
        match ending {
            Ending::Cancelled => self.state == State::Pending,
            _ => !self.is_done(),
        }
    }

    fn end(&mut self, ending: Ending) {
        (self.state, self.ending) = match ending {
            Ending::Cancelled => (State::Cancelled, None),
            ending => (State::Finished, Some(ending)),
        };
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.ending.as_ref().map_or(Ok(()), |ending| ending.traverse(visit))?;
        self.watch.as_ref().map_or(Ok(()), |watch| watch.traverse(visit))?;
        if let Some(standard) = &self.standard {
            visit.call(&standard.condition)?;
            visit.call(&standard.waiters)?;
        }
        Ok(())
    }
}

// Ends many futures, then wakes and calls what waits for them.
//
// First all futures of a batch get their results. Then, when the settler is dropped, it notifies
// the threads, callbacks and event loops that wait. So a loop is woken once per batch, and a thread
// that waits for the first result finds the others as well.

pub(crate) struct Settler<'py> {
    py: Python<'py>,
    watched: Vec<(Bound<'py, FutureBase>, Watch)>,
    /// Futures whose state may change only while their condition is held.
    conditional: Vec<(Bound<'py, FutureBase>, Arc<Standard>, Ending)>,
    /// For each event loop, the pairs of its futures and ours.
    mail: Vec<(GuardedRef, Bound<'py, PyList>)>,
}

impl<'py> Settler<'py> {
    pub(crate) fn new(py: Python<'py>) -> Self {
        Self { py, watched: Vec::new(), conditional: Vec::new(), mail: Vec::new() }
    }

    /// Ends a future unless it is done. Returns whether this call ended it.
    pub(crate) fn end(&mut self, future: &Bound<'py, FutureBase>, ending: Ending) -> bool {
        match future.get().end(ending) {
            Ended::Now(watch) => {
                self.watched.extend(watch.map(|watch| (future.clone(), *watch)));
                true
            }
            Ended::Before => false,
            Ended::Conditional(standard, ending) => {
                self.conditional.push((future.clone(), standard, ending));
                true
            }
        }
    }

    fn post(&mut self, future: &Bound<'py, FutureBase>, mail: Mail) -> PyResult<()> {
        let Mail { mailbox, destination } = mail;
        let letter = PyTuple::new(self.py, [destination.bind(self.py), future.as_any()])?;
        if let Some((_, letters)) = self.mail.iter().find(|(other, _)| other.is(&*mailbox)) {
            return letters.append(letter);
        }
        self.mail.push((mailbox, PyList::new(self.py, [letter])?));
        Ok(())
    }

    /// Ends a future under its condition, as `concurrent.futures` does, so that what `wait` and
    /// `as_completed` read under the condition does not change meanwhile.
    fn end_under_condition(
        &mut self,
        future: &Bound<'py, FutureBase>,
        standard: &Standard,
        ending: Ending,
    ) -> PyResult<()> {
        let py = self.py;
        let condition = standard.condition.bind(py);
        let add = match ending {
            Ending::Cancelled => "add_cancelled",
            Ending::Result(_) => "add_result",
            Ending::Error(..) => "add_exception",
        };
        guarded_call(&condition.getattr("acquire")?, ())?;
        let told = (|| {
            let Ended::Now(watch) = future.get().end_held(future.get().known.lock(), ending) else {
                return Ok(());
            };
            self.watched.extend(watch.map(|watch| (future.clone(), *watch)));
            for waiter in standard.waiters.bind(py).try_iter()? {
                guarded_call(&waiter?.getattr(add)?, (future,))?;
            }
            guarded_call(&condition.getattr("notify_all")?, ()).map(release)
        })();
        guarded_call(&condition.getattr("release")?, ())?;
        told
    }
}

/// Notifies whatever waits for the futures that ended, even if a batch ended only in part.
impl Drop for Settler<'_> {
    fn drop(&mut self) {
        for (future, standard, ending) in std::mem::take(&mut self.conditional) {
            if let Err(error) = self.end_under_condition(&future, &standard, ending) {
                log_error(self.py, "a wait for a result failed", error);
            }
        }
        let mut called = Vec::new();
        for (future, watch) in std::mem::take(&mut self.watched) {
            let Watch { sleepers, callbacks, mail } = watch;
            for sleeper in sleepers {
                sleeper.call();
            }
            if let Some(mail) = mail
                && let Err(error) = self.post(&future, mail)
            {
                log_error(self.py, "a result found no event loop", error);
            }
            if !callbacks.is_empty() {
                called.push((future, callbacks));
            }
        }
        for (mailbox, letters) in std::mem::take(&mut self.mail) {
            let deliver = mailbox.bind(self.py).getattr("deliver");
            let delivered = deliver.and_then(|deliver| guarded_call(&deliver, (letters,)));
            match delivered {
                Ok(nothing) => release(nothing),
                Err(error) => log_error(self.py, "a result found no event loop", error),
            }
        }
        // Callbacks come last: they are the user's code, and may take long.
        for (future, callbacks) in called {
            for callback in callbacks {
                call_back(&future, callback.bind(self.py));
            }
        }
    }
}

/// The result of an attempt to end a future.
enum Ended {
    Now(Option<Box<Watch>>),
    /// The future was already done.
    Before,
    /// The future's condition must be held.
    Conditional(Arc<Standard>, Ending),
}

/// Calls a callback, and logs what it raises.
fn call_back(future: &Bound<'_, FutureBase>, callback: &Bound<'_, PyAny>) {
    match guarded_call(callback, (future,)) {
        Ok(nothing) => release(nothing),
        Err(error) => log_error(future.py(), "a callback of a future failed", error),
    }
}

fn log_error(py: Python<'_>, what: &str, error: PyErr) {
    let line = format!("{what}: {}", describe_error(py, error));
    match drained_log() {
        // A drain thread must not wait for the log.
        Some(of_queue) => of_queue.warn(line),
        None => log("warn", &line),
    }
}

// The futures of a queue that are not done: a shutdown that runs out of time ends them, wherever
// their items are.

/// The futures of one queue that are not done.
pub(crate) struct Submissions {
    queue: Box<str>,
    /// Set by the first submit: until then, no batch is searched for submitted items.
    used: AtomicBool,
    /// The address of the core's queue; 0 until it has started.
    core: AtomicUsize,
    /// Whether other queues share its drain threads.
    is_pooled: bool,
    /// Locked while attached, like the state of a future.
    places: Mutex<Slab<Py<FutureBase>>>,
}

impl Submissions {
    pub(crate) fn new(queue: &str, is_pooled: bool) -> Self {
        Self {
            queue: queue.into(),
            used: AtomicBool::new(false),
            core: AtomicUsize::new(0),
            is_pooled,
            places: Mutex::default(),
        }
    }

    pub(crate) fn set_core(&self, address: usize) {
        // Relaxed: read by handlers, which get their items later.
        self.core.store(address, Ordering::Relaxed);
    }

    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    /// Whether an item was ever submitted.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        // Relaxed: set before an item is enqueued, and read after it was taken; the partition's
        // lock orders the two.
        self.used.load(Ordering::Relaxed)
    }

    /// Creates the future of an item that is about to be enqueued.
    pub(crate) fn add<'py>(
        self: &Arc<Self>,
        class: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, FutureBase>> {
        let future = class.call0()?.cast_into::<FutureBase>()?;
        self.used.store(true, Ordering::Relaxed);
        let place = self.places.lock().insert(future.clone().unbind());
        future.get().known.lock().listed = Some((self.clone(), place));
        Ok(future)
    }

    /// Removes a future from the list, unless all were taken meanwhile.
    fn remove(&self, place: usize, future: &FutureBase) -> Option<Py<FutureBase>> {
        let mut places = self.places.lock();
        let is_listed = places.get(place).is_some_and(|listed| std::ptr::eq(listed.get(), future));
        is_listed.then(|| places.remove(place))
    }

    /// Ends with an error all futures that are not done, after a shutdown ran out of time.
    pub(crate) fn abandon(&self, py: Python<'_>) {
        let places = std::mem::take(&mut *self.places.lock());
        if places.is_empty() {
            return;
        }
        let error = error_value(py, self.abandoned_error());
        let mut settler = Settler::new(py);
        for (_, future) in &places {
            settler.end(future.bind(py), Ending::error(&error));
        }
    }

    fn abandoned_error(&self) -> PyErr {
        QueueClosedError::new_err(format!(
            "queue {:?}: the shutdown ran out of time and abandoned this item; give it a longer \
             timeout",
            self.queue
        ))
    }
}

impl Drop for Submissions {
    fn drop(&mut self) {
        // What is left belongs to the parent of this forked child, or the interpreter has ended.
        std::mem::forget(std::mem::take(self.places.get_mut()));
    }
}

// The future of a queued item.

/// The future of an item, as the item carries it. Dropping the ticket while the future is not done
/// ends the future with an error: no caller waits for an item that is gone.
pub(crate) struct Ticket(Option<Py<FutureBase>>);

impl Ticket {
    pub(crate) fn new(future: Py<FutureBase>) -> Self {
        Self(Some(future))
    }

    pub(crate) fn future<'a, 'py>(&'a self, py: Python<'py>) -> &'a Bound<'py, FutureBase> {
        match &self.0 {
            Some(future) => future.bind(py),
            None => unreachable!("only the drop takes it"),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(future) = self.0.take() else { return };
        Python::try_attach(|py| {
            let future = future.into_bound(py);
            if let Some(error) = future.get().lost_error() {
                Settler::new(py).end(&future, Ending::error(&error_value(py, error)));
            }
            release(future.into_any());
        });
    }
}
