//! What a handler of dead letters gets: a list of `DeadLetter`.

use pyo3::prelude::*;
use pyo3::types::PyList;

use super::py_handler::list_of;
use crate::python::exceptions::BatchQueueError;
use crate::python::interpreter::{GuardedRef, guarded_call, release};
use crate::python::item::PyItem;
use crate::{Cause, DeadLetters};

/// All letters in one list, in order. The items move there. `queue`: the name of theirs.
pub(super) fn list_of_letters<'py>(
    py: Python<'py>,
    queue: &str,
    letters: &mut Vec<DeadLetters<PyItem>>,
) -> PyResult<Bound<'py, PyList>> {
    let write = py.import("batchqueue.queues.callbacks")?.getattr("add_dead_letters")?;
    let list = PyList::empty(py);
    for mut letter in letters.drain(..) {
        let types = letter.items.iter().map(|item| item.item_type(py));
        let types = PyList::new(py, types.collect::<Vec<_>>())?;
        let error = error_of(py, &letter);
        let items = list_of(py, &mut letter.items)?;
        let args = (&list, items, types, error, letter.attempts, queue).into_pyobject(py)?;
        release(guarded_call(&write, &args)?);
        release(args.into_any());
    }
    Ok(list)
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
