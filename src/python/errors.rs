//! The core's errors as Python exceptions.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::{PyTypeInfo, import_exception};

use crate::arrow::aggregate::AggregateError;
use crate::error::FlushError;

impl From<crate::error::ConfigError> for PyErr {
    fn from(error: crate::error::ConfigError) -> Self {
        ConfigError::new_err(error.to_string())
    }
}

impl From<AggregateError> for PyErr {
    fn from(error: AggregateError) -> Self {
        let text = error.to_string();
        match error {
            AggregateError::Overflow { .. } => PyOverflowError::new_err(text),
            AggregateError::NoColumn { .. }
            | AggregateError::Type { .. }
            | AggregateError::Partials(_) => ConfigError::new_err(text),
            AggregateError::TooManyGroups { .. }
            | AggregateError::TooLarge
            | AggregateError::Arrow(_) => BatchQueueError::new_err(text),
        }
    }
}

pub(crate) fn forked() -> PyErr {
    QueueForkedError::new_err(
        "this queue was made before a fork and its drain threads stayed in the parent process; \
         make a new BatchQueue in the child, or use restart_after_fork=True",
    )
}

pub(crate) fn submitted_before_fork() -> PyErr {
    QueueForkedError::new_err(
        "this item was submitted before a fork and its result stays in the parent process; submit \
         it again in the child",
    )
}

pub(crate) fn too_late(name: &str) -> PyErr {
    QueueClosedError::new_err(format!(
        "queue {name:?} cannot start while the interpreter exits: nothing would close it; make it \
         earlier"
    ))
}

/// Adds the number of accepted items to an error that `produce_many` raises after accepting some.
pub(crate) fn after_some(py: Python<'_>, error: PyErr, accepted: usize) -> PyErr {
    let value = error.value(py);
    // An exception that refuses attributes or notes is still the one to raise.
    let _ = value.setattr("accepted", accepted);
    let note = format!("produce_many had enqueued the first {accepted} items when this was raised");
    let _ = value.call_method1("add_note", (note,));
    error
}

#[cold]
pub(crate) fn not_iterable(items: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = items.py();
    if !error.is_instance_of::<PyTypeError>(py) || items.hasattr("__iter__").unwrap_or(true) {
        return error;
    }
    PyTypeError::new_err(format!(
        "produce_many got {}, which is not iterable; give a list or another iterable of \
         items, or give one item to produce",
        type_with_article(items)
    ))
}

/// Returns the name of an object's type with its article: `"a str"`, `"an int"`.
pub(crate) fn type_with_article(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    let begins_with_vowel = name.trim_start_matches('_').starts_with(['a', 'e', 'i', 'o']);
    format!("{} {name}", if begins_with_vowel { "an" } else { "a" })
}

/// Rejects a second positional argument: `timeout` is keyword-only.
#[inline]
pub(crate) fn refuse_second(method: &str, second: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    second.map_or(Ok(()), |given| Err(misplaced(method, given)))
}

#[cold]
fn misplaced(method: &str, given: &Bound<'_, PyAny>) -> PyErr {
    let given = given.repr().map_or_else(|_| "...".to_owned(), |text| text.to_string());
    PyTypeError::new_err(format!(
        "{method} takes one positional argument, and {given} is a second one; give a timeout by \
         name, in seconds: timeout={given}"
    ))
}

pub(crate) fn flushed(result: Result<bool, FlushError<PyErr>>) -> PyResult<bool> {
    result.map_err(|error| match error {
        FlushError::Interrupted(interrupt) => interrupt,
        FlushError::FromDrainThread => BatchQueueError::new_err(
            "flush was called from a drain thread, which would wait for itself; call it from \
             another thread",
        ),
    })
}

// The exceptions of `batchqueue.exceptions`, which are defined in Python so that they inherit from
// built-in exceptions and pickle, and the exceptions of futures.

import_exception!(batchqueue.exceptions, BatchFailed);
import_exception!(batchqueue.exceptions, BatchQueueError);
import_exception!(batchqueue.exceptions, ConfigError);
import_exception!(batchqueue.exceptions, ProduceTimeoutError);
import_exception!(batchqueue.exceptions, QueueClosedError);
import_exception!(batchqueue.exceptions, QueueForkedError);
import_exception!(batchqueue.exceptions, ReentrantProduceError);
import_exception!(concurrent.futures, CancelledError);
import_exception!(concurrent.futures, InvalidStateError);

/// Imports the package's exceptions; otherwise each is imported when it is first raised.
pub(crate) fn import_own(py: Python<'_>) -> PyResult<()> {
    py.import("batchqueue.exceptions")?;
    BatchFailed::type_object(py);
    BatchQueueError::type_object(py);
    ConfigError::type_object(py);
    ProduceTimeoutError::type_object(py);
    QueueClosedError::type_object(py);
    QueueForkedError::type_object(py);
    ReentrantProduceError::type_object(py);
    Ok(())
}

/// Imports the exceptions of futures, likewise.
pub(crate) fn import_futures(py: Python<'_>) -> PyResult<()> {
    py.import("concurrent.futures")?;
    CancelledError::type_object(py);
    InvalidStateError::type_object(py);
    Ok(())
}
