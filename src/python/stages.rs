//! `StageGate`, `TimeMeter` and `Counter`: what every chunk of a pipeline passes several times.
//!
//! Nothing here waits: a thread that has to wait does so in Python, on the lock that it lined up
//! with, so the end of the interpreter treats it like any other Python thread. The locks here are
//! held by attached threads for a few statements that never call Python.

use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{PyTypeInfo, import_exception, intern};

use crate::stages::{Amount, Counter, Gate, TimeMeter, Wish};
use crate::sync::Instant;

import_exception!(batchqueue.pipeline.runner.stage, RunEnded);

/// A place in the line of a gate.
#[pyclass(frozen, module = "batchqueue._core")]
pub(crate) struct GateTicket {
    /// A `threading.Lock` that the waiting thread has locked and blocks on.
    lock: Py<PyAny>,
    /// The worker, once the chunk is inside.
    worker: Mutex<Option<usize>>,
}

struct Inner {
    gate: Gate<Py<GateTicket>>,
    /// The locks of threads that wait for room for a row.
    for_row: Vec<Py<PyAny>>,
    has_ended: bool,
}

/// How much a stage of a pipeline holds, in rows and bytes, and what waits for room, in order.
///
/// The thread that makes room gives it to those that wait, so that none wakes in vain.
#[pyclass(frozen, subclass, module = "batchqueue._core")]
pub(crate) struct StageGate(Mutex<Inner>);

impl StageGate {
    fn running(&self) -> PyResult<MutexGuard<'_, Inner>> {
        let inner = self.0.lock();
        if inner.has_ended { Err(RunEnded::new_err(())) } else { Ok(inner) }
    }
}

#[pymethods]
impl StageGate {
    /// Begin empty.
    ///
    /// Args:
    ///     workers: The workers of the stage.
    ///     max_bytes: The most bytes that the stage holds, unless a single chunk has more.
    ///     worker_rows: The most rows that each worker holds, unless a single chunk has more.
    #[new]
    fn new(py: Python<'_>, workers: usize, max_bytes: u64, worker_rows: u64) -> Self {
        // Fills lazy statics that another thread might otherwise be filling when the process forks.
        // The package makes a first gate when it is imported.
        RunEnded::type_object(py);
        release_name(py);
        let gate = Gate::new(workers, max_bytes, worker_rows);
        Self(Mutex::new(Inner { gate, for_row: Vec::new(), has_ended: false }))
    }

    /// The most rows of a worker.
    #[getter]
    fn worker_rows(&self) -> u64 {
        self.0.lock().gate.worker_rows
    }

    /// Take room and return the worker that gets the chunk; None if it has to wait.
    ///
    /// Args:
    ///     rows: The rows of the chunk, at least 1.
    ///     size: Its bytes.
    ///     worker: The worker that must have it. Default: None, any.
    ///
    /// Raises:
    ///     RunEnded: The run ends early.
    #[pyo3(signature = (rows, size, worker=None))]
    fn try_enter(&self, rows: u64, size: u64, worker: Option<usize>) -> PyResult<Option<usize>> {
        Ok(self.running()?.gate.enter(Wish { worker, size: Amount { rows, bytes: size } }))
    }

    /// Wait in line for room; the lock is released when there is a decision.
    ///
    /// Args:
    ///     rows: The rows of the chunk, at least 1.
    ///     size: Its bytes.
    ///     worker: The worker that must have it; None for any.
    ///     lock: A locked `threading.Lock`.
    ///
    /// Raises:
    ///     RunEnded: The run ends early.
    fn line_up(
        &self,
        py: Python<'_>,
        rows: u64,
        size: u64,
        worker: Option<usize>,
        lock: Py<PyAny>,
    ) -> PyResult<Py<GateTicket>> {
        let wish = Wish { worker, size: Amount { rows, bytes: size } };
        let ticket = Py::new(py, GateTicket { lock, worker: Mutex::new(None) })?;
        let mut inner = self.running()?;
        // Room may have been made since the thread was refused.
        if let Some(worker) = inner.gate.enter(wish) {
            drop(inner);
            admit(py, vec![(ticket.clone_ref(py), worker)])?;
        } else {
            inner.gate.line_up(wish, ticket.clone_ref(py));
        }
        Ok(ticket)
    }

    /// Return the worker that a chunk got that was in line; None if it still is.
    ///
    /// Raises:
    ///     RunEnded: It will not get any, because the run ends early.
    fn entered(&self, ticket: &Bound<'_, GateTicket>) -> PyResult<Option<usize>> {
        let worker = *ticket.get().worker.lock();
        if worker.is_none() {
            drop(self.running()?);
        }
        Ok(worker)
    }

    /// Give back the room of chunks that are completed, and let those in that wait for it.
    ///
    /// Args:
    ///     rows: Their rows in all.
    ///     size: Their bytes in all.
    ///     worker: Whose they were.
    ///     chunks: How many. Default: 1.
    #[pyo3(signature = (rows, size, worker, chunks=1))]
    fn leave(
        &self,
        py: Python<'_>,
        rows: u64,
        size: u64,
        worker: usize,
        chunks: u64,
    ) -> PyResult<()> {
        let mut inner = self.0.lock();
        let entered = inner.gate.leave(Amount { rows, bytes: size }, worker, chunks);
        let has_row = !inner.for_row.is_empty() && inner.gate.free().is_some();
        let for_row = if has_row { std::mem::take(&mut inner.for_row) } else { Vec::new() };
        drop(inner);
        admit(py, entered)?;
        release_all(py, for_row)
    }

    /// Return the rows and bytes that may still enter; None if that is not even a row.
    ///
    /// Args:
    ///     lock: A locked `threading.Lock`, which is released when there may be room for a row,
    ///         if there is none. Default: None.
    ///
    /// Raises:
    ///     RunEnded: The run ends early.
    #[pyo3(signature = (lock=None))]
    fn room(&self, lock: Option<Py<PyAny>>) -> PyResult<Option<(u64, u64)>> {
        let mut inner = self.running()?;
        let free = inner.gate.free();
        if free.is_none() {
            inner.for_row.extend(lock);
        }
        Ok(free.map(|free| (free.rows, free.bytes)))
    }

    /// Return the rows and bytes that are accepted and not completed.
    fn held_amount(&self) -> (u64, u64) {
        let held = self.0.lock().gate.held;
        (held.rows, held.bytes)
    }

    /// The most bytes that were held so far.
    #[getter]
    fn most_bytes(&self) -> u64 {
        self.0.lock().gate.most_bytes
    }

    /// How many chunks wait in line.
    #[getter]
    fn waiting(&self) -> usize {
        self.0.lock().gate.waiting()
    }

    /// Let all waits end, now and later: the run ends early.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let mut inner = self.0.lock();
        inner.has_ended = true;
        let tickets = inner.gate.turn_away();
        let mut locks = std::mem::take(&mut inner.for_row);
        drop(inner);
        locks.extend(tickets.iter().map(|ticket| ticket.get().lock.clone_ref(py)));
        release_all(py, locks)
    }
}

fn admit(py: Python<'_>, entered: Vec<(Py<GateTicket>, usize)>) -> PyResult<()> {
    for (ticket, worker) in entered {
        *ticket.get().worker.lock() = Some(worker);
        release(py, &ticket.get().lock)?;
    }
    Ok(())
}

fn release_all(py: Python<'_>, locks: Vec<Py<PyAny>>) -> PyResult<()> {
    locks.iter().try_for_each(|lock| release(py, lock))
}

fn release(py: Python<'_>, lock: &Py<PyAny>) -> PyResult<()> {
    lock.call_method0(py, release_name(py)).map(drop)
}

fn release_name(py: Python<'_>) -> &Bound<'_, PyString> {
    intern!(py, "release")
}

/// A measurement in seconds of a monotonic clock, either the user's or the system's.
struct Timed<T> {
    measured: Mutex<T>,
    given: Option<Py<PyAny>>,
    began: Instant,
}

impl<T> Timed<T> {
    fn new(
        py: Python<'_>,
        given: Option<Py<PyAny>>,
        measured: impl FnOnce(f64) -> T,
    ) -> PyResult<Self> {
        let began = Instant::now();
        let now = seconds(py, given.as_ref(), began)?;
        Ok(Self { measured: Mutex::new(measured(now)), given, began })
    }

    /// Calls a function with the time, which is read before the lock is taken.
    fn now<R>(&self, py: Python<'_>, call: impl FnOnce(&mut T, f64) -> R) -> PyResult<R> {
        let now = seconds(py, self.given.as_ref(), self.began)?;
        Ok(call(&mut self.measured.lock(), now))
    }
}

fn seconds(py: Python<'_>, given: Option<&Py<PyAny>>, began: Instant) -> PyResult<f64> {
    match given {
        None => Ok(began.elapsed().as_secs_f64()),
        Some(clock) => clock.call0(py)?.extract(py),
    }
}

/// Sums up the time that one or more threads spend in something.
///
/// A span that has not ended counts as well, so that a call that hangs is seen. `with` counts the
/// time of a block.
#[pyclass(frozen, name = "TimeMeter", module = "batchqueue._core")]
pub(crate) struct PyTimeMeter(Timed<TimeMeter>);

#[pymethods]
impl PyTimeMeter {
    /// Begin with nothing.
    ///
    /// Args:
    ///     threads: How many threads are measured; the share is of the time of all of them.
    ///         Default: 1.
    ///     clock: Returns seconds that never decrease. Default: None, that of the system.
    #[new]
    #[pyo3(signature = (threads=1, clock=None))]
    fn new(py: Python<'_>, threads: u32, clock: Option<Py<PyAny>>) -> PyResult<Self> {
        Timed::new(py, clock, |now| TimeMeter::new(threads, now)).map(Self)
    }

    /// Begin to count the time of this thread.
    fn enter(&self, py: Python<'_>) -> PyResult<()> {
        self.0.now(py, TimeMeter::enter)
    }

    /// Count the time of this thread no longer.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.0.now(py, TimeMeter::leave)
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        self.enter(py)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.leave(py)
    }

    /// The time in all, of all threads together.
    #[getter]
    fn seconds(&self, py: Python<'_>) -> PyResult<f64> {
        self.0.now(py, TimeMeter::seconds)
    }

    /// The share of about the last three seconds, 0 to 1; of all the time before that.
    #[getter]
    fn share(&self, py: Python<'_>) -> PyResult<f64> {
        self.0.now(py, TimeMeter::share)
    }

    /// Whether a thread is inside.
    #[getter]
    fn is_open(&self) -> bool {
        self.0.measured.lock().is_open()
    }
}

/// A count that one or more threads raise, and how fast it rises.
#[pyclass(frozen, name = "Counter", module = "batchqueue._core")]
pub(crate) struct PyCounter(Timed<Counter>);

#[pymethods]
impl PyCounter {
    /// Begin with 0.
    ///
    /// Args:
    ///     clock: Returns seconds that never decrease. Default: None, that of the system.
    #[new]
    #[pyo3(signature = (clock=None))]
    fn new(py: Python<'_>, clock: Option<Py<PyAny>>) -> PyResult<Self> {
        Timed::new(py, clock, Counter::new).map(Self)
    }

    /// Raise it.
    fn add(&self, py: Python<'_>, amount: u64) -> PyResult<()> {
        self.0.now(py, |counter, now| counter.add(amount, now))
    }

    /// The count now.
    #[getter]
    fn value(&self) -> u64 {
        self.0.measured.lock().value
    }

    /// How much it rises in a second; the mean of the last three seconds.
    #[getter]
    fn per_s(&self, py: Python<'_>) -> PyResult<f64> {
        self.0.now(py, Counter::per_s)
    }
}
