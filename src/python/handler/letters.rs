//! What a handler of dead letters gets: a list of `DeadLetter`.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::py_handler::list_of;
use super::registry::Entries;
use crate::python::exceptions::BatchQueueError;
use crate::python::interpreter::{GuardedRef, guarded_call, release};
use crate::python::item::PyItem;
use crate::{Cause, DeadLetters, Item};

/// Writes the letters of one queue.
pub(crate) struct LetterOffice {
    queue: String,
    /// For the tags of rows.
    entries: Weak<Mutex<Entries>>,
}

impl LetterOffice {
    pub(super) fn new(queue: &str, entries: &Arc<Mutex<Entries>>) -> Self {
        Self { queue: queue.to_owned(), entries: Arc::downgrade(entries) }
    }

    /// All letters in one list, in order. The items move there.
    pub(super) fn list<'py>(
        &self,
        py: Python<'py>,
        letters: &mut Vec<DeadLetters<PyItem>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let write = py.import("batchqueue._callbacks")?.getattr("add_dead_letters")?;
        let list = PyList::empty(py);
        for mut letter in letters.drain(..) {
            let types = letter.items.iter().map(|item| self.type_of(py, item));
            let types = PyList::new(py, types.collect::<Vec<_>>())?;
            let error = error_of(py, &letter);
            let items = list_of(py, &mut letter.items)?;
            let args = (&list, items, types, error, letter.attempts, &self.queue);
            let args = args.into_pyobject(py)?;
            release(guarded_call(&write, &args)?);
            release(args.into_any());
        }
        Ok(list)
    }

    /// The class of an object, or the tag of rows.
    fn type_of(&self, py: Python<'_>, item: &PyItem) -> Option<Py<PyAny>> {
        if let Some(class) = item.class(py) {
            return Some(class.into_any().unbind());
        }
        self.entries.upgrade()?.lock().type_of(py, item.type_key())
    }
}

/// Keeps an exception for the letters of what it made fail.
pub(super) fn cause_of(error: &Bound<'_, PyAny>) -> Cause {
    Cause::new(GuardedRef::new(error.clone().unbind()))
}

fn error_of<'py>(py: Python<'py>, letter: &DeadLetters<PyItem>) -> Bound<'py, PyAny> {
    let known = letter.failure.cause.as_ref().and_then(Cause::downcast_ref::<GuardedRef>);
    match known {
        Some(error) => error.bind(py).clone(),
        // Only the core knows of it.
        None => BatchQueueError::new_err(letter.failure.message.clone())
            .into_value(py)
            .into_bound(py)
            .into_any(),
    }
}
