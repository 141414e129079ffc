//! A call that failed, perhaps only for a part of its batch.

use pyo3::prelude::*;
use pyo3::types::PyList;

use super::py_handler::{PyHandler, copy_of};
use super::results::{end_others, end_with_error};
use crate::python::exceptions::BatchFailed;
use crate::python::interpreter::{GuardedRef, guarded_call, release};
use crate::python::item::PyItem;
use crate::python::results::error_value;
use crate::{Batch, Failure, Item};

/// What a handler was given, which owns its list.
pub(super) struct Given<'py> {
    /// The length of the list.
    pub(super) count: usize,
    /// The list once more, if its items are record batches.
    pub(super) blocks: Option<Bound<'py, PyList>>,
}

impl PyHandler {
    /// The outcome of a call that raised `error`. `list` is what the handler got, as it left it.
    /// `again`: the exceptions after which the batch is tried again; it has its items then.
    #[cold]
    pub(super) fn fail(
        &self,
        py: Python<'_>,
        batch: &mut Batch<PyItem>,
        list: &Bound<'_, PyList>,
        given: &Given<'_>,
        error: PyErr,
        mut again: Option<&GuardedRef>,
    ) -> Result<(), Failure> {
        let (mut error, mut in_part, mut failed) = (error, false, list.clone());
        if error.is_instance_of::<BatchFailed>(py) {
            match keep_failed(py, batch, list, given, &error) {
                Ok(None) => {
                    drop(batch.drain());
                    release(error.into_value(py).into_bound(py).into_any());
                    return Ok(());
                }
                Ok(Some(kept)) => {
                    (in_part, failed) = (true, kept);
                    again = again.filter(|_| !batch.is_last_for_a_part());
                }
                Err(wrong) => {
                    wrong.set_cause(py, Some(error));
                    error = wrong;
                }
            }
        }
        let failure = match again {
            Some(kinds) if is_one_of(py, &error, kinds) => {
                let brief = error.to_string();
                release(error.into_value(py).into_bound(py).into_any());
                Failure::new(brief)
            }
            _ => {
                let error = error_value(py, error);
                end_with_error(py, batch, &error);
                self.report(py, &failed, error, batch.has_dead_letter())
            }
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
    given: &Given<'py>,
    error: &PyErr,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let sizes: Option<Vec<usize>> =
        given.blocks.is_some().then(|| batch.iter().map(Item::weight).collect());
    // Without a next attempt, objects are in the list only.
    let original = match &given.blocks {
        Some(blocks) => Some(blocks.clone()),
        None if batch.is_empty() => None,
        None => Some(copy_of(py, batch)?),
    };
    let args = (error.value(py), list, &original, given.count, sizes).into_pyobject(py)?;
    let positions = py.import("batchqueue.queues.callbacks")?.getattr("failed_positions")?;
    let positions: Vec<usize> = guarded_call(&positions, &args)?.extract()?;
    release(args.into_any());
    let is_in_batch = original.is_some();
    if let Some(original) = original {
        release(original.into_any());
    }
    if is_in_batch {
        end_others(py, batch, &positions, error.value(py))?;
    }
    if positions.is_empty() {
        return Ok(None);
    }
    if is_in_batch {
        batch.keep(&positions);
    } else {
        for &position in &positions {
            batch.push(PyItem::new(list.get_item(position)?), 1, Vec::new);
        }
    }
    copy_of(py, batch).map(Some)
}
