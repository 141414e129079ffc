//! What an event loop asks of a `Queue`: the calls that do not wait, and those that a thread of its
//! own waits in.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::handler_call::HandlerCall;
use super::pending_item::Attempted;
use super::room_notifier::RoomNotifier;
use crate::python::errors::flushed;
use crate::python::interpreter::{NoPause, StoppablePause, deadline_of};
use crate::python::item::{ItemType, PyItem, Sequence};
use crate::python::queue::Queue;

/// Put one item in without waiting. A `PendingItem` may be tried again.
///
/// Args:
///     notifier: Which partitions tasks of the loop wait for: there the item waits as well, behind
///     them. ahead: The partition where it is the caller's turn. inside: The handler call that the
///     caller belongs to.
#[pyfunction]
#[pyo3(signature = (
    queue: "Queue", item: "Any", notifier: "RoomNotifier | None", ahead: "int | None", call: "HandlerCall | None"
) -> "bool | PendingItem")]
pub(crate) fn try_produce(
    queue: &Queue,
    item: Bound<'_, PyAny>,
    notifier: Option<&RoomNotifier>,
    ahead: Option<usize>,
    call: Option<&HandlerCall>,
) -> PyResult<Attempted> {
    let core = queue.core()?;
    let py = item.py();
    let given = queue.selector.given(core, &item)?;
    let _assumed = HandlerCall::assume(call);
    Attempted::of(
        py,
        core.try_produce(PyItem::new(item), given, &|partition| {
            RoomNotifier::is_awaited(notifier, ahead, partition)
        }),
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
    queue: "Queue", items: "list[Any] | tuple[Any, ...]", start: "int", notifier: "RoomNotifier | None", ahead: "int | None",
    call: "HandlerCall | None"
) -> "tuple[int, bool | PendingItem | None]")]
pub(crate) fn try_produce_many(
    py: Python<'_>,
    queue: &Queue,
    items: &Bound<'_, PyAny>,
    start: usize,
    notifier: Option<&RoomNotifier>,
    ahead: Option<usize>,
    call: Option<&HandlerCall>,
) -> PyResult<(usize, Attempted)> {
    let core = queue.core()?;
    let Some(items) = Sequence::of(items) else {
        return Err(PyTypeError::new_err("items must be a list or a tuple"));
    };
    let _assumed = HandlerCall::assume(call);
    let (accepted, result) = items.try_produce(
        core,
        start,
        &|partition| RoomNotifier::is_awaited(notifier, ahead, partition),
        RoomNotifier::awaits_any(notifier, ahead),
    );
    let attempted = match result {
        Some(result) => Attempted::of(py, result, accepted)?,
        None => Attempted::Done(None),
    };
    Ok((accepted, attempted))
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
#[pyo3(signature = (queue: "Queue", timeout: "float | None", stop: "Any", call: "HandlerCall | None"))]
pub(crate) fn shutdown_until(
    queue: &Queue,
    timeout: Option<f64>,
    stop: &Bound<'_, PyAny>,
    call: Option<&HandlerCall>,
) -> PyResult<u64> {
    let (core, deadline) = (queue.core()?, deadline_of(timeout)?);
    let _assumed = HandlerCall::assume(call);
    core.shutdown_with(deadline, &mut StoppablePause(stop))
}

/// `remove_handler` without a wait.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
#[pyo3(signature = (queue: "Queue", item_type: "type | str"))]
pub(crate) fn remove_handler_soon(queue: &Queue, item_type: ItemType<'_>) -> PyResult<bool> {
    // An error: there was a handler, and it was not waited for.
    Ok(queue.registry.remove(queue.core()?, &item_type, &mut NoPause).unwrap_or(true))
}
