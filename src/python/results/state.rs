//! What a future knows, and how it ends.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::submissions::Submissions;
use crate::python::interpreter::GuardedRef;
use crate::sync::{self, Condvar, Duration, wait_for};

/// Where a future is in its life.
///
/// ```text
///  Pending ──its item is in a call──▶ Running ──▶ Finished
///     │                                              ▲
///     ├──────────── refused, dropped ────────────────┘
///     └──cancel──▶ Cancelled
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Pending,
    Running,
    Cancelled,
    Finished,
}

/// How a future ends.
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

    /// The same for another future; not for a cancelled one.
    pub(super) fn share(&self, py: Python<'_>) -> Self {
        let shared = |object: &GuardedRef| GuardedRef::new(object.clone_ref(py));
        match self {
            Self::Cancelled => Self::Cancelled,
            Self::Result(value) => Self::Result(shared(value)),
            Self::Error(error, traceback) => {
                Self::Error(shared(error), traceback.as_ref().map(shared))
            }
        }
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

/// Where the end of a future is delivered: to an event loop.
pub(crate) struct Mail {
    /// An object with `deliver(list)`.
    pub(crate) mailbox: GuardedRef,
    /// The future of the loop.
    pub(crate) destination: GuardedRef,
}

/// What the module `concurrent.futures` uses of a future in `wait` and `as_completed`.
pub(super) struct Standard {
    /// A `threading.Condition`.
    pub(super) condition: Py<PyAny>,
    /// A list.
    pub(super) waiters: Py<PyAny>,
}

impl Standard {
    pub(super) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self { condition: self.condition.clone_ref(py), waiters: self.waiters.clone_ref(py) }
    }
}

/// What happens at the end of a future; most futures have none of it.
#[derive(Default)]
pub(super) struct Watch {
    pub(super) sleepers: Vec<Arc<Sleeper>>,
    pub(super) callbacks: Vec<GuardedRef>,
    pub(super) mail: Option<Mail>,
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
pub(super) struct Sleeper {
    is_called: sync::Mutex<bool>,
    changed: Condvar,
}

impl Sleeper {
    pub(super) fn call(&self) {
        *self.is_called.lock() = true;
        self.changed.notify_all();
    }

    /// Detached. Returns whether the future has ended.
    pub(super) fn wait(&self, limit: Option<Duration>) -> bool {
        let mut is_called = self.is_called.lock();
        if !*is_called {
            is_called = wait_for(&self.changed, is_called, limit);
        }
        *is_called
    }
}

/// All that a future knows. Locked while attached, never across a wait or a call into Python: so a
/// fork, which happens while no other thread is attached, never finds the lock held.
pub(super) struct Known {
    pub(super) state: State,
    /// Of a finished future: a result or an error.
    pub(super) ending: Option<Ending>,
    /// The queue's list that holds the future while it is not done, and its place there.
    pub(super) listed: Option<(Arc<Submissions>, usize)>,
    pub(super) watch: Option<Box<Watch>>,
    /// Made when it is asked for, because it costs as much as all the rest.
    pub(super) standard: Option<Box<Standard>>,
}

impl Known {
    pub(super) fn new() -> Self {
        Self { state: State::Pending, ending: None, listed: None, watch: None, standard: None }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Cancelled | State::Finished)
    }

    pub(super) fn watch(&mut self) -> &mut Watch {
        self.watch.get_or_insert_default()
    }

    /// Whether the future may end in this way now.
    pub(super) fn may_end(&self, ending: &Ending) -> bool {
        match ending {
            Ending::Cancelled => self.state == State::Pending,
            _ => !self.is_done(),
        }
    }

    pub(super) fn end(&mut self, ending: Ending) {
        (self.state, self.ending) = match ending {
            Ending::Cancelled => (State::Cancelled, None),
            ending => (State::Finished, Some(ending)),
        };
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.ending.as_ref().map_or(Ok(()), |ending| ending.traverse(visit))?;
        self.watch.as_ref().map_or(Ok(()), |watch| watch.traverse(visit))?;
        if let Some(standard) = &self.standard {
            visit.call(&standard.condition)?;
            visit.call(&standard.waiters)?;
        }
        Ok(())
    }
}

/// An exception to end a future with, made of what `set_exception` gets.
pub(super) fn exception_of<'py>(error: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = error.py();
    let base = py.get_type::<pyo3::exceptions::PyBaseException>();
    if error.is_instance(&base)? {
        return Ok(error.clone());
    }
    Err(PyTypeError::new_err(format!(
        "exception is {}; give an instance of an exception class",
        error.repr()?
    )))
}
