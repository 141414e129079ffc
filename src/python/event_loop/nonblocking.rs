//! The calls of `AsyncBatchQueue`: those that do not wait, and those in which a separate thread
//! waits.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::handler_call::HandlerCall;
use super::pending_item::Attempted;
use super::room_notifier::{RoomNotifier, line_of};
use crate::python::errors::flushed;
use crate::python::interpreter::{GuardedRef, NoPause, StoppablePause, Timeout, deadline_of};
use crate::python::item::{ItemType, Sequence};
use crate::python::queue::Queue;
use crate::python::results::{FutureBase, Mail};

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
    let life = queue.life()?;
    let core = life.core()?;
    let py = item.py();
    let given = queue.selector.given(core, &item)?;
    let _assumed = HandlerCall::assume(call);
    Attempted::of(
        py,
        core.name(),
        core.try_produce(life.item(item)?, given, &|line| {
            RoomNotifier::is_awaited(notifier, turn_at, line)
        }),
        0,
    )
}

/// Enqueue one item whose result is wanted, without waiting.
///
/// Args:
///     queue: The queue.
///     item: Any object.
///     notifier: As in `try_produce`.
///     call: As in `try_produce`.
///     mailbox: Its `deliver` gets a list of pairs when items are done: `destination`, and the
///         future of the item.
///     destination: Any object.
///
/// Returns:
///     The future of the item; and False, or a `PendingItem` to try again. A refused item has its
///     error in the future.
#[pyfunction]
#[pyo3(signature = (
    queue: "Queue", item: "Any", notifier: "RoomNotifier | None", call: "HandlerCall | None",
    mailbox: "Any", destination: "Any"
) -> "tuple[Any, bool | PendingItem]")]
pub(crate) fn try_submit<'py>(
    queue: &Queue,
    item: Bound<'py, PyAny>,
    notifier: Option<&RoomNotifier>,
    call: Option<&HandlerCall>,
    mailbox: Py<PyAny>,
    destination: Py<PyAny>,
) -> PyResult<(Bound<'py, FutureBase>, Attempted)> {
    let life = queue.life()?;
    let core = life.core()?;
    let py = item.py();
    let given = queue.selector.given(core, &item)?;
    let (future, item) = Queue::submitted(life, item)?;
    let (mailbox, destination) = (GuardedRef::new(mailbox), GuardedRef::new(destination));
    future.get().send_to(Mail { mailbox, destination });
    let _assumed = HandlerCall::assume(call);
    let is_awaited = |line| RoomNotifier::is_awaited(notifier, None, line);
    let attempted = Attempted::of(py, core.name(), core.try_produce(item, given, &is_awaited), 0);
    Ok((future, attempted.unwrap_or(Attempted::Done(Some(false)))))
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
    let life = queue.life()?;
    let core = life.core()?;
    let Some(items) = Sequence::of(items) else {
        return Err(PyTypeError::new_err("items must be a list or a tuple"));
    };
    let _assumed = HandlerCall::assume(call);
    let (accepted, result) = items.try_produce(
        core,
        &life.registry,
        start,
        &|line| RoomNotifier::is_awaited(notifier, turn_at, line),
        RoomNotifier::is_any_awaited(notifier, turn_at),
    )?;
    let attempted = match result {
        Some(result) => Attempted::of(py, core.name(), result, accepted)?,
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
#[pyo3(signature = (queue: "Queue", timeout, stop: "Any"))]
pub(crate) fn flush_until(
    queue: &Queue,
    timeout: Option<Timeout>,
    stop: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    flushed(queue.core()?.flush(deadline_of(timeout)?, &mut StoppablePause(stop)))
}

/// `Queue.produce_arrow`, which also ends when the event `stop` is set.
///
/// Args:
///     queue: The queue.
///     batch: As in `Queue.produce_arrow`.
///     type_column: As in `Queue.produce_arrow`.
///     timeout: As in `Queue.produce_arrow`.
///     stop: A `threading.Event`.
///     call: The handler call that the caller belongs to.
#[pyfunction]
#[pyo3(signature = (
    queue: "Queue", batch: "Any", type_column: "str", timeout, stop: "Any",
    call: "HandlerCall | None"
))]
pub(crate) fn produce_arrow_until(
    queue: &Queue,
    batch: &Bound<'_, PyAny>,
    type_column: &Bound<'_, PyAny>,
    timeout: Option<Timeout>,
    stop: &Bound<'_, PyAny>,
    call: Option<&HandlerCall>,
) -> PyResult<usize> {
    let _assumed = HandlerCall::assume(call);
    queue.produce_rows(batch, type_column, timeout, Some(stop))
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
    queue: "Queue", timeout, stop: "Any", call: "HandlerCall | None"
))]
pub(crate) fn shutdown_until(
    queue: &Queue,
    timeout: Option<Timeout>,
    stop: &Bound<'_, PyAny>,
    call: Option<&HandlerCall>,
) -> PyResult<u64> {
    let (core, deadline) = (queue.core_to_close()?, deadline_of(timeout)?);
    let _assumed = HandlerCall::assume(call);
    core.shutdown_with(deadline, &mut StoppablePause(stop))
}

/// `Queue.remove_handler` without the wait.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
#[pyo3(signature = (queue: "Queue", item_type: "type | str"))]
pub(crate) fn remove_handler_soon(queue: &Queue, item_type: ItemType<'_>) -> PyResult<bool> {
    // An error means that there was a handler, and that this call did not wait for it.
    let life = queue.life()?;
    Ok(life.registry.remove(life.core()?, &item_type, None, &mut NoPause).unwrap_or(true))
}
