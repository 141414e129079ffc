//! `Queue`: the class under the facade's `BatchQueue`.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::config::{CoreSettings, PyAssign, PySelector, Settings, run_for_caller};
use super::errors::{flushed, forked, refused, too_late};
use super::handler::{HandlerMethods, HandlerRegistry, Interpreter};
use super::interpreter::{InterpreterPause, deadline_of, generation};
use super::item::{ItemType, PyItem, Sequence};
use super::process::{is_exiting, register};
use super::produce_arrow::ArrowProduce;
use super::snapshot::snapshot;
use crate::BatchQueue;
use crate::arrow::Buffers;
use crate::rules::{Rule, rule_off};

/// The core of one queue; `batchqueue.BatchQueue` adds what is said in Python.
#[pyclass(frozen, subclass, weakref, module = "batchqueue._core")]
pub(crate) struct Queue {
    /// Taken out, and leaked, by the destructor in a forked child only.
    core: Option<BatchQueue<PyItem>>,
    generation: u32,
    pub(super) selector: PySelector,
    pub(super) registry: HandlerRegistry,
    /// The custom balancer's function, which the core holds.
    assign: Option<Arc<PyAssign>>,
    /// For `produce_arrow`.
    buffers: Buffers,
}

impl Queue {
    pub(super) fn core(&self) -> PyResult<&BatchQueue<PyItem>> {
        match &self.core {
            Some(queue) if self.generation == generation() || rule_off(Rule::ForkGeneration) => {
                Ok(queue)
            }
            _ => Err(forked()),
        }
    }
}

#[pymethods]
impl Queue {
    /// Starts the drain threads. `consumers`: none for handlers, else one, or one per drain thread.
    #[new]
    #[pyo3(signature = (name: "str", config: "Any", selector: "str", select: "Any", consumers: "Any", per_thread: "bool"))]
    fn new(
        py: Python<'_>,
        name: String,
        config: Settings<'_>,
        selector: &str,
        select: Option<Py<PyAny>>,
        consumers: Vec<HandlerMethods<'_>>,
        per_thread: bool,
    ) -> PyResult<Self> {
        if is_exiting() {
            return Err(too_late(&name));
        }
        let selector = PySelector::new(selector, select);
        let shared_scheduler =
            config.shared_scheduler.as_ref().map(|(pool, threads)| (pool.clone(), threads.0));
        let shutdown_timeout = config.shutdown_timeout;
        let CoreSettings { settings, common, assign } = config.into_core(selector.core())?;
        let registry = HandlerRegistry::new(common);
        let consumers = registry.add_consumers(consumers)?;
        let mut builder = BatchQueue::builder(name, settings).host(Interpreter);
        if per_thread {
            builder = builder.consumer_per_thread(move |thread| consumers[thread].clone());
        } else if let Some(consumer) = consumers.into_iter().next() {
            builder = builder.consumer(consumer);
        }
        if let Some((pool, threads)) = shared_scheduler {
            builder = builder.shared_scheduler(pool, threads);
        }
        // Detached: a new drain thread attaches as its first act, and a warning may be logged.
        let queue = py.detach(move || builder.start())?;
        if !register(queue.downgrade(), shutdown_timeout) {
            queue.shutdown_with(deadline_of(shutdown_timeout)?, &mut InterpreterPause(py))?;
            return Err(too_late(queue.name()));
        }
        Ok(Self {
            core: Some(queue),
            generation: generation(),
            selector,
            registry,
            assign,
            buffers: Buffers::default(),
        })
    }

    #[getter]
    fn name(&self) -> &str {
        // Also in a forked child: nothing is locked for it.
        self.core.as_ref().map_or("", BatchQueue::name)
    }

    /// Whether the queue takes items.
    #[getter]
    fn running(&self) -> PyResult<bool> {
        Ok(self.core()?.is_running())
    }

    /// Put one item in.
    ///
    /// Args:
    ///     item: Any object. It goes to the handler of exactly its class.
    ///     timeout: Seconds to wait for space with BLOCKING; None waits as long as it takes.
    ///
    /// Returns:
    ///     True: accepted. False: refused, because the partition is full and the strategy
    ///     IF_POSSIBLE, or because the queue is shut down.
    ///
    /// Raises:
    ///     ProduceTimeoutError: The partition stayed full for the whole time-out.
    ///     ReentrantProduceError: A handler of this queue would wait for itself.
    ///     QueueForkedError: The queue was made before a fork.
    #[pyo3(signature = (item, *, timeout=None))]
    fn produce(&self, item: Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<bool> {
        let queue = self.core()?;
        let py = item.py();
        let deadline = deadline_of(timeout)?;
        let given = self.selector.given(queue, &item)?;
        match queue.produce_with(PyItem::new(item), given, deadline, &mut InterpreterPause(py)) {
            Ok(()) => Ok(true),
            Err(refusal) => refused(py, refusal, 0).map_or(Ok(false), Err),
        }
    }

    /// Put many items in, in order, up to the first that is refused.
    ///
    /// Args:
    ///     items: Any iterable. A list or a tuple is taken in large pieces, which is several times
    ///     faster. timeout: Seconds in all to wait for space with BLOCKING; None waits as long as
    ///     it takes.
    ///
    /// Returns:
    ///     The number of items accepted: the first so many.
    ///
    /// Raises:
    ///     ProduceTimeoutError: A partition stayed full; `accepted` of the error says how many are
    ///     in. An interrupt,
    ///         like KeyboardInterrupt, carries `accepted` as well.
    ///     ReentrantProduceError: A handler of this queue would wait for itself.
    ///     QueueForkedError: The queue was made before a fork.
    #[pyo3(signature = (items, *, timeout=None))]
    fn produce_many(
        &self,
        py: Python<'_>,
        items: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let queue = self.core()?;
        let deadline = deadline_of(timeout)?;
        if let Some(items) = Sequence::of(items).filter(|_| !self.selector.is_by_caller()) {
            return items.produce(py, queue, deadline);
        }
        // One by one: an item that was pulled out of an iterator and then refused would be lost to
        // the caller.
        let mut accepted = 0;
        for item in items.try_iter()? {
            let item = item?;
            let given = self.selector.given(queue, &item)?;
            match queue.produce_with(PyItem::new(item), given, deadline, &mut InterpreterPause(py))
            {
                Ok(()) => accepted += 1,
                Err(refusal) => return refused(py, refusal, accepted).map_or(Ok(accepted), Err),
            }
        }
        Ok(accepted)
    }

    /// Put the rows of Arrow data in, split by the values of one column, the tags.
    ///
    /// Each tag's rows go to the handler that `add_handler("tag", ...)` registered, as a list of
    /// `pyarrow.RecordBatch`, in the order that they had; without pyarrow, as objects with
    /// `__arrow_c_array__`. The buffer and all counts are in rows. Where a tag's rows stand next to
    /// each other nothing is copied.
    ///
    /// Args:
    ///     batch: Anything with `__arrow_c_array__` or `__arrow_c_stream__`, like a record batch or
    ///     a table of pyarrow,
    ///         polars, DuckDB or nanoarrow.
    ///     type_column: Name of the column with the tags: strings, integers (7 is the tag "7"), or
    ///     a dictionary of
    ///         them. Rows with null, or a tag that has no handler, count as unhandled.
    ///     timeout: Seconds in all, from the call on, after which a full partition is not waited
    ///     for with BLOCKING; None
    ///         waits as long as it takes.
    ///
    /// Returns:
    ///     Rows accepted: all, unless the strategy is IF_POSSIBLE and a partition full, or the
    ///     queue is shut down.
    ///
    /// Raises:
    ///     ConfigError: No Arrow data, no such column, one of another type, or a selector by key or
    ///     by function. BatchQueueError: The stream of batches failed. ProduceTimeoutError: A
    ///     partition stayed full. Each error, and an interrupt like KeyboardInterrupt, says in
    ///         `accepted` how many rows are in: those of all batches before the last that was read,
    ///         and of that one some tags' rows, not the first so many.
    ///     ReentrantProduceError: A handler of this queue would wait for itself.
    ///     QueueForkedError: The queue was made before a fork.
    #[pyo3(signature = (batch, *, type_column, timeout=None))]
    fn produce_arrow(
        &self,
        batch: &Bound<'_, PyAny>,
        type_column: &str,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let (queue, deadline) = (self.core()?, deadline_of(timeout)?);
        let (registry, buffers) = (&self.registry, &self.buffers);
        ArrowProduce {
            queue,
            registry,
            buffers,
            type_column,
            deadline,
            accepted: 0,
            is_closed: false,
        }
        .produce(batch)
    }

    /// Wait until all items accepted before the call have been handled.
    ///
    /// Args:
    ///     timeout: Seconds to wait; None waits as long as it takes.
    ///
    /// Returns:
    ///     True: they have. False: time ran out, or a shutdown abandoned some.
    ///
    /// Raises:
    ///     BatchQueueError: Called from a drain thread, which would wait for itself.
    ///     QueueForkedError: The queue was made before a fork.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        flushed(self.core()?.flush(deadline_of(timeout)?, &mut InterpreterPause(py)))
    }

    /// Refuse every new item, deliver what was accepted, and end the drain threads.
    ///
    /// Called from a handler of this queue, it closes and returns; the drain threads end by
    /// themselves.
    ///
    /// Args:
    ///     timeout: Seconds to wait; None waits as long as it takes.
    ///
    /// Returns:
    ///     Abandoned items: 0 unless time ran out.
    ///
    /// Raises:
    ///     QueueForkedError: The queue was made before a fork.
    #[pyo3(signature = (timeout=None))]
    fn shutdown(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        self.core()?.shutdown_with(deadline_of(timeout)?, &mut InterpreterPause(py))
    }

    /// Refuse outside threads; drain threads may still produce.
    fn _close_to_outside(&self) -> PyResult<()> {
        self.core()?.close_to_outside();
        Ok(())
    }

    /// One handler for the type, or one for each of as many partitions. `wait`: until no thread is
    /// inside one that it had.
    #[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
    #[pyo3(signature = (item_type: "type | str", handlers: "Any", weight: "float", wait: "bool" = true))]
    fn _add_handlers(
        &self,
        py: Python<'_>,
        item_type: ItemType<'_>,
        handlers: Vec<HandlerMethods<'_>>,
        weight: f64,
        wait: bool,
    ) -> PyResult<()> {
        self.registry.add(py, self.core()?, &item_type, handlers, weight, wait)
    }

    /// Take a type's handler away: items of the type are unhandled from now on.
    ///
    /// The handler gets the batch that a drain thread may have in hand, and then `on_close`, unless
    /// it serves another type of this queue. When the call returns, no thread is inside it and none
    /// will enter. Called from a drain thread it does not wait for that.
    ///
    /// Args:
    ///     item_type: The class, or the tag.
    ///
    /// Returns:
    ///     False: the type had no handler, or the queue is shut down.
    ///
    /// Raises:
    ///     ConfigError: Neither a class nor a tag.
    ///     QueueForkedError: The queue was made before a fork.
    #[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
    #[pyo3(signature = (item_type: "type | str"))]
    fn remove_handler(&self, py: Python<'_>, item_type: ItemType<'_>) -> PyResult<bool> {
        self.registry.remove(self.core()?, &item_type, &mut InterpreterPause(py))
    }

    /// Run the balancer now, on the time since its last run.
    ///
    /// Called from a drain thread it asks for a run, does not wait for it, and returns 0.
    ///
    /// Returns:
    ///     Partitions whose wanted drain thread changed; 0 without a balancer. Each moves when its
    ///     thread has ended the cycle it is in.
    ///
    /// Raises:
    ///     QueueForkedError: The queue was made before a fork.
    fn rebalance(&self, py: Python<'_>) -> PyResult<usize> {
        let queue = self.core()?;
        run_for_caller(py, || queue.rebalance())
    }

    /// The core's snapshot, for the facade's `BatchQueueStats`.
    #[pyo3(signature = () -> "dict[str, Any]")]
    fn _stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        snapshot(py, self.core()?, &self.registry)
    }

    #[pyo3(signature = () -> "tuple[Any, ...]")]
    fn __reduce__(&self) -> PyResult<()> {
        let name = self.name();
        Err(PyTypeError::new_err(format!(
            "queue {name:?} is live and cannot be pickled; send its BatchQueueConfig and make a queue in the other process"
        )))
    }

    /// A running queue is a root: its drain threads deliver what was accepted, through handlers
    /// that nobody else may hold any more. Once they have ended, cycles through the handlers are
    /// garbage like any other.
    #[allow(clippy::needless_pass_by_value)]
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let ended = self.generation == generation()
            && self.core.as_ref().is_some_and(BatchQueue::has_ended);
        if ended {
            self.registry.traverse(&visit)?;
            self.selector.traverse(&visit)?;
            if let Some(assign) = &self.assign {
                assign.traverse(&visit)?;
            }
        }
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.generation != generation() {
            // A forked child: the locks inside may be held by threads that do not exist here.
            std::mem::forget(self.core.take());
            std::mem::forget(self.buffers.clone());
        }
    }
}
