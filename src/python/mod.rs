//! The bindings: the extension module `batchqueue._core`. They translate, and do nothing else.
//!
//! Rules kept here: the interpreter is never attached or detached under a lock of the core, and
//! Python objects are dropped while attached. Drain threads log between two cycles; a producer and
//! a shutdown log in their own call, with no lock held.

// Docstrings here are Python's: Google style, with the names of Python.
#![allow(clippy::doc_markdown)]

mod aggregator;
mod balancer;
mod bell;
mod block;
mod call;
mod columnar;
mod handler;
mod host;
mod indexed;
mod inside;
mod item;
mod item_type;
mod lifecycle;
mod pause;
mod policies;
mod queue;
mod refusal;
mod registered;
mod select;
mod settings;
mod snapshot;
mod unblocked;
mod waiting;

use pyo3::prelude::*;

pyo3::import_exception!(batchqueue.exceptions, BatchQueueError);
pyo3::import_exception!(batchqueue.exceptions, ConfigError);
pyo3::import_exception!(batchqueue.exceptions, ProduceTimeoutError);
pyo3::import_exception!(batchqueue.exceptions, QueueClosedError);
pyo3::import_exception!(batchqueue.exceptions, QueueForkedError);
pyo3::import_exception!(batchqueue.exceptions, ReentrantProduceError);

impl From<crate::ConfigError> for PyErr {
    fn from(error: crate::ConfigError) -> Self {
        ConfigError::new_err(error.to_string())
    }
}

// No GIL is needed: the classes are frozen, what they share is behind locks and atomics of Rust,
// and no code relies on a thread being the only one that is attached.
/// The Rust core of batchqueue. Use the names of the package `batchqueue` instead.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::aggregator::PyAggregator;
    #[pymodule_export]
    use super::bell::Bell;
    #[pymodule_export]
    use super::inside::Inside;
    #[pymodule_export]
    use super::lifecycle::{after_fork_in_child, close_all, is_exiting};
    #[pymodule_export]
    use super::policies::{PartitionPolicy, ThreadPolicy, thread_count};
    #[pymodule_export]
    use super::queue::Queue;
    #[pymodule_export]
    use super::unblocked::{
        flush_until, remove_handler_soon, room, shutdown_until, try_produce, try_produce_many,
    };
    #[pymodule_export]
    use super::waiting::Waiting;
}
