//! Statistics and histograms as Python objects.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrow::Tags;
use crate::item::TypeKey;
use crate::observe::histogram::Histogram;
use crate::python::queue::Queue;

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The count and sum of a histogram, and for each limit the number of values up to it.
type Figures = (u64, u64, Vec<u64>);

fn figures(histogram: &Histogram, limits: &[u64]) -> Figures {
    let at_most = limits.iter().map(|&limit| histogram.at_most(limit)).collect();
    (histogram.count(), histogram.sum(), at_most)
}

/// A type and its histograms of waits, items and calls.
type TypeHistograms = (Py<PyAny>, Figures, Figures, Figures);

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
#[pyo3(signature = (
    queue, limits_ns: "list[int]", limits_items: "list[int]"
) -> "list[tuple[Any, Any, Any, Any]]")]
pub(crate) fn histograms_of(
    py: Python<'_>,
    queue: &Queue,
    limits_ns: Vec<u64>,
    limits_items: Vec<u64>,
) -> PyResult<Vec<TypeHistograms>> {
    let life = queue.life()?;
    let histograms = life.core()?.histograms();
    let entries = life.registry.entries.lock();
    let named = histograms.iter().filter_map(|(key, types)| {
        let item_type = entries.type_of(py, *key)?;
        let (waits, calls) = (figures(&types.waits, &limits_ns), figures(&types.calls, &limits_ns));
        Some((item_type, waits, figures(&types.batch_items, &limits_items), calls))
    });
    Ok(named.collect())
}

/// Return the names of types without a handler of which the queue got items, the first few.
#[pyfunction]
pub(crate) fn unhandled_types(queue: &Queue) -> PyResult<Vec<String>> {
    Ok(queue.life()?.registry.entries.lock().unhandled.clone())
}

/// Return the core's snapshot, for the facade's `BatchQueueStats`.
#[pyfunction]
#[pyo3(signature = (queue) -> "dict[str, Any]")]
pub(crate) fn stats_of<'py>(py: Python<'py>, queue: &Queue) -> PyResult<Bound<'py, PyDict>> {
    let (life, identity) = (queue.life()?, queue.identity);
    let (queue, registry) = (life.core()?, &life.registry);
    let stats = queue.stats();
    registry.forget(queue);
    let entries = registry.entries.lock();
    let type_of = |key: &TypeKey| entries.type_of(py, *key);
    // The default handler has one more key for rows, which few queues have.
    let is_of_rows = |key: &TypeKey| *key == Tags::UNKNOWN;
    let partitions = stats.partitions.iter().map(|partition| {
        let keys = partition.types.iter().filter(|key| !is_of_rows(key));
        let types: Vec<_> = keys.filter_map(type_of).collect();
        let busy = partition.busy.as_secs_f64();
        (partition.index, partition.used, partition.owner, partition.attempts, busy, types)
    });
    let partitions: Vec<_> = partitions.collect();
    let handlers: Vec<_> = stats
        .handlers
        .iter()
        .filter(|handler| !is_of_rows(&handler.key) || handler.batches > 0)
        .filter_map(|handler| {
            let item_type = type_of(&handler.key)?;
            Some((
                item_type,
                handler.consumed,
                handler.failed,
                handler.batches,
                handler.ns_per_item,
                milliseconds(handler.call_p50),
                milliseconds(handler.call_p99),
                milliseconds(handler.call_max),
                handler.batch_items_mean,
                handler.in_call.as_secs_f64(),
            ))
        })
        .collect();
    let threads: Vec<_> = stats
        .drain_threads
        .iter()
        .map(|thread| (thread.index, thread.items, thread.cycles, thread.cpu.as_secs_f64()))
        .collect();
    drop(entries);
    let snapshot = PyDict::new(py);
    snapshot.set_item("name", queue.name())?;
    snapshot.set_item("identity", identity)?;
    snapshot.set_item("total_used", stats.total_used())?;
    snapshot.set_item("total_capacity", stats.total_capacity())?;
    macro_rules! as_they_are {
        ($($name:ident)*) => { $(snapshot.set_item(stringify!($name), stats.$name)?;)* };
    }
    as_they_are! {
        buffer_size attempts produced refused consumed failed unhandled abandoned queued held
        in_flight dead_lettered rebalances thread_count taken_over moves load_ratio log_waiting
        log_dropped
    }
    snapshot.set_item("longest_handoff_ms", milliseconds(stats.longest_handoff))?;
    snapshot.set_item("oldest_age_ms", milliseconds(stats.oldest_age))?;
    snapshot.set_item("stuck_handlers", PyTuple::new(py, stats.stuck_handlers)?)?;
    snapshot.set_item("log_in_line_s", stats.log_in_line.as_secs_f64())?;
    snapshot.set_item("partitions", partitions)?;
    snapshot.set_item("handlers", handlers)?;
    snapshot.set_item("drain_threads", threads)?;
    Ok(snapshot)
}
