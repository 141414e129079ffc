//! The bindings: the extension module `batchqueue._core`. They translate, and do nothing else.
//!
//! | file | what |
//! |---|---|
//! | `queue` | the class `Queue`: produce, submit, flush |
//! | `queue/life` | a queue in one process; the exit of the process and its forks |
//! | `queue/sequence`, `queue/produce_arrow` | many items; Arrow data, split into blocks of rows |
//! | `queue/event_loop` | a queue used from an event loop |
//! | `queue/snapshot` | statistics as a dict |
//! | `handler` | handlers, and the threads that call them |
//! | `config` | settings, policies, selectors, balancers |
//! | `aggregator` | the classes `Aggregator` and `DistinctSketch`; buckets of time |
//! | `future` | the futures of submitted items |
//! | `item` | what goes into a queue: objects and rows |
//! | `entries` | records of Redis streams, from the bytes of a reply |
//! | `stages` | what a stage of a pipeline holds, and how it spends its time |
//! | `errors` | the core's errors as Python exceptions |
//! | `interpreter` | guarded calls, pauses, forks |
//!
//! The interpreter is never attached or detached under a lock of the core, and Python objects are
//! dropped while attached. Drain threads never log: `control/log_helper.rs` does so for them. A
//! producer logs in its own call, with no lock held.
// Docstrings here are Python's: Google style, with the names of Python.
#![allow(clippy::doc_markdown)]
// PyO3 passes extracted arguments by value.
#![allow(clippy::needless_pass_by_value)]

pub(crate) mod aggregator;
pub(crate) mod config;
pub(crate) mod entries;
pub(crate) mod errors;
pub(crate) mod future;
pub(crate) mod handler;
pub(crate) mod interpreter;
pub(crate) mod item;
pub(crate) mod queue;
pub(crate) mod stages;

use pyo3::prelude::*;

// No GIL is needed: the classes are frozen except `DistinctSketch`, which PyO3 guards, shared state
// is behind locks and atomics of Rust, and no code relies on being the only attached thread.
/// The Rust core of batchqueue. Use the names of the package `batchqueue` instead.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::python::{
        aggregator::{DistinctSketch, PyAggregator, PyTimeBuckets, with_instants},
        config::{PartitionPolicy, ThreadPolicy, partition_of_key, thread_count},
        entries::{PyEntries, PyReplyReader},
        future::FutureBase,
        handler::py_handler::HandlerCall,
        interpreter::watch_forks,
        queue::event_loop::{
            PyPendingItem, RoomNotifier, flush_until, produce_arrow_until, remove_handler_soon,
            room, shutdown_until, try_produce, try_produce_many, try_submit,
        },
        queue::life::{close_all, fill_statics, forget_parent, is_exiting, prepare_for_forks},
        queue::snapshot::{histograms_of, stats_of, unhandled_types},
        queue::{Queue, add_handlers, close_to_outside, end, wait_logged},
        stages::{GateTicket, PyCounter, PyTimeMeter, StageGate},
    };

    /// The version of the package.
    #[pymodule_export]
    #[allow(non_upper_case_globals)] // as Python spells it
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
