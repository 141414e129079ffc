//! `on_open` of a handler: called at its desk before the first batch, and again for the next one if
//! it raised. What it opened is closed by `on_close`, which a handler that is not open does not
//! get.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::py_handler::refuse_coroutine;
use crate::python::interpreter::{GuardedRef, guarded_call};

pub(crate) struct Opening {
    on_open: Option<GuardedRef>,
    /// Changed at the desk, whose lock orders the calls.
    is_open: AtomicBool,
}

impl Opening {
    pub(crate) fn new(on_open: Option<GuardedRef>) -> Self {
        let is_open = AtomicBool::new(on_open.is_none());
        Self { on_open, is_open }
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.on_open.as_deref())
    }

    /// Whether `on_open` has not returned yet.
    pub(crate) fn is_due(&self) -> bool {
        // Relaxed, here and below: ordered by the lock of the desk.
        !self.is_open.load(Ordering::Relaxed)
    }

    /// Calls `on_open` if it is due.
    #[inline]
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<()> {
        match &self.on_open {
            Some(on_open) if self.is_due() => self.call(on_open.bind(py)),
            _ => Ok(()),
        }
    }

    #[cold]
    fn call(&self, on_open: &Bound<'_, PyAny>) -> PyResult<()> {
        guarded_call(on_open, &PyTuple::empty(on_open.py())).and_then(refuse_coroutine)?;
        self.is_open.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether the handler is open, and closes it: a handler that is registered once more
    /// is opened once more.
    pub(crate) fn close(&self) -> bool {
        let was_open = !self.is_due();
        self.is_open.store(self.on_open.is_none(), Ordering::Relaxed);
        was_open
    }
}
