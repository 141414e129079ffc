//! The bindings: the extension module `batchqueue._core`. They translate, and do nothing else.
//!
//! | room | what |
//! |---|---|
//! | `event_loop` | a queue used from an event loop |
//! | `facade` | what the facade asks of a queue beside its methods |
//! | `queue`, `snapshot` | the class `Queue`, and its statistics as a dict |
//! | `submit` | items with a future |
//! | `life` | a queue in one process, and how a forked child restarts it |
//! | `produce_many`, `produce_arrow` | many items; Arrow data, split into blocks of rows |
//! | `process` | the exit of the process and its forks |
//! | `config` | settings, policies, selectors, balancers |
//! | `handler` | handlers, and the threads that call them |
//! | `aggregator`, `aggregating` | the class `Aggregator`, and its part without the interpreter |
//! | `distinct` | the class `DistinctSketch` |
//! | `time` | buckets of time, and times without a zone as instants |
//! | `item` | what goes into a queue: objects and rows |
//! | `results` | the futures of submitted items |
//! | `entries` | records of Redis streams, out of the bytes of a reply |
//! | `stages` | what a stage of a pipeline holds, and what it does with its time |
//! | `errors` | the errors of the core as exceptions of Python |
//! | `interpreter` | guarded calls, pauses, forks |
//! | `exceptions` | the exceptions of `batchqueue.exceptions` |
//!
//! A room imports only rooms below it. The interpreter is never attached or detached under a lock
//! of the core, and Python objects are dropped while attached. Drain threads never log:
//! `control/log_helper.rs` does so for them. A producer logs in its own call, with no lock held.

// Docstrings here are Python's: Google style, with the names of Python.
#![allow(clippy::doc_markdown)]

mod aggregating;
mod aggregator;
mod config;
mod distinct;
mod entries;
mod errors;
mod event_loop;
mod exceptions;
mod facade;
mod handler;
mod interpreter;
mod item;
mod life;
mod process;
mod produce_arrow;
mod produce_many;
mod queue;
mod results;
mod snapshot;
mod stages;
mod submit;
mod time;

use pyo3::prelude::*;

// No GIL is needed: the classes are frozen, what they share is behind locks and atomics of Rust,
// and no code relies on a thread being the only one that is attached.
/// The Rust core of batchqueue. Use the names of the package `batchqueue` instead.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::aggregator::PyAggregator;
    #[pymodule_export]
    use super::config::key::partition_of_key;
    #[pymodule_export]
    use super::config::policies::{PartitionPolicy, ThreadPolicy, thread_count};
    #[pymodule_export]
    use super::distinct::DistinctSketch;
    #[pymodule_export]
    use super::entries::{PyEntries, PyReplyReader};
    #[pymodule_export]
    use super::event_loop::handler_call::HandlerCall;
    #[pymodule_export]
    use super::event_loop::nonblocking::{
        flush_until, produce_arrow_until, remove_handler_soon, room, shutdown_until, try_produce,
        try_produce_many, try_submit,
    };
    #[pymodule_export]
    use super::event_loop::pending_item::PyPendingItem;
    #[pymodule_export]
    use super::event_loop::room_notifier::RoomNotifier;
    #[pymodule_export]
    use super::facade::{add_handlers, close_to_outside, histograms_of, stats_of, unhandled_types};
    #[pymodule_export]
    use super::process::{close_all, forget_parent, is_exiting, prepare_for_forks};
    #[pymodule_export]
    use super::queue::Queue;
    #[pymodule_export]
    use super::results::FutureBase;
    #[pymodule_export]
    use super::stages::{GateTicket, PyCounter, PyTimeMeter, StageGate};
    #[pymodule_export]
    use super::time::{PyTimeBuckets, with_instants};

    /// The version of the package.
    #[pymodule_export]
    #[allow(non_upper_case_globals)] // as Python spells it
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
