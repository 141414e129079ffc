//! `Queue`: the class under the facade's `BatchQueue`.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::config::{CoreSettings, PyAssign, PySelector, Settings, run_for_caller};
use super::errors::{flushed, forked, refused, too_late};
use super::handler::{HandlerMethods, HandlerOptions, HandlerRegistry, Interpreter};
use super::interpreter::{InterpreterPause, deadline_of, generation};
use super::item::{ItemType, PyItem, Sequence};
use super::process::{is_exiting, register};
use super::produce_arrow::ArrowProduce;
use super::snapshot::snapshot;
use crate::BatchQueue;
use crate::arrow::Buffers;
use crate::rules::{Rule, rule_off};

/// The core of one queue; `batchqueue.BatchQueue` adds what is written in Python.
#[pyclass(frozen, subclass, weakref, module = "batchqueue._core")]
pub(crate) struct Queue {
    /// Taken out, and leaked, only by the destructor in a forked child.
    core: Option<BatchQueue<PyItem>>,
    generation: u32,
    pub(super) selector: PySelector,
    pub(super) registry: HandlerRegistry,
    /// The function of a custom balancer, which the core holds as well.
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
    /// Start the drain threads.
    ///
    /// Args:
    ///     name: The name of the queue.
    ///     config: A `BatchQueueConfig`.
    ///     selector: The kind of the selector, and its function or None.
    ///     consumers: Methods of the consumers: none if items go to handlers, else one, or one per
    ///         drain thread.
    ///     per_thread: Whether there is one consumer per drain thread.
    ///     dead_letter: Methods of the handler of dead letters, or None.
    #[new]
    #[pyo3(signature = (
        name: "str", config: "Any", selector: "tuple[str, Any]", consumers: "Any",
        per_thread: "bool", dead_letter: "Any"
    ))]
    fn new(
        py: Python<'_>,
        name: String,
        config: Settings<'_>,
        selector: (String, Option<Py<PyAny>>),
        consumers: Vec<HandlerMethods<'_>>,
        per_thread: bool,
        dead_letter: Option<HandlerMethods<'_>>,
    ) -> PyResult<Self> {
        if is_exiting() {
            return Err(too_late(&name));
        }
        let (kind, select) = selector;
        let selector = PySelector::new(&kind, select);
        let shared_scheduler =
            config.shared_scheduler.as_ref().map(|(pool, threads)| (pool.clone(), threads.0));
        let shutdown_timeout = config.shutdown_timeout;
        let CoreSettings { settings, common, assign } = config.into_core(selector.core())?;
        let registry = HandlerRegistry::new(&name, common);
        let keeper = dead_letter.map(|keeper| registry.add_keeper(keeper)).transpose()?;
        let consumers = registry.add_consumers(consumers)?;
        let mut builder = BatchQueue::builder(name, settings).host(Interpreter);
        if per_thread {
            builder = builder.consumer_per_thread(move |thread| consumers[thread].clone());
        } else if let Some(consumer) = consumers.into_iter().next() {
            builder = builder.consumer(consumer);
        }
        if let Some(keeper) = keeper {
            builder = builder.dead_letter(keeper);
        }
        if let Some((pool, threads)) = shared_scheduler {
            builder = builder.shared_scheduler(pool, threads);
        }
        // Detached: a new drain thread attaches first of all, and a warning may be logged.
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

    /// The name of the queue.
    #[getter]
    fn name(&self) -> &str {
        // Works in a forked child too: it locks nothing.
        self.core.as_ref().map_or("", BatchQueue::name)
    }

    /// Whether the queue accepts items: False once it is shut down.
    #[getter]
    fn running(&self) -> PyResult<bool> {
        Ok(self.core()?.is_running())
    }

    /// Enqueue one item.
    ///
    /// Args:
    ///     item: Any object. It goes to the handler of exactly its class.
    ///     timeout: Seconds to wait for space with `BufferStrategy.BLOCKING`. Default: no limit.
    ///
    /// Returns:
    ///     True if the item was accepted. False if it was refused: the partition is full and the
    ///     strategy is `IF_POSSIBLE`, or the queue is shut down.
    ///
    /// Raises:
    ///     ProduceTimeoutError: The partition stayed full for the whole timeout.
    ///     ReentrantProduceError: The wait of a handler would never end.
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

    /// Enqueue many items in order, up to the first that is refused.
    ///
    /// Args:
    ///     items: Any iterable. A list or a tuple is several times faster, because it is enqueued
    ///         in large pieces.
    ///     timeout: Seconds in all to wait for space with `BufferStrategy.BLOCKING`. Default: no
    ///         limit.
    ///
    /// Returns:
    ///     The number of accepted items, counted from the first.
    ///
    /// Raises:
    ///     ProduceTimeoutError: A partition stayed full; `accepted` of the error is the number of
    ///         accepted items. An interrupt, like `KeyboardInterrupt`, has `accepted` too.
    ///     ReentrantProduceError: The wait of a handler would never end.
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
        // Item by item: an item that was taken from an iterator and then refused would be lost.
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

    /// Enqueue the rows of Arrow data, split by the values of one column, the tags.
    ///
    /// The rows of a tag go to the handler that `add_handler("tag", ...)` registered, as a list of
    /// `pyarrow.RecordBatch` in their original order; without pyarrow, as objects with
    /// `__arrow_c_array__`. The buffer size and all counts are in rows. Adjacent rows of a tag are
    /// not copied.
    ///
    /// Args:
    ///     batch: Anything with `__arrow_c_array__` or `__arrow_c_stream__`, like a record batch or
    ///         a table of pyarrow, polars, DuckDB or nanoarrow.
    ///     type_column: Name of the column with the tags: strings, integers (7 is the tag "7"), or
    ///         a dictionary of them. Rows with null, or with a tag that has no handler, count as
    ///         unhandled.
    ///     timeout: Seconds in all, from the call on, to wait for space with
    ///         `BufferStrategy.BLOCKING`. Default: no limit.
    ///
    /// Returns:
    ///     The number of accepted rows: all of them, unless a partition is full and the strategy is
    ///     `IF_POSSIBLE`, or the queue is shut down.
    ///
    /// Raises:
    ///     ConfigError: `batch` is not Arrow data, the column is missing or of another type, or the
    ///         selector is `by_key` or `custom`.
    ///     BatchQueueError: The stream of batches failed.
    ///     ProduceTimeoutError: A partition stayed full. Each error, and an interrupt like
    ///         `KeyboardInterrupt`, has the number of accepted rows in `accepted`: the rows of all
    ///         batches before the last that was read, and of that batch the rows of some tags,
    ///         which need not be its first rows.
    ///     ReentrantProduceError: The wait of a handler would never end.
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
    ///     timeout: Seconds to wait. Default: no limit.
    ///
    /// Returns:
    ///     True if they have been handled. False if time ran out, or a shutdown abandoned some.
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
    /// Called from a handler of this queue, it closes the queue and returns; the drain threads end
    /// later.
    ///
    /// Args:
    ///     timeout: Seconds to wait. Default: no limit.
    ///
    /// Returns:
    ///     The number of abandoned items: 0 unless time ran out.
    ///
    /// Raises:
    ///     QueueForkedError: The queue was made before a fork.
    #[pyo3(signature = (timeout=None))]
    fn shutdown(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        self.core()?.shutdown_with(deadline_of(timeout)?, &mut InterpreterPause(py))
    }

    /// Refuse outside threads. Drain threads may still produce.
    fn _close_to_outside(&self) -> PyResult<()> {
        self.core()?.close_to_outside();
        Ok(())
    }

    /// Give a type one handler, or several, one for each of as many partitions.
    ///
    /// Args:
    ///     item_type: The class, or the tag.
    ///     handlers: The methods of each handler.
    ///     options: The settings of the type, a `HandlerOptions`.
    ///     wait: Whether to wait until no thread is inside a previous handler of the type.
    #[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
    #[pyo3(signature = (
        item_type: "type | str", handlers: "Any", options: "Any", wait: "bool" = true
    ))]
    fn _add_handlers(
        &self,
        py: Python<'_>,
        item_type: ItemType<'_>,
        handlers: Vec<HandlerMethods<'_>>,
        options: HandlerOptions<'_>,
        wait: bool,
    ) -> PyResult<()> {
        self.registry.add(py, self.core()?, &item_type, handlers, options, wait)
    }

    /// Remove the handler of a type. Items of the type are unhandled from now on.
    ///
    /// The handler gets the batch that a drain thread may have in hand, and then `on_close`, unless
    /// it serves another type of this queue. When the call returns, no thread is inside the handler
    /// and none will enter it. A call from a drain thread does not wait for that.
    ///
    /// Args:
    ///     item_type: The class, or the tag.
    ///     timeout: Seconds to wait. Default: no limit.
    ///
    /// Returns:
    ///     True if the type had a handler. False if it had none, or the queue is shut down; also if
    ///     time ran out while a thread was inside the handler, whose `on_close` comes later then.
    ///
    /// Raises:
    ///     ConfigError: `item_type` is neither a class nor a tag.
    ///     QueueForkedError: The queue was made before a fork.
    #[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
    #[pyo3(signature = (item_type: "type | str", *, timeout: "float | None" = None))]
    fn remove_handler(
        &self,
        py: Python<'_>,
        item_type: ItemType<'_>,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        let deadline = deadline_of(timeout)?;
        self.registry.remove(self.core()?, &item_type, deadline, &mut InterpreterPause(py))
    }

    /// Run the balancer now, on the load since its last run.
    ///
    /// A call from a drain thread requests a run, does not wait for it, and returns 0.
    ///
    /// Returns:
    ///     The number of partitions whose wanted drain thread changed; 0 without a balancer. Each
    ///     partition moves at the end of its current drain thread's cycle.
    ///
    /// Raises:
    ///     QueueForkedError: The queue was made before a fork.
    fn rebalance(&self, py: Python<'_>) -> PyResult<usize> {
        let queue = self.core()?;
        run_for_caller(py, || queue.rebalance())
    }

    /// Return the core's snapshot, for the facade's `BatchQueueStats`.
    #[pyo3(signature = () -> "dict[str, Any]")]
    fn _stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        snapshot(py, self.core()?, &self.registry)
    }

    #[pyo3(signature = () -> "tuple[Any, ...]")]
    fn __reduce__(&self) -> PyResult<()> {
        let name = self.name();
        Err(PyTypeError::new_err(format!(
            "queue {name:?} is live and cannot be pickled; send its BatchQueueConfig and make a \
             queue in the other process"
        )))
    }

    /// A running queue is a root: its drain threads deliver accepted items through handlers that
    /// may have no other owner any more. Once the threads have ended, cycles through the handlers
    /// are garbage like any other.
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
            // In a forked child, threads that do not exist here may hold the locks inside.
            std::mem::forget(self.core.take());
            std::mem::forget(self.buffers.clone());
        }
    }
}
