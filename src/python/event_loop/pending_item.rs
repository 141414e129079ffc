//! `PendingItem`: an item that found no room, in the hands of a coroutine.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::handler_call::HandlerCall;
use crate::python::errors::{forked, refused};
use crate::python::interpreter::generation;
use crate::python::item::PyItem;
use crate::{Listener, Listening, PendingItem, TryProduceError};

/// What became of a try, for Python: True, False, None or `PendingItem`.
#[derive(IntoPyObject)]
pub(crate) enum Attempted {
    /// It is in, or it was refused, or there was no time for it.
    Done(Option<bool>),
    Pending(PyPendingItem),
}

impl Attempted {
    pub(super) fn of(
        py: Python<'_>,
        result: Result<(), TryProduceError<PyItem>>,
        accepted: usize,
    ) -> PyResult<Self> {
        match result {
            Ok(()) => Ok(Self::Done(Some(true))),
            Err(TryProduceError::Pending(late)) => Ok(Self::Pending(PyPendingItem {
                late: Mutex::new(Some(late)),
                generation: generation(),
            })),
            Err(TryProduceError::Refused(refusal)) => {
                refused(py, refusal, accepted).map_or(Ok(Self::Done(Some(false))), Err)
            }
        }
    }
}

/// An item whose partition is full. It is refused when it is given up, at the latest with the end
/// of this object.
#[pyclass(name = "Waiting", frozen, module = "batchqueue._core")]
pub(crate) struct PyPendingItem {
    /// `None`: it is settled.
    late: Mutex<Option<PendingItem<PyItem>>>,
    generation: u32,
}

impl PyPendingItem {
    /// Taken out for each use: what a refusal logs may run any code of Python's.
    fn take(&self) -> PyResult<Option<PendingItem<PyItem>>> {
        if self.generation != generation() {
            return Err(forked());
        }
        Ok(self.late.lock().take())
    }

    /// Lets `listener` hear of room, in that partition.
    pub(super) fn listen(
        &self,
        listener: Arc<dyn Listener>,
    ) -> PyResult<Option<(usize, Listening<PyItem>)>> {
        let late = self.take()?;
        let listening = late.as_ref().map(|late| (late.partition(), late.listen(listener)));
        *self.late.lock() = late;
        Ok(listening)
    }
}

#[pymethods]
impl PyPendingItem {
    /// The partition that it waits for; None when it is settled.
    #[getter]
    fn partition(&self) -> Option<usize> {
        self.late.lock().as_ref().map(PendingItem::partition)
    }

    /// Put it in, if there is room. True: it is in. False: the queue is shut down. None: it still
    /// waits.
    #[pyo3(signature = (call: "HandlerCall | None"))]
    fn again(&self, py: Python<'_>, call: Option<&HandlerCall>) -> PyResult<Option<bool>> {
        let Some(late) = self.take()? else { return Ok(Some(false)) };
        let _assumed = HandlerCall::assume(call);
        match Attempted::of(py, late.try_again(), 0)? {
            Attempted::Done(done) => Ok(done),
            Attempted::Pending(waiting) => {
                *self.late.lock() = waiting.take()?;
                Ok(None)
            }
        }
    }

    /// Give up because the time is over: the error to raise.
    #[pyo3(signature = (accepted: "int") -> "BaseException | None")]
    fn time_out<'py>(
        &self,
        py: Python<'py>,
        accepted: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let error = self.take()?.and_then(|late| refused(py, late.time_out(), accepted));
        Ok(error.map(|error| error.into_value(py).into_bound(py).into_any()))
    }

    /// Give up. Nothing happens when it is settled.
    fn refuse(&self) -> PyResult<()> {
        drop(self.take()?);
        Ok(())
    }

    #[allow(clippy::needless_pass_by_value)]
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.late.try_lock() {
            Some(late) => late
                .as_ref()
                .and_then(PendingItem::item)
                .map_or(Ok(()), |item| item.traverse(&visit)),
            None => Ok(()),
        }
    }
}

impl Drop for PyPendingItem {
    fn drop(&mut self) {
        if self.generation != generation() {
            // A forked child: the locks inside may be held by threads that do not exist here.
            std::mem::forget(self.late.lock().take());
        }
    }
}
