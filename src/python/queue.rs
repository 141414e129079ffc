//! `Queue`: the class under the facade's `BatchQueue`.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySlice, PyTuple, PyType};

use super::host::Interpreter;
use super::item::PyItem;
use super::lifecycle::{generation, is_exiting, register};
use super::pause::{InterpreterPause, deadline_of};
use super::policies::{PartitionPolicy, ThreadPolicy};
use super::registered::{Methods, Registered, name_of};
use super::select::Select;
use super::snapshot::snapshot;
use super::{
    BatchQueueError, ConfigError, ProduceTimeoutError, QueueClosedError, QueueForkedError, ReentrantProduceError,
};
use crate::faults::{self, Fault};
use crate::{AddHandlerError, BatchQueue, BufferStrategy, Config, FlushError, HandledType, ProduceError, TypeKey};

/// Items of a list that are put in with one look at the list.
const CHUNK: usize = 4_096;

fn millis(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value / 1e3)
        .map_err(|_| ConfigError::new_err(format!("{name} is {value}; give milliseconds from 0 up")))
}

fn at_least_one(name: &str, value: i64) -> PyResult<usize> {
    match usize::try_from(value) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(ConfigError::new_err(format!("{name} is {value}; give at least 1 item"))),
    }
}

/// The attributes of the facade's `BatchQueueConfig` that the core needs.
#[derive(FromPyObject)]
struct Settings<'py> {
    threads: PyRef<'py, ThreadPolicy>,
    partitions: PyRef<'py, PartitionPolicy>,
    buffer_size: i64,
    strategy: Named,
    min_idle_ms: f64,
    max_idle_ms: f64,
    max_batch_items: i64,
    error_handler: Option<Py<PyAny>>,
    shutdown_timeout: Option<f64>,
}

/// A member of a Python enum, by name.
#[derive(FromPyObject)]
struct Named {
    name: String,
}

/// The core of one queue; `batchqueue.BatchQueue` adds what is said in Python.
#[pyclass(frozen, subclass, weakref, module = "batchqueue._core")]
pub(crate) struct Queue {
    /// Taken out, and leaked, by the destructor in a forked child only.
    core: Option<BatchQueue<PyItem>>,
    generation: u32,
    select: Select,
    error_handler: Option<Py<PyAny>>,
    registered: Mutex<Registered>,
}

impl Queue {
    fn core(&self) -> PyResult<&BatchQueue<PyItem>> {
        match &self.core {
            Some(queue) if self.generation == generation() || faults::off(Fault::ForkGeneration) => Ok(queue),
            _ => Err(QueueForkedError::new_err(
                "this queue was made before a fork and its drain threads stayed in the parent process; \
                 make a new BatchQueue in the child",
            )),
        }
    }

    /// Puts items in up to the first refusal; how many.
    fn put_all(
        py: Python<'_>,
        queue: &BatchQueue<PyItem>,
        items: Vec<PyItem>,
        before: usize,
        deadline: Option<Instant>,
    ) -> PyResult<(usize, bool)> {
        let count = items.len();
        let mut items = items.into_iter();
        let result = queue.produce_many(&mut items, deadline, &mut InterpreterPause(py));
        let put = count - items.len();
        match result {
            Ok(()) => Ok((put, true)),
            Err(refusal) => match refused(py, refusal, before + put) {
                None => Ok((put, false)),
                Some(error) => Err(error),
            },
        }
    }
}

/// What a refusal is in Python: `None`, to be told by the return value, or an exception.
fn refused<T>(py: Python<'_>, refusal: ProduceError<T, PyErr>, accepted: usize) -> Option<PyErr> {
    let text = match &refusal {
        ProduceError::Full(_) | ProduceError::Closed(_) => return None,
        other => other.to_string(),
    };
    Some(match refusal {
        ProduceError::TimedOut { .. } => ProduceTimeoutError::new_err((text, accepted)),
        ProduceError::Interrupted(_, interrupt) => {
            // An exception that refuses attributes is still the one to raise.
            let _ = interrupt.value(py).setattr("accepted", accepted);
            interrupt
        }
        _ => {
            let reentrant = ReentrantProduceError::new_err(text);
            let _ = reentrant.value(py).setattr("accepted", accepted);
            reentrant
        }
    })
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
        consumers: Vec<Methods<'_>>,
        per_thread: bool,
    ) -> PyResult<Self> {
        if is_exiting() {
            return Err(QueueClosedError::new_err(format!(
                "queue {name:?} cannot start while the interpreter exits: nobody would close it; make it earlier"
            )));
        }
        let select = Select::new(selector, select);
        let settings = Config {
            threads: config.threads.0,
            partitions: config.partitions.0,
            selector: select.core(),
            buffer_size: at_least_one("buffer_size", config.buffer_size)?,
            strategy: match config.strategy.name.as_str() {
                "IF_POSSIBLE" => BufferStrategy::IfPossible,
                _ => BufferStrategy::Blocking,
            },
            min_idle: millis("min_idle_ms", config.min_idle_ms)?,
            max_idle: millis("max_idle_ms", config.max_idle_ms)?,
            max_batch_items: at_least_one("max_batch_items", config.max_batch_items)?,
        };
        let mut registered = Registered::default();
        let consumers = consumers
            .into_iter()
            .map(|methods| {
                let name = name_of(&methods.0)?;
                Ok(registered.handler(methods, name, config.error_handler.as_ref()))
            })
            .collect::<PyResult<Vec<_>>>()?;
        let mut builder = BatchQueue::builder(name, settings).host(Interpreter);
        if per_thread {
            builder = builder.consumer_per_thread(move |thread| consumers[thread].clone());
        } else if let Some(consumer) = consumers.into_iter().next() {
            builder = builder.consumer(consumer);
        }
        // Detached: a new drain thread attaches as its first act, and a warning may be logged.
        let queue = py.detach(move || builder.start())?;
        register(queue.downgrade(), config.shutdown_timeout);
        Ok(Self {
            core: Some(queue),
            generation: generation(),
            select,
            error_handler: config.error_handler,
            registered: Mutex::new(registered),
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
    ///     True: accepted. False: refused, because the partition is full and the strategy IF_POSSIBLE, or because the
    ///     queue is shut down.
    ///
    /// Raises:
    ///     ProduceTimeoutError: The partition stayed full for the whole time-out.
    ///     ReentrantProduceError: A handler of this queue would wait for itself.
    ///     QueueForkedError: The queue was made before a fork.
    #[pyo3(signature = (item, *, timeout=None))]
    fn produce(&self, item: Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<bool> {
        let queue = self.core()?;
        let py = item.py();
        let given = self.select.given(queue, &item)?;
        let deadline = deadline_of(timeout)?;
        match queue.produce_with(PyItem::new(item), given, deadline, &mut InterpreterPause(py)) {
            Ok(()) => Ok(true),
            Err(refusal) => refused(py, refusal, 0).map_or(Ok(false), Err),
        }
    }

    /// Put many items in, in order, up to the first that is refused.
    ///
    /// Args:
    ///     items: Any iterable. A list or a tuple is taken in large pieces, which is several times faster.
    ///     timeout: Seconds in all to wait for space with BLOCKING; None waits as long as it takes.
    ///
    /// Returns:
    ///     The number of items accepted: the first so many.
    ///
    /// Raises:
    ///     ProduceTimeoutError: A partition stayed full; `accepted` of the error says how many are in. An interrupt,
    ///         like KeyboardInterrupt, carries `accepted` as well.
    ///     ReentrantProduceError: A handler of this queue would wait for itself.
    ///     QueueForkedError: The queue was made before a fork.
    #[pyo3(signature = (items, *, timeout=None))]
    fn produce_many(&self, py: Python<'_>, items: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<usize> {
        let queue = self.core()?;
        let deadline = deadline_of(timeout)?;
        let mut accepted = 0;
        let in_pieces = !self.select.is_by_caller();
        if in_pieces && (items.is_exact_instance_of::<PyList>() || items.is_exact_instance_of::<PyTuple>()) {
            // By index and anew for each piece: while this thread waits, another one may change the list.
            loop {
                let piece = items.get_item(PySlice::new(py, signed(accepted), signed(accepted + CHUNK), 1))?;
                let piece: Vec<PyItem> =
                    piece.try_iter()?.map(|item| item.map(PyItem::new)).collect::<PyResult<_>>()?;
                let wanted = piece.len();
                let (put, all) = Self::put_all(py, queue, piece, accepted, deadline)?;
                accepted += put;
                if !all || wanted < CHUNK {
                    return Ok(accepted);
                }
            }
        }
        // One by one: an item that was pulled out of an iterator and then refused would be lost to the caller.
        for item in items.try_iter()? {
            let item = item?;
            let given = self.select.given(queue, &item)?;
            match queue.produce_with(PyItem::new(item), given, deadline, &mut InterpreterPause(py)) {
                Ok(()) => accepted += 1,
                Err(refusal) => return refused(py, refusal, accepted).map_or(Ok(accepted), Err),
            }
        }
        Ok(accepted)
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
        match self.core()?.flush(deadline_of(timeout)?, &mut InterpreterPause(py)) {
            Ok(done) => Ok(done),
            Err(FlushError::Interrupted(interrupt)) => Err(interrupt),
            Err(FlushError::FromDrainThread) => Err(BatchQueueError::new_err(
                "flush was called from a drain thread, which would wait for itself; call it from another thread",
            )),
        }
    }

    /// Refuse every new item, deliver what was accepted, and end the drain threads.
    ///
    /// Called from a handler of this queue, it closes and returns; the drain threads end by themselves.
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

    fn _add_handler(&self, item_type: &Bound<'_, PyType>, methods: Methods<'_>, weight: f64) -> PyResult<()> {
        let queue = self.core()?;
        // Before the lock: an attribute may be found by Python code.
        let handler_name = name_of(&methods.0)?;
        let handler = self.registered.lock().handler(methods, handler_name, self.error_handler.as_ref());
        let name = item_type.qualname()?.to_string();
        let key = TypeKey(item_type.as_ptr() as usize);
        let text = format!("queue {:?}: {name}", queue.name());
        let refusal = match queue.add_handler(HandledType { key, name, weight }, handler) {
            Ok(()) => {
                self.registered.lock().types.push(item_type.clone().unbind());
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        // Bound first, so that Python objects die after the lock is free.
        let unused = self.registered.lock().take_unused();
        drop(unused);
        Err(match refusal {
            AddHandlerError::Closed(_) => QueueClosedError::new_err(format!(
                "{text} was not registered, the queue is shut down; make a new BatchQueue"
            )),
            AddHandlerError::Taken => {
                ConfigError::new_err(format!("{text} has a handler already; register each type once"))
            }
        })
    }

    /// The core's snapshot, for the facade's `BatchQueueStats`.
    #[pyo3(signature = () -> "dict[str, Any]")]
    fn _stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        snapshot(py, self.core()?, &self.registered)
    }

    #[pyo3(signature = () -> "tuple[Any, ...]")]
    fn __reduce__(&self) -> PyResult<()> {
        let name = self.name();
        Err(PyTypeError::new_err(format!(
            "queue {name:?} is live and cannot be pickled; send its BatchQueueConfig and make a queue in the other process"
        )))
    }

    /// A running queue is a root: its drain threads deliver what was accepted, through handlers that nobody else may
    /// hold any more. Once they have ended, cycles through the handlers are garbage like any other.
    #[allow(clippy::needless_pass_by_value)]
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let ended = self.generation == generation() && self.core.as_ref().is_some_and(BatchQueue::has_ended);
        if let (true, Some(registered)) = (ended, self.registered.try_lock()) {
            for (handler, _) in &registered.handlers {
                handler.traverse(&visit)?;
            }
            for class in &registered.types {
                visit.call(class)?;
            }
            self.select.traverse(&visit)?;
            visit.call(&self.error_handler)?;
        }
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.generation != generation() {
            // A forked child: the locks inside may be held by threads that do not exist here.
            std::mem::forget(self.core.take());
        }
    }
}

fn signed(index: usize) -> isize {
    isize::try_from(index).unwrap_or(isize::MAX)
}

/// Drain threads that a queue with these policies gets.
#[pyfunction]
pub(crate) fn thread_count(threads: &ThreadPolicy, partitions: &PartitionPolicy) -> usize {
    let config = Config { threads: threads.0, partitions: partitions.0, ..Config::default() };
    config.resolve(crate::available_cores()).0
}
