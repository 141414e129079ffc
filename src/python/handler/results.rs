//! The results of a batch with submitted items: what the handler returned for each, or its error.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::python::exceptions::BatchQueueError;
use crate::python::interpreter::{guarded_call, release};
use crate::python::item::PyItem;
use crate::python::results::{Ending, Settler, Submissions, error_value};
use crate::{Batch, Item};

/// Before a call: marks the submitted items as running, and takes those out of the batch that were
/// cancelled. Returns whether there are submitted items.
#[inline]
pub(super) fn begin(py: Python<'_>, submissions: &Submissions, batch: &mut Batch<PyItem>) -> bool {
    submissions.is_used() && begin_submitted(py, batch)
}

#[cold]
fn begin_submitted(py: Python<'_>, batch: &mut Batch<PyItem>) -> bool {
    let (mut has_submitted, mut cancelled) = (false, Vec::new());
    for (index, item) in batch.iter().enumerate() {
        if let Some(ticket) = item.ticket() {
            if ticket.future(py).get().begin() {
                has_submitted = true;
            } else {
                cancelled.push(index);
            }
        }
    }
    if !cancelled.is_empty() {
        let kept = positions_without(batch, &cancelled);
        batch.withdraw_others(&kept);
    }
    has_submitted
}

/// The positions in a batch, by weight, of all items but some, whose indexes are in order.
fn positions_without(batch: &Batch<PyItem>, indexes: &[usize]) -> Vec<usize> {
    let (mut kept, mut start, mut left) = (Vec::new(), 0, indexes);
    for (index, item) in batch.iter().enumerate() {
        let end = start + item.weight();
        match left.split_first() {
            Some((first, rest)) if *first == index => left = rest,
            _ => kept.extend(start..end),
        }
        start = end;
    }
    kept
}

/// What a handler returned, as a list or a tuple with one result for each item of its list.
fn results_of<'py>(
    name: &str,
    returned: Bound<'py, PyAny>,
    count: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let is_list = returned.cast_exact::<PyList>().is_ok_and(|list| list.len() == count);
    if is_list || returned.cast_exact::<PyTuple>().is_ok_and(|tuple| tuple.len() == count) {
        return Ok(returned);
    }
    let py = returned.py();
    let args = (name, returned, count).into_pyobject(py)?;
    let check = py.import("batchqueue.queues.callbacks")?.getattr("results_of")?;
    let results = guarded_call(&check, &args);
    release(args.into_any());
    results
}

/// After a call: what it returned goes to the futures of the batch.
#[cold]
pub(super) fn end_with_results(
    py: Python<'_>,
    name: &str,
    batch: &Batch<PyItem>,
    returned: Bound<'_, PyAny>,
) -> PyResult<()> {
    let results = results_of(name, returned, batch.iter().count())?;
    let mut settler = Settler::new(py);
    for (index, item) in batch.iter().enumerate() {
        if let Some(ticket) = item.ticket() {
            // Items of a list that another thread has shortened meanwhile.
            let result = results.get_item(index)?;
            settler.end(ticket.future(py), Ending::result(result));
        }
    }
    settler.finish();
    release(results);
    Ok(())
}

/// After a call that failed for the items at `failed` only, which are indexes in order: the others
/// get their results, or None if the handler gave none.
#[cold]
pub(super) fn end_others(
    py: Python<'_>,
    batch: &Batch<PyItem>,
    failed: &[usize],
    error: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let results = error.getattr("results")?;
    let mut settler = Settler::new(py);
    let mut start = 0;
    for (index, item) in batch.iter().enumerate() {
        let position = start;
        start += item.weight();
        let Some(ticket) = item.ticket() else { continue };
        if failed.binary_search(&position).is_err() {
            let result =
                if results.is_none() { results.clone() } else { results.get_item(index)? };
            settler.end(ticket.future(py), Ending::result(result));
        }
    }
    settler.finish();
    Ok(())
}

/// The submitted items of a batch failed for good.
pub(super) fn end_with_error(py: Python<'_>, batch: &Batch<PyItem>, error: &Bound<'_, PyAny>) {
    let mut settler = Settler::new(py);
    for ticket in batch.iter().filter_map(PyItem::ticket) {
        settler.end(ticket.future(py), Ending::error(error));
    }
    settler.finish();
}

/// The submitted items of a batch have no handler, or have none any more.
pub(super) fn end_unhandled(py: Python<'_>, queue: &str, batch: &Batch<PyItem>, were_tried: bool) {
    let Some(first) = batch.iter().find(|item| item.ticket().is_some()) else { return };
    let name = first.type_name(py);
    let text = if were_tried {
        format!("queue {queue:?}: the handler of {name} was removed before the next attempt")
    } else {
        format!(
            "queue {queue:?}: there is no handler for items of {name}; call add_handler before the \
             first submit"
        )
    };
    end_with_error(py, batch, &error_value(py, BatchQueueError::new_err(text)));
}
