//! The lower bounds of `produce`: an empty method with its signature, and the same put called from
//! Rust.

use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, Config, HandlerRef, Item, PartitionPolicy, ProduceError, ThreadPolicy,
    TypeKey,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The size of a Python queue's item: an object and its type.
struct Object {
    _object: Py<PyAny>,
    key: usize,
}

impl Item for Object {
    fn type_key(&self) -> TypeKey {
        TypeKey(self.key)
    }
}

/// A class with a method that does nothing.
#[pyclass(frozen, subclass, weakref)]
struct Empty;

#[pymethods]
impl Empty {
    #[new]
    fn new() -> Self {
        Self
    }

    /// The signature of `produce`, with an empty body.
    #[pyo3(signature = (item, *, timeout=None))]
    fn produce(&self, item: Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<bool> {
        drop(item);
        Ok(timeout.is_none())
    }
}

fn refused(error: ProduceError<Object>) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Nanoseconds per put of these objects from Rust, into a queue with room for all of them and a
/// resting drain thread.
#[pyfunction]
fn put_ns(objects: Vec<Bound<'_, PyAny>>) -> PyResult<f64> {
    let config = Config {
        threads: ThreadPolicy::Fixed(1),
        partitions: PartitionPolicy::Adaptive { multiplier: 25 },
        buffer_size: objects.len() * 3,
        min_idle: Duration::from_secs(60),
        max_idle: Duration::from_secs(60),
        ..Config::default()
    };
    let queue = BatchQueue::builder("floor", config)
        .start()
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    let items: Vec<Object> = objects
        .into_iter()
        .map(|object| Object { key: object.get_type_ptr() as usize, _object: object.unbind() })
        .collect();
    let mut keys: Vec<usize> = items.iter().map(|item| item.key).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let handler = HandlerRef::new(|batch: &mut Batch<Object>| drop(batch.drain()));
        queue
            .add_handler(TypeKey(key), handler)
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    }
    let count = items.len();
    let began = Instant::now();
    for item in items {
        queue.produce(item).map_err(refused)?;
    }
    let took = began.elapsed();
    queue.shutdown(None);
    #[allow(clippy::cast_precision_loss)]
    Ok(took.as_nanos() as f64 / count as f64)
}

#[pymodule]
mod batchqueue_floor {
    #[pymodule_export]
    use super::{Empty, put_ns};
}
