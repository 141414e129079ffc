//! What an event loop asks of a `Queue`: the calls that do not wait, and those that a thread of its
//! own waits in.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::bell::Bell;
use super::indexed::Indexed;
use super::inside::Inside;
use super::item::PyItem;
use super::item_type::ItemType;
use super::pause::{NoPause, StoppablePause, deadline_of};
use super::queue::Queue;
use super::refusal::flushed;
use super::waiting::Tried;

/// Put one item in without waiting. A `Waiting` may be tried again.
///
/// Args:
///     bell: Which partitions tasks of the loop wait for: there the item waits as well, behind
///     them. ahead: The partition where it is the caller's turn. inside: The handler call that the
///     caller belongs to.
#[pyfunction]
#[pyo3(signature = (
    queue: "Queue", item: "Any", bell: "Bell | None", ahead: "int | None", inside: "Inside | None"
) -> "bool | Waiting")]
pub(crate) fn try_produce(
    queue: &Queue,
    item: Bound<'_, PyAny>,
    bell: Option<&Bell>,
    ahead: Option<usize>,
    inside: Option<&Inside>,
) -> PyResult<Tried> {
    let core = queue.core()?;
    let py = item.py();
    let given = queue.select.given(core, &item)?;
    let _inside = Inside::assume(inside);
    Tried::of(
        py,
        core.try_produce(PyItem::new(item), given, &|one| Bell::is_awaited(bell, ahead, one)),
        0,
    )
}

/// Put the items of a list or a tuple in from `start` on, without waiting. The rest is as in
/// `try_produce`.
///
/// Returns:
///     How many of them all are in then, and what became of the next one: True: there is none,
///     None: its turn is later.
#[pyfunction]
#[pyo3(signature = (
    queue: "Queue", items: "list[Any] | tuple[Any, ...]", start: "int", bell: "Bell | None", ahead: "int | None",
    inside: "Inside | None"
) -> "tuple[int, bool | Waiting | None]")]
pub(crate) fn try_produce_many(
    py: Python<'_>,
    queue: &Queue,
    items: &Bound<'_, PyAny>,
    start: usize,
    bell: Option<&Bell>,
    ahead: Option<usize>,
    inside: Option<&Inside>,
) -> PyResult<(usize, Tried)> {
    let core = queue.core()?;
    let Some(items) = Indexed::of(items) else {
        return Err(PyTypeError::new_err("items must be a list or a tuple"));
    };
    let _inside = Inside::assume(inside);
    items.try_produce(
        py,
        core,
        start,
        &|one| Bell::is_awaited(bell, ahead, one),
        Bell::awaits_any(bell, ahead),
    )
}

/// How many items find room in a partition; all that may be when the queue is shut down.
#[pyfunction]
#[pyo3(signature = (queue: "Queue", partition: "int"))]
pub(crate) fn room(queue: &Queue, partition: usize) -> PyResult<usize> {
    Ok(queue.core()?.room(partition))
}

/// `flush` for a thread whose wait ends when the event `stop` is set.
#[pyfunction]
#[pyo3(signature = (queue: "Queue", timeout: "float | None", stop: "Any"))]
pub(crate) fn flush_until(
    queue: &Queue,
    timeout: Option<f64>,
    stop: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    flushed(queue.core()?.flush(deadline_of(timeout)?, &mut StoppablePause(stop)))
}

/// `shutdown` in the same way; `inside`: the handler call that asks for it.
#[pyfunction]
#[pyo3(signature = (queue: "Queue", timeout: "float | None", stop: "Any", inside: "Inside | None"))]
pub(crate) fn shutdown_until(
    queue: &Queue,
    timeout: Option<f64>,
    stop: &Bound<'_, PyAny>,
    inside: Option<&Inside>,
) -> PyResult<u64> {
    let (core, deadline) = (queue.core()?, deadline_of(timeout)?);
    let _inside = Inside::assume(inside);
    core.shutdown_with(deadline, &mut StoppablePause(stop))
}

/// `remove_handler` without a wait.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
#[pyo3(signature = (queue: "Queue", item_type: "type | str"))]
pub(crate) fn remove_handler_soon(queue: &Queue, item_type: ItemType<'_>) -> PyResult<bool> {
    let key = item_type.known_to(&queue.registered.lock().tags);
    // An error: there was a handler, and it was not waited for.
    let removed = queue.core()?.remove_handler_with(key, &mut NoPause).unwrap_or(true);
    queue.forget_unused();
    Ok(removed)
}
