//! The core's statistics as a Python dict, from which the facade makes a `BatchQueueStats`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::arrow::Tags;
use crate::item::TypeKey;
use crate::observe::histogram::Histogram;
use crate::python::handler::HandlerRegistry;
use crate::python::item::PyItem;
use crate::queue::BatchQueue;

/// Stands for all types of a queue with a consumer.
const CONSUMER: &str = "consumer";

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Count and sum of a histogram, and how many of its values are at most each limit.
type Figures = (u64, u64, Vec<u64>);

fn figures(histogram: &Histogram, limits: &[u64]) -> Figures {
    let at_most = limits.iter().map(|&limit| histogram.at_most(limit)).collect();
    (histogram.count(), histogram.sum(), at_most)
}

/// A type, and its histograms: of waits, items and calls.
pub(crate) type TypeHistograms = (Py<PyAny>, Figures, Figures, Figures);

/// The histograms of each type: of waits, items and calls; times in nanoseconds. `limits`: powers
/// of two, for times and for items.
pub(crate) fn histograms(
    py: Python<'_>,
    queue: &BatchQueue<PyItem>,
    registry: &HandlerRegistry,
    (of_times, of_items): (&[u64], &[u64]),
) -> Vec<TypeHistograms> {
    let histograms = queue.histograms();
    let entries = registry.entries.lock();
    let named = histograms.iter().filter_map(|(key, types)| {
        let item_type = match *key {
            TypeKey::CONSUMER => PyString::new(py, CONSUMER).into_any().unbind(),
            key => entries.type_of(py, key)?,
        };
        let (waits, calls) = (figures(&types.waits, of_times), figures(&types.calls, of_times));
        Some((item_type, waits, figures(&types.batch_items, of_items), calls))
    });
    named.collect()
}

pub(crate) fn snapshot<'py>(
    py: Python<'py>,
    queue: &BatchQueue<PyItem>,
    registry: &HandlerRegistry,
) -> PyResult<Bound<'py, PyDict>> {
    let stats = queue.stats();
    registry.forget(queue);
    let entries = registry.entries.lock();
    let consumer = PyString::new(py, CONSUMER);
    let type_of = |key: &TypeKey| match *key {
        TypeKey::CONSUMER => Some(consumer.clone().into_any().unbind()),
        key => entries.type_of(py, key),
    };
    // The default handler has one more key for rows, which few queues have.
    let is_of_rows = |key: &TypeKey| *key == Tags::UNKNOWN;
    let partitions: Vec<_> = stats
        .partitions
        .iter()
        .map(|partition| {
            (
                partition.index,
                partition.used,
                partition.owner,
                partition.attempts,
                partition.busy.as_secs_f64(),
                partition.types.iter().filter(|key| !is_of_rows(key)).filter_map(type_of).collect(),
            )
        })
        .collect::<Vec<(usize, u64, usize, u64, f64, Vec<Py<PyAny>>)>>();
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
