//! The core's statistics as a Python dict, from which the facade makes a `BatchQueueStats`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::handler::HandlerRegistry;
use super::item::PyItem;
use crate::{BatchQueue, TypeKey};

pub(super) fn snapshot<'py>(
    py: Python<'py>,
    queue: &BatchQueue<PyItem>,
    registry: &HandlerRegistry,
) -> PyResult<Bound<'py, PyDict>> {
    let stats = queue.stats();
    registry.forget(queue);
    let entries = registry.lock();
    let type_of = |key: &TypeKey| entries.type_of(py, *key);
    let partitions: Vec<_> = stats
        .partitions
        .iter()
        .map(|partition| {
            (
                partition.index,
                partition.used,
                partition.owner,
                partition.attempts,
                partition.types.iter().filter_map(type_of).collect(),
            )
        })
        .collect::<Vec<(usize, u64, usize, u64, Vec<Py<PyAny>>)>>();
    let handlers: Vec<_> = stats
        .handlers
        .iter()
        .filter_map(|handler| {
            let item_type = type_of(&handler.key)?;
            Some((
                item_type,
                handler.consumed,
                handler.failed,
                handler.batches,
                handler.ns_per_item,
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
    snapshot.set_item("buffer_size", stats.buffer_size)?;
    snapshot.set_item("total_used", stats.total_used())?;
    snapshot.set_item("total_capacity", stats.total_capacity())?;
    snapshot.set_item("attempts", stats.attempts)?;
    snapshot.set_item("produced", stats.produced)?;
    snapshot.set_item("refused", stats.refused)?;
    snapshot.set_item("consumed", stats.consumed)?;
    snapshot.set_item("failed", stats.failed)?;
    snapshot.set_item("unhandled", stats.unhandled)?;
    snapshot.set_item("abandoned", stats.abandoned)?;
    snapshot.set_item("queued", stats.queued)?;
    snapshot.set_item("held", stats.held)?;
    snapshot.set_item("in_flight", stats.in_flight)?;
    snapshot.set_item("dead_lettered", stats.dead_lettered)?;
    snapshot.set_item("rebalances", stats.rebalances)?;
    snapshot.set_item("thread_count", stats.thread_count)?;
    snapshot.set_item("taken_over", stats.taken_over)?;
    snapshot.set_item("moves", stats.moves)?;
    snapshot.set_item("load_ratio", stats.load_ratio)?;
    snapshot.set_item("longest_handoff_ms", stats.longest_handoff.as_secs_f64() * 1e3)?;
    snapshot.set_item("stuck_handlers", PyTuple::new(py, stats.stuck_handlers)?)?;
    snapshot.set_item("partitions", partitions)?;
    snapshot.set_item("handlers", handlers)?;
    snapshot.set_item("drain_threads", threads)?;
    Ok(snapshot)
}
