//! What the facade asks of a queue beside the methods that users call.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::handler::{HandlerMethods, HandlerOptions};
use super::interpreter::{Timeout, deadline_of};
use super::item::ItemType;
use super::life::run_inline;
use super::queue::Queue;
use super::snapshot::{TypeHistograms, histograms, snapshot};

/// Give a type one handler, or several, one for each of as many partitions.
///
/// Args:
///     queue: The queue.
///     item_type: The class, or the tag.
///     handlers: The methods of each handler.
///     options: The settings of the type, a `HandlerOptions`.
///     wait: Whether to wait until no thread is inside a previous handler of the type.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
#[pyo3(signature = (
    queue: "Queue", item_type: "type | str", handlers: "Any", options: "Any", wait: "bool" = true
))]
pub(crate) fn add_handlers(
    py: Python<'_>,
    queue: &Queue,
    item_type: ItemType<'_>,
    handlers: &Bound<'_, PyAny>,
    options: &Bound<'_, PyAny>,
    wait: bool,
) -> PyResult<()> {
    let (life, recipe) = (queue.life()?, queue.recipe.as_ref());
    let (queue, wait) = (life.core()?, wait && !life.core()?.is_inline());
    let (methods, settings): (Vec<HandlerMethods<'_>>, HandlerOptions<'_>) =
        (handlers.extract()?, options.extract()?);
    life.registry.add(py, queue, &item_type, methods, settings, wait)?;
    if let Some(recipe) = recipe {
        recipe.note(&item_type, handlers.clone().unbind(), options.clone().unbind());
    }
    run_inline(py, queue, None)
}

/// Refuse threads that do not drain. Drain threads may still produce.
///
/// Args:
///     queue: The queue.
///     timeout: Seconds until the end of the shutdown that will follow. None: without a limit.
#[pyfunction]
#[pyo3(signature = (queue: "Queue", timeout))]
pub(crate) fn close_to_outside(queue: &Queue, timeout: Option<Timeout>) -> PyResult<()> {
    queue.core_to_close()?.close_to_outside(deadline_of(timeout)?);
    Ok(())
}

/// Return the core's snapshot, for the facade's `BatchQueueStats`.
#[pyfunction]
#[pyo3(signature = (queue: "Queue") -> "dict[str, Any]")]
pub(crate) fn stats_of<'py>(py: Python<'py>, queue: &Queue) -> PyResult<Bound<'py, PyDict>> {
    let life = queue.life()?;
    let snapshot = snapshot(py, life.core()?, &life.registry)?;
    snapshot.set_item("identity", queue.identity)?;
    Ok(snapshot)
}

/// Return the names of types without a handler of which the queue got items, the first few.
#[pyfunction]
#[pyo3(signature = (queue: "Queue"))]
pub(crate) fn unhandled_types(queue: &Queue) -> PyResult<Vec<String>> {
    Ok(queue.life()?.registry.lock().unhandled())
}

/// Return the histograms of each type: waits, items and times of calls.
///
/// Args:
///     queue: The queue.
///     limits_ns: Limits of the buckets of times, ascending powers of two, in nanoseconds.
///     limits_items: The same for items.
///
/// Returns:
///     For each type the type, and for each histogram its count, its sum, and how many of its
///     values are at most each limit.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
#[pyo3(signature = (
    queue: "Queue", limits_ns: "list[int]", limits_items: "list[int]"
) -> "list[tuple[Any, Any, Any, Any]]")]
pub(crate) fn histograms_of(
    py: Python<'_>,
    queue: &Queue,
    limits_ns: Vec<u64>,
    limits_items: Vec<u64>,
) -> PyResult<Vec<TypeHistograms>> {
    let life = queue.life()?;
    Ok(histograms(py, life.core()?, &life.registry, (&limits_ns, &limits_items)))
}
