//! A call that failed, perhaps only for a part of its batch.

use pyo3::prelude::*;
use pyo3::types::PyList;

use super::py_handler::{PyHandler, copy_of, has_rows};
use crate::python::exceptions::BatchFailed;
use crate::python::interpreter::{GuardedRef, guarded_call, release};
use crate::python::item::PyItem;
use crate::{Batch, Failure, Item};

impl PyHandler {
    /// The outcome of a call that raised `error`. `list` is what the handler got, `count` items, as
    /// it left it.
    /// `again`: the exceptions after which the batch is tried again; it has its items then.
    #[cold]
    pub(super) fn fail(
        &self,
        py: Python<'_>,
        batch: &mut Batch<PyItem>,
        list: &Bound<'_, PyList>,
        count: usize,
        error: PyErr,
        again: Option<&GuardedRef>,
    ) -> Result<(), Failure> {
        let (mut error, mut in_part, mut failed) = (error, false, list.clone());
        if error.is_instance_of::<BatchFailed>(py) {
            match keep_failed(py, batch, list, count, &error) {
                Ok(None) => {
                    drop(batch.drain());
                    release(error.into_value(py).into_bound(py).into_any());
                    return Ok(());
                }
                Ok(Some(kept)) => (in_part, failed) = (true, kept),
                Err(wrong) => {
                    wrong.set_cause(py, Some(error));
                    error = wrong;
                }
            }
        }
        let failure = match again {
            Some(kinds) if is_one_of(py, &error, kinds) => {
                release(error.into_value(py).into_bound(py).into_any());
                Failure::new("")
            }
            _ => self.report(py, &failed, error),
        };
        release(failed.into_any());
        Err(Failure { in_part, ..failure })
    }
}

/// Whether a retry policy is about this error, or about what it names as its cause.
fn is_one_of(py: Python<'_>, error: &PyErr, kinds: &GuardedRef) -> bool {
    let cause = error.cause(py).filter(|_| error.is_instance_of::<BatchFailed>(py));
    cause.as_ref().unwrap_or(error).is_instance(py, kinds.bind(py))
}

/// Keeps only what failed in a batch, and returns it as a list; `None` if nothing did. An error
/// that names something else is an error itself.
fn keep_failed<'py>(
    py: Python<'py>,
    batch: &mut Batch<PyItem>,
    list: &Bound<'py, PyList>,
    count: usize,
    error: &PyErr,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let sizes: Option<Vec<usize>> =
        has_rows(batch).then(|| batch.iter().map(Item::weight).collect());
    // Without a next attempt, objects are in the list only.
    let original = if batch.is_empty() { None } else { Some(copy_of(py, batch)?) };
    let args = (error.value(py), list, &original, count, sizes).into_pyobject(py)?;
    let positions = py.import("batchqueue._callbacks")?.getattr("failed_positions")?;
    let positions: Vec<usize> = guarded_call(&positions, &args)?.extract()?;
    release(args.into_any());
    if positions.is_empty() {
        return Ok(None);
    }
    if original.is_some() {
        batch.keep(&positions);
    } else {
        for &position in &positions {
            batch.push(PyItem::new(list.get_item(position)?), usize::MAX, Vec::new);
        }
    }
    copy_of(py, batch).map(Some)
}
