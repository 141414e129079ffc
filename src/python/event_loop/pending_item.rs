//! `PendingItem`: an item that found no room, and that a coroutine may try again.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::handler_call::HandlerCall;
use crate::python::errors::forked;
use crate::python::interpreter::generation;
use crate::python::item::{PyItem, refused};
use crate::{Line, Listener, Listening, PendingItem, TryProduceError};

/// The result of an attempt to enqueue, for Python: True, False, None or `PendingItem`.
#[derive(IntoPyObject)]
pub(crate) enum Attempted {
    /// Accepted, refused, or not tried in this turn of the loop.
    Done(Option<bool>),
    Pending(PyPendingItem),
}

impl Attempted {
    pub(super) fn of(
        py: Python<'_>,
        queue: &str,
        result: Result<(), TryProduceError<PyItem>>,
        accepted: usize,
    ) -> PyResult<Self> {
        match result {
            Ok(()) => Ok(Self::Done(Some(true))),
            Err(TryProduceError::Pending(item)) => Ok(Self::Pending(PyPendingItem {
                item: Mutex::new(Some(item)),
                generation: generation(),
            })),
            Err(TryProduceError::Refused(refusal)) => {
                refused(py, queue, refusal, accepted).map_or(Ok(Self::Done(Some(false))), Err)
            }
        }
    }
}

/// An item whose partition is full.
///
/// It is refused when the caller gives it up, at the latest when this object is destroyed.
#[pyclass(name = "PendingItem", frozen, module = "batchqueue._core")]
pub(crate) struct PyPendingItem {
    /// `None` once the item is settled: accepted or refused.
    item: Mutex<Option<PendingItem<PyItem>>>,
    generation: u32,
}

impl PyPendingItem {
    /// Takes the item out for each use: logging a refusal may run any Python code.
    fn take(&self) -> PyResult<Option<PendingItem<PyItem>>> {
        if self.generation != generation() {
            return Err(forked());
        }
        Ok(self.item.lock().take())
    }

    /// Notifies `listener` of room in the item's partition. Returns the line that the item waits
    /// in; `None` if the item is settled.
    pub(super) fn listen(
        &self,
        listener: Arc<dyn Listener>,
    ) -> PyResult<Option<(Line, Listening<PyItem>)>> {
        let item = self.take()?;
        let listening = item.as_ref().map(|item| (item.line(), item.listen(listener)));
        *self.item.lock() = item;
        Ok(listening)
    }
}

#[pymethods]
impl PyPendingItem {
    /// The line that the item waits in: its partition, and a number for its type; or None if it is
    /// settled.
    #[getter]
    fn line(&self) -> Option<(usize, usize)> {
        let line = self.item.lock().as_ref().map(PendingItem::line);
        line.map(|line| (line.partition, line.key.0))
    }

    /// Wait without a deadline from now on: if the call is a handler's and the wait can never end,
    /// it may be given up.
    ///
    /// Args:
    ///     call: The handler call that the caller belongs to.
    #[pyo3(signature = (call: "HandlerCall | None"))]
    fn begin_wait(&self, call: Option<&HandlerCall>) -> PyResult<()> {
        let _assumed = HandlerCall::assume(call);
        let mut item = self.take()?;
        if let Some(item) = &mut item {
            item.begin_wait();
        }
        *self.item.lock() = item;
        Ok(())
    }

    /// Whether the wait is given up: the next attempt raises the error.
    #[getter]
    fn is_given_up(&self) -> PyResult<bool> {
        let item = self.take()?;
        let is_given_up = item.as_ref().is_some_and(PendingItem::is_given_up);
        *self.item.lock() = item;
        Ok(is_given_up)
    }

    /// Try to enqueue the item.
    ///
    /// Args:
    ///     call: The handler call that the caller belongs to.
    ///
    /// Returns:
    ///     True if the item was accepted, False if the queue is shut down, None if the partition is
    ///     still full.
    #[pyo3(signature = (call: "HandlerCall | None"))]
    fn try_again(&self, py: Python<'_>, call: Option<&HandlerCall>) -> PyResult<Option<bool>> {
        let Some(item) = self.take()? else { return Ok(Some(false)) };
        let _assumed = HandlerCall::assume(call);
        let queue = item.queue().to_owned();
        match Attempted::of(py, &queue, item.try_again(), 0)? {
            Attempted::Done(done) => Ok(done),
            Attempted::Pending(pending) => {
                *self.item.lock() = pending.take()?;
                Ok(None)
            }
        }
    }

    /// Give up because time ran out.
    ///
    /// Args:
    ///     accepted: Items of the same call that were accepted before.
    ///
    /// Returns:
    ///     The error to raise, or None if the item is settled.
    #[pyo3(signature = (accepted: "int") -> "BaseException | None")]
    fn time_out<'py>(
        &self,
        py: Python<'py>,
        accepted: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let error = self.take()?.and_then(|item| {
            let queue = item.queue().to_owned();
            refused(py, &queue, item.time_out(), accepted)
        });
        Ok(error.map(|error| error.into_value(py).into_bound(py).into_any()))
    }

    /// Give up. A settled item is left as it is.
    fn refuse(&self) -> PyResult<()> {
        drop(self.take()?);
        Ok(())
    }

    #[allow(clippy::needless_pass_by_value)]
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.item.try_lock() {
            Some(item) => item
                .as_ref()
                .and_then(PendingItem::item)
                .map_or(Ok(()), |object| object.traverse(&visit)),
            None => Ok(()),
        }
    }
}

impl Drop for PyPendingItem {
    fn drop(&mut self) {
        if self.generation != generation() {
            // In a forked child, threads that do not exist here may hold the locks inside.
            std::mem::forget(self.item.lock().take());
        }
    }
}
