//! `Queue`: the class under the facade's `BatchQueue`.

pub(crate) mod event_loop;
pub(crate) mod life;
pub(crate) mod produce_arrow;
pub(crate) mod sequence;
pub(crate) mod snapshot;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::control::log_helper::last_patience;
use crate::error::ProduceError;
use crate::python::config::{PySelector, run_for_caller};
use crate::python::errors::{after_some, flushed, forked, not_iterable, refuse_second, too_late};
use crate::python::future::{FutureBase, Ticket, future_class};
use crate::python::handler::{HandlerMethods, HandlerOptions};
use crate::python::interpreter::{InterpreterPause, NoPause, Timeout, deadline_of, generation};
use crate::python::item::{ItemType, PyItem, refused};
use crate::python::queue::life::{Life, Recipe, forget_parent, is_exit_over, run_inline};
use crate::python::queue::sequence::Sequence;
use crate::queue::BatchQueue;

/// The number of queues that this process and its parents have created.
static QUEUES: AtomicU64 = AtomicU64::new(0);

/// The core of one queue; `batchqueue.BatchQueue` adds what is written in Python.
#[pyclass(frozen, subclass, weakref, module = "batchqueue._core")]
pub(crate) struct Queue {
    /// The life in the process that created the queue.
    life: Life,
    /// The process that created the queue, and the queue's number there: names are not unique.
    pub(super) identity: (u32, u64),
    pub(super) selector: PySelector,
    /// `None` if a forked child does not restart the queue.
    pub(super) recipe: Option<Recipe>,
}

impl Queue {
    /// Returns the life of the queue in this process.
    #[inline]
    pub(super) fn life(&self) -> PyResult<&Life> {
        if self.life.generation == generation() {
            return Ok(&self.life);
        }
        self.restarted(false)
    }

    pub(super) fn core(&self) -> PyResult<&BatchQueue<PyItem>> {
        self.life()?.core()
    }

    /// Returns the core for a call that ends the queue. A restart for such a call starts it closed.
    pub(super) fn core_to_close(&self) -> PyResult<&BatchQueue<PyItem>> {
        match self.life.current() {
            Some(life) => life.core(),
            None => self.restarted(true)?.core(),
        }
    }

    #[cold]
    fn restarted(&self, closed: bool) -> PyResult<&Life> {
        Python::attach(|py| {
            forget_parent(py, false)?;
            let recipe = self.recipe.as_ref().ok_or_else(forked)?;
            let (selector, number) = (self.selector.core, self.identity.1);
            self.life.restart(py, recipe, selector, number, closed)
        })
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
    ///     default_handler: Methods of the handler of types that have none, or None.
    #[new]
    #[allow(clippy::too_many_arguments)] // as the facade passes them
    fn new(
        py: Python<'_>,
        name: String,
        config: &Bound<'_, PyAny>,
        selector: (String, Option<Py<PyAny>>),
        consumers: Py<PyAny>,
        per_thread: bool,
        dead_letter: Py<PyAny>,
        default_handler: Py<PyAny>,
    ) -> PyResult<Self> {
        forget_parent(py, false)?;
        if is_exit_over() {
            return Err(too_late(&name));
        }
        let (kind, select) = selector;
        let selector = PySelector::new(&kind, select);
        let restarts: bool = config.getattr("restart_after_fork")?.extract()?;
        let recipe = Recipe {
            name,
            config: config.clone().unbind(),
            consumers,
            per_thread,
            dead_letter,
            default_handler,
            handlers: Mutex::default(),
        };
        // Relaxed: the numbers only have to differ.
        let identity = (std::process::id(), QUEUES.fetch_add(1, Ordering::Relaxed));
        let life = recipe.start(py, selector.core, identity.1, true)?;
        let recipe = restarts.then_some(recipe);
        Ok(Self { life, identity, selector, recipe })
    }

    /// The name of the queue.
    #[getter]
    fn name(&self) -> &str {
        self.life.name()
    }

    /// The place of the queue among all that this process has made, in order of creation.
    #[getter]
    fn _number(&self) -> u64 {
        self.identity.1
    }

    /// Whether the queue accepts items: False once it is shut down.
    #[getter]
    fn running(&self) -> PyResult<bool> {
        match (self.life.current(), &self.recipe) {
            // Asking must not restart the queue.
            (None, Some(_)) => Ok(!self.life.was_closed()),
            _ => Ok(self.core()?.is_running()),
        }
    }

    /// Enqueue one item.
    ///
    /// Args:
    ///     item: Any object. It goes to the handler of its class.
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
    #[pyo3(signature = (item, second: "None" = None, *, timeout=None))]
    fn produce(
        &self,
        item: Bound<'_, PyAny>,
        second: Option<&Bound<'_, PyAny>>,
        timeout: Option<Timeout>,
    ) -> PyResult<bool> {
        refuse_second("produce", second)?;
        let life = self.life()?;
        let queue = life.core()?;
        let py = item.py();
        let deadline = deadline_of(timeout)?;
        let given = self.selector.given(queue, &item)?;
        if life.registry.resolves() {
            return life.produce_resolved(item, given, deadline);
        }
        match queue.produce_with(PyItem::new(item), given, deadline, &mut InterpreterPause(py)) {
            Ok(()) => Ok(true),
            Err(refusal) => refused(py, queue.name(), refusal, 0).map_or(Ok(false), Err),
        }
    }

    /// Enqueue one item whose result is wanted.
    ///
    /// The handler returns a list, or another sequence, with one result for each item of its batch.
    ///
    /// Args:
    ///     item: Any object. It goes to the handler of its class.
    ///     timeout: Seconds to wait for space with `BufferStrategy.BLOCKING`. Default: no limit.
    ///
    /// Returns:
    ///     A `concurrent.futures.Future`: the result of the item, or what its handler raised in the
    ///     last attempt. The item may have been refused, which no call raises: the future has a
    ///     `QueueClosedError` if the queue is shut down, a `ProduceTimeoutError` if the partition
    ///     stayed full for the whole timeout or is full with `BufferStrategy.IF_POSSIBLE`, a
    ///     `ReentrantProduceError` if the wait of a handler would never end.
    ///
    /// Raises:
    ///     QueueForkedError: The queue was made before a fork.
    #[pyo3(signature = (item, second: "None" = None, *, timeout=None) -> "Any")]
    fn submit<'py>(
        &self,
        item: Bound<'py, PyAny>,
        second: Option<&Bound<'_, PyAny>>,
        timeout: Option<Timeout>,
    ) -> PyResult<Bound<'py, FutureBase>> {
        refuse_second("submit", second)?;
        let life = self.life()?;
        let queue = life.core()?;
        let py = item.py();
        let deadline = deadline_of(timeout)?;
        let given = self.selector.given(queue, &item)?;
        run_inline(py, queue, deadline)?;
        let (future, item) = Self::submitted(life, item)?;
        match queue.produce_with(item, given, deadline, &mut InterpreterPause(py)) {
            Ok(()) => {
                run_inline(py, queue, deadline)?;
                Ok(future)
            }
            Err(refusal) => {
                let is_interrupt = matches!(refusal, ProduceError::Interrupted(..));
                let error = refused(py, queue.name(), refusal, 0).filter(|_| is_interrupt);
                error.map_or(Ok(future), Err)
            }
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
    #[pyo3(signature = (items, second: "None" = None, *, timeout=None))]
    fn produce_many(
        &self,
        py: Python<'_>,
        items: &Bound<'_, PyAny>,
        second: Option<&Bound<'_, PyAny>>,
        timeout: Option<Timeout>,
    ) -> PyResult<usize> {
        refuse_second("produce_many", second)?;
        let deadline = deadline_of(timeout)?;
        let life = self.life()?;
        let queue = life.core()?;
        run_inline(py, queue, deadline).map_err(|error| after_some(py, error, 0))?;
        if let Some(items) = Sequence::of(items).filter(|_| self.selector.function.is_none()) {
            return items.produce(py, queue, &life.registry, deadline);
        }
        // Item by item: an item that was taken from an iterator and then refused would be lost.
        let mut accepted = 0;
        for item in items.try_iter().map_err(|error| not_iterable(items, error))? {
            let item = item.map_err(|error| after_some(py, error, accepted))?;
            let given = self.selector.given(queue, &item);
            let given = given.map_err(|error| after_some(py, error, accepted))?;
            let item = life.item(item)?;
            match queue.produce_with(item, given, deadline, &mut InterpreterPause(py)) {
                Ok(()) => {
                    accepted += 1;
                    run_inline(py, queue, deadline)
                        .map_err(|error| after_some(py, error, accepted))?;
                }
                Err(refusal) => {
                    return refused(py, queue.name(), refusal, accepted).map_or(Ok(accepted), Err);
                }
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
    #[pyo3(signature = (batch, *, type_column: "str", timeout=None))]
    fn produce_arrow(
        &self,
        batch: &Bound<'_, PyAny>,
        type_column: &Bound<'_, PyAny>,
        timeout: Option<Timeout>,
    ) -> PyResult<usize> {
        self.produce_rows(batch, type_column, timeout, None)
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
    fn flush(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<bool> {
        let (queue, deadline) = (self.core()?, deadline_of(timeout)?);
        run_inline(py, queue, deadline)?;
        flushed(queue.flush(deadline, &mut InterpreterPause(py)))
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
    fn shutdown(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<u64> {
        let (queue, deadline) = (self.core_to_close()?, deadline_of(timeout)?);
        queue.shutdown_with(deadline, &mut InterpreterPause(py))
    }

    /// Remove the handler of a type. Items of the type are unhandled from now on, also those that
    /// wait in a partition: call `flush` before, so that the handler gets them.
    ///
    /// The handler gets the batch that a drain thread may have in flight, and then `on_close`,
    /// unless it serves another type of this queue. When the call returns, no thread is inside the
    /// handler and none will enter it. A call from a drain thread does not wait for that.
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
    #[pyo3(signature = (item_type, *, timeout=None))]
    fn remove_handler(
        &self,
        py: Python<'_>,
        item_type: ItemType<'_>,
        timeout: Option<Timeout>,
    ) -> PyResult<bool> {
        let (life, deadline) = (self.life()?, deadline_of(timeout)?);
        let queue = life.core()?;
        if let Some(recipe) = &self.recipe {
            recipe.forget(&item_type);
        }
        if queue.is_inline() {
            // Nothing is left to wait for, unless another thread drains.
            let removed = life.registry.remove(queue, &item_type, None, &mut NoPause);
            run_inline(py, queue, deadline)?;
            return Ok(removed.unwrap_or(true));
        }
        life.registry.remove(queue, &item_type, deadline, &mut InterpreterPause(py))
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
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if self.life.traverse(&visit)? {
            visit.call(&self.selector.function)?;
            if let Some(recipe) = &self.recipe {
                recipe.traverse(&visit)?;
            }
        }
        Ok(())
    }
}

// Functions for the facade, besides the methods that users call.

/// Give a type one handler, or several, one for each of as many partitions.
///
/// Args:
///     queue: The queue.
///     item_type: The class, or the tag.
///     handlers: The methods of each handler.
///     options: The settings of the type, a `HandlerOptions`.
///     wait: Whether to wait until no thread is inside a previous handler of the type.
#[pyfunction]
#[pyo3(signature = (queue, item_type, handlers, options, wait=true))]
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
pub(crate) fn close_to_outside(queue: &Queue, timeout: Option<Timeout>) -> PyResult<()> {
    queue.core_to_close()?.close_to_outside(deadline_of(timeout)?);
    Ok(())
}

/// Shut a queue down, but leave the wait for its log to `wait_logged`. Returns the number of
/// abandoned items.
#[pyfunction]
pub(crate) fn end(py: Python<'_>, queue: &Queue, timeout: Option<Timeout>) -> PyResult<u64> {
    let deadline = deadline_of(timeout)?;
    queue.core_to_close()?.end_with(deadline, &mut InterpreterPause(py))
}

/// Wait until the lines of these queues are in the log: for all of them no longer than the shutdown
/// of one would.
#[pyfunction]
#[pyo3(signature = (queues: "list[Queue]", timeout))]
pub(crate) fn wait_logged(
    py: Python<'_>,
    queues: Vec<PyRef<'_, Queue>>,
    timeout: Option<Timeout>,
) -> PyResult<()> {
    let latest = last_patience(deadline_of(timeout)?);
    queues
        .iter()
        .try_for_each(|queue| queue.core_to_close()?.wait_logged(latest, &mut InterpreterPause(py)))
}

impl Queue {
    /// Makes an item and its future. Enqueues nothing yet.
    pub(super) fn submitted<'py>(
        life: &Life,
        item: Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, FutureBase>, PyItem)> {
        let future = life.submissions.add(future_class(item.py())?)?;
        let ticket = Ticket::new(future.clone().unbind());
        let resolved = life.registry.resolves();
        let key = resolved.then(|| life.registry.key_of(&item.get_type())).transpose()?;
        Ok((future, PyItem::submitted(item, ticket, key)))
    }
}
