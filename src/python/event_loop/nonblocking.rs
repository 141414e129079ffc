//! The calls of `AsyncBatchQueue`: those that do not wait, and those in which a separate thread
//! waits.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::handler_call::HandlerCall;
use super::pending_item::Attempted;
use super::room_notifier::{RoomNotifier, line_of};
use crate::python::errors::flushed;
use crate::python::interpreter::{NoPause, StoppablePause, deadline_of};
use crate::python::item::{ItemType, PyItem, Sequence};
use crate::python::queue::Queue;

/// Enqueue one item without waiting.
///
/// Args:
///     queue: The queue.
///     item: Any object.
///     notifier: The lines that tasks of the loop wait in. There the item waits as well, behind
///         them.
///     turn_at: The line where it is the caller's turn.
///     call: The handler call that the caller belongs to.
///
/// Returns:
///     True if the item was accepted, False if it was refused, or a `PendingItem` to try again.
#[pyfunction]
#[pyo3(signature = (
    queue: "Queue", item: "Any", notifier: "RoomNotifier | None", turn_at: "tuple[int, int] | None",
    call: "HandlerCall | None"
) -> "bool | PendingItem")]
pub(crate) fn try_produce(
    queue: &Queue,
    item: Bound<'_, PyAny>,
    notifier: Option<&RoomNotifier>,
    turn_at: Option<(usize, usize)>,
    call: Option<&HandlerCall>,
) -> PyResult<Attempted> {
    let core = queue.core()?;
    let py = item.py();
    let given = queue.selector.given(core, &item)?;
    let _assumed = HandlerCall::assume(call);
    Attempted::of(
        py,
        core.try_produce(PyItem::new(item), given, &|line| {
            RoomNotifier::is_awaited(notifier, turn_at, line)
        }),
        0,
    )
}

/// Enqueue the items of a list or a tuple from `start` on, without waiting.
///
/// Args:
///     queue: The queue.
///     items: All items of the call.
///     start: Index of the first item to enqueue.
///     notifier: As in `try_produce`.
///     turn_at: As in `try_produce`.
///     call: As in `try_produce`.
///
/// Returns:
///     The number of items accepted so far, those before `start` included, and the result for the
///     next item: True if there is none, None if the loop should get a turn first, else as in
///     `try_produce`.
#[pyfunction]
#[pyo3(signature = (
    queue: "Queue", items: "list[Any] | tuple[Any, ...]", start: "int",
    notifier: "RoomNotifier | None", turn_at: "tuple[int, int] | None", call: "HandlerCall | None"
) -> "tuple[int, bool | PendingItem | None]")]
pub(crate) fn try_produce_many(
    py: Python<'_>,
    queue: &Queue,
    items: &Bound<'_, PyAny>,
    start: usize,
    notifier: Option<&RoomNotifier>,
    turn_at: Option<(usize, usize)>,
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
        &|line| RoomNotifier::is_awaited(notifier, turn_at, line),
        RoomNotifier::is_any_awaited(notifier, turn_at),
    );
    let attempted = match result {
        Some(result) => Attempted::of(py, result, accepted)?,
        None => Attempted::Done(None),
    };
    Ok((accepted, attempted))
}

/// Return the number of items of a line that there is room for now; `buffer_size` once its
/// partition accepts no more items.
#[pyfunction]
#[pyo3(signature = (queue: "Queue", line: "tuple[int, int]"))]
pub(crate) fn room(queue: &Queue, line: (usize, usize)) -> PyResult<usize> {
    Ok(queue.core()?.room(line_of(line)))
}

/// `Queue.flush`, whose wait also ends when the event `stop` is set.
#[pyfunction]
#[pyo3(signature = (queue: "Queue", timeout: "float | None", stop: "Any"))]
pub(crate) fn flush_until(
    queue: &Queue,
    timeout: Option<f64>,
    stop: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    flushed(queue.core()?.flush(deadline_of(timeout)?, &mut StoppablePause(stop)))
}

/// `Queue.shutdown`, whose wait also ends when the event `stop` is set.
///
/// Args:
///     queue: The queue.
///     timeout: As in `Queue.shutdown`.
///     stop: A `threading.Event`.
///     call: The handler call that the caller belongs to.
#[pyfunction]
#[pyo3(signature = (
    queue: "Queue", timeout: "float | None", stop: "Any", call: "HandlerCall | None"
))]
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

/// `Queue.remove_handler` without the wait.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
#[pyo3(signature = (queue: "Queue", item_type: "type | str"))]
pub(crate) fn remove_handler_soon(queue: &Queue, item_type: ItemType<'_>) -> PyResult<bool> {
    // An error means that there was a handler, and that this call did not wait for it.
    Ok(queue.registry.remove(queue.core()?, &item_type, None, &mut NoPause).unwrap_or(true))
}
