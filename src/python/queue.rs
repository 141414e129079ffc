//! `Queue`: the class under the facade's `BatchQueue`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PyTuple, PyType};

use super::handler::{PyHandler, token_of};
use super::host::Interpreter;
use super::item::PyItem;
use super::lifecycle::{generation, register};
use super::policies::{PartitionPolicy, ThreadPolicy};
use super::{
    BatchQueueError, ConfigError, ProduceTimeoutError, QueueClosedError, QueueForkedError, ReentrantProduceError,
};
use crate::{
    AddHandlerError, BatchQueue, BufferStrategy, Config, FlushError, HandledType, HandlerRef, Pause, ProduceError,
    Selector, TypeKey,
};

/// The longest piece of a wait without a look at signals.
const SLICE: Duration = Duration::from_millis(100);

/// Items of a list that are put in with one look at the list.
const CHUNK: usize = 4_096;

/// Waits detached, in slices, and looks for signals in between.
pub(crate) struct InterpreterPause<'py>(pub(crate) Python<'py>);

impl Pause for InterpreterPause<'_> {
    type Interrupt = PyErr;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> PyResult<()> {
        self.0.detach(|| wait(Some(SLICE)));
        self.0.check_signals()
    }
}

/// The moment at which `timeout` seconds from now have passed; `None`: never.
pub(crate) fn deadline_of(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(ConfigError::new_err(format!("timeout is {seconds}; give seconds from 0 up, or None to wait")));
    }
    // Too far away for the clock is never.
    Ok(Duration::try_from_secs_f64(seconds).ok().and_then(|time| Instant::now().checked_add(time)))
}

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

/// A handler's methods, in the order of the facade's `HandlerMethods`.
type Methods<'py> = (Bound<'py, PyAny>, Py<PyAny>, Option<Py<PyAny>>, Option<Py<PyAny>>, Option<Py<PyAny>>);

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

/// How the partition of an item is found.
enum Select {
    ByType,
    RoundRobin,
    ByKey(Py<PyAny>),
    Custom(Py<PyAny>),
}

/// The core of one queue; `batchqueue.BatchQueue` adds what is said in Python.
#[pyclass(frozen, subclass, weakref, module = "batchqueue._core")]
pub(crate) struct Queue {
    /// Taken out, and leaked, by the destructor in a forked child only.
    queue: Option<BatchQueue<PyItem>>,
    generation: u32,
    select: Select,
    error_handler: Option<Py<PyAny>>,
    registered: Mutex<Registered>,
}

/// What the queue was given, for identity and for the garbage collector. The types keep their addresses, which are
/// the core's keys, from being used again.
#[derive(Default)]
struct Registered {
    types: Vec<Py<PyType>>,
    handlers: Vec<(Arc<PyHandler>, HandlerRef<PyItem>)>,
}

impl Registered {
    /// One `HandlerRef` per instance, so that `on_idle` and `on_close` are called once for it.
    fn handler(&mut self, methods: Methods<'_>, name: String, error_handler: Option<&Py<PyAny>>) -> HandlerRef<PyItem> {
        let (instance, consume, on_idle, on_error, on_close) = methods;
        if let Some((_, known)) = self.handlers.iter().find(|(handler, _)| handler.instance.is(&instance)) {
            return known.clone();
        }
        let py = instance.py();
        let handler = Arc::new(PyHandler {
            name,
            token: token_of(&instance),
            instance: instance.unbind(),
            consume,
            on_idle,
            on_error,
            on_close,
            error_handler: error_handler.map(|handler| handler.clone_ref(py)),
        });
        let reference = HandlerRef::with_token(handler.clone(), handler.token.clone());
        self.handlers.push((handler, reference.clone()));
        reference
    }
}

/// A function's own name, or the name of an object's class.
fn name_of(instance: &Bound<'_, PyAny>) -> PyResult<String> {
    match instance.getattr("__qualname__") {
        Ok(name) => name.extract(),
        Err(_) => instance.get_type().qualname()?.extract(),
    }
}

impl Queue {
    fn core(&self) -> PyResult<&BatchQueue<PyItem>> {
        match &self.queue {
            Some(queue) if self.generation == generation() => Ok(queue),
            _ => Err(QueueForkedError::new_err(
                "this queue was made before a fork and its drain threads stayed in the parent process; \
                 make a new BatchQueue in the child",
            )),
        }
    }

    /// The partition that a key or a custom selector names; `None`: the core selects.
    fn given(&self, queue: &BatchQueue<PyItem>, item: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let count = queue.partition_count();
        match &self.select {
            Select::ByType | Select::RoundRobin => Ok(None),
            Select::ByKey(key) => partition_of_key(&key.bind(item.py()).call1((item,))?, count).map(Some),
            Select::Custom(select) => {
                let chosen = select.bind(item.py()).call1((item, count))?;
                match chosen.extract::<usize>() {
                    Ok(index) if index < count => Ok(Some(index)),
                    _ => Err(ConfigError::new_err(format!(
                        "the custom selector chose partition {}; it must be an int from 0 to {}",
                        chosen.repr()?,
                        count - 1
                    ))),
                }
            }
        }
    }

    /// Puts items in up to the first refusal; how many.
    fn put_all(
        &self,
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
            Err(refusal) => match refused(py, refusal, before + put)? {
                None => Ok((put, false)),
                Some(error) => Err(error),
            },
        }
    }
}

/// What a refusal is in Python: `None`, to be told by the return value, or an exception.
fn refused<T>(py: Python<'_>, refusal: ProduceError<T, PyErr>, accepted: usize) -> PyResult<Option<PyErr>> {
    let text = match &refusal {
        ProduceError::Full(_) | ProduceError::Closed(_) => return Ok(None),
        other => other.to_string(),
    };
    Ok(Some(match refusal {
        ProduceError::TimedOut { .. } => ProduceTimeoutError::new_err((text, accepted)),
        ProduceError::Interrupted(_, interrupt) => {
            interrupt.value(py).setattr("accepted", accepted)?;
            interrupt
        }
        _ => ReentrantProduceError::new_err(text),
    }))
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo): the same in every process and version, which Python's `hash` is not.
fn partition_of_key(key: &Bound<'_, PyAny>, count: usize) -> PyResult<usize> {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let bytes: Vec<u8> = if let Ok(text) = key.extract::<String>() {
        text.into_bytes()
    } else if let Ok(number) = key.extract::<i128>() {
        number.to_le_bytes().to_vec()
    } else if let Ok(bytes) = key.cast::<PyBytes>() {
        bytes.as_bytes().to_vec()
    } else {
        return Err(ConfigError::new_err(format!(
            "the key {} of type {} cannot be hashed the same way in every process; return a str, bytes or int",
            key.repr()?,
            key.get_type().name()?
        )));
    };
    let hash = bytes.iter().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    Ok(usize::try_from(hash % count as u64).unwrap_or(0))
}

#[pymethods]
impl Queue {
    /// Starts the drain threads. `consumers`: none for handlers, else one, or one per drain thread.
    #[new]
    #[pyo3(signature = (name, config, selector, select, consumers, per_thread))]
    fn new(
        py: Python<'_>,
        name: String,
        config: Settings<'_>,
        selector: &str,
        select: Option<Py<PyAny>>,
        consumers: Vec<Methods<'_>>,
        per_thread: bool,
    ) -> PyResult<Self> {
        let select = match (selector, select) {
            ("by_key", Some(key)) => Select::ByKey(key),
            ("custom", Some(select)) => Select::Custom(select),
            ("round_robin", _) => Select::RoundRobin,
            _ => Select::ByType,
        };
        let settings = Config {
            threads: config.threads.0,
            partitions: config.partitions.0,
            selector: match select {
                Select::ByType => Selector::ByType,
                Select::RoundRobin => Selector::RoundRobin,
                Select::ByKey(_) | Select::Custom(_) => Selector::Given,
            },
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
            queue: Some(queue),
            generation: generation(),
            select,
            error_handler: config.error_handler,
            registered: Mutex::new(registered),
        })
    }

    #[getter]
    fn name(&self) -> PyResult<&str> {
        Ok(self.core()?.name())
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
        let given = self.given(queue, &item)?;
        let deadline = deadline_of(timeout)?;
        match queue.produce_with(PyItem::new(item), given, deadline, &mut InterpreterPause(py)) {
            Ok(()) => Ok(true),
            Err(refusal) => refused(py, refusal, 0)?.map_or(Ok(false), Err),
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
        let in_pieces = matches!(self.select, Select::ByType | Select::RoundRobin);
        if in_pieces && (items.is_exact_instance_of::<PyList>() || items.is_exact_instance_of::<PyTuple>()) {
            // By index and anew for each piece: while this thread waits, another one may change the list.
            loop {
                let piece = items.get_item(PySlice::new(py, signed(accepted), signed(accepted + CHUNK), 1))?;
                let piece: Vec<PyItem> =
                    piece.try_iter()?.map(|item| item.map(PyItem::new)).collect::<PyResult<_>>()?;
                let wanted = piece.len();
                let (put, all) = self.put_all(py, queue, piece, accepted, deadline)?;
                accepted += put;
                if !all || wanted < CHUNK {
                    return Ok(accepted);
                }
            }
        }
        // One by one: an item that was pulled out of an iterator and then refused would be lost to the caller.
        for item in items.try_iter()? {
            let item = item?;
            let given = self.given(queue, &item)?;
            match queue.produce_with(PyItem::new(item), given, deadline, &mut InterpreterPause(py)) {
                Ok(()) => accepted += 1,
                Err(refusal) => return refused(py, refusal, accepted)?.map_or(Ok(accepted), Err),
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
        match queue.add_handler(HandledType { key, name, weight }, handler) {
            Ok(()) => {
                self.registered.lock().types.push(item_type.clone().unbind());
                Ok(())
            }
            Err(AddHandlerError::Closed(_)) => Err(QueueClosedError::new_err(format!(
                "{text} was not registered, the queue is shut down; make a new BatchQueue"
            ))),
            Err(AddHandlerError::Taken) => {
                Err(ConfigError::new_err(format!("{text} has a handler already; register each type once")))
            }
        }
    }

    /// The core's snapshot, for the facade's `BatchQueueStats`.
    fn _stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let queue = self.core()?;
        let stats = queue.stats();
        let registered = self.registered.lock();
        let class_of = |key: &TypeKey| {
            registered.types.iter().find(|class| class.as_ptr() as usize == key.0).map(|class| class.clone_ref(py))
        };
        let partitions: Vec<_> = stats
            .partitions
            .iter()
            .map(|one| (one.index, one.used, one.owner, one.attempts, one.types.iter().filter_map(class_of).collect()))
            .collect::<Vec<(usize, u64, usize, u64, Vec<Py<PyType>>)>>();
        let handlers: Vec<_> = stats
            .handlers
            .iter()
            .filter_map(|one| Some((class_of(&one.key)?, one.consumed, one.failed, one.batches, one.ns_per_item)))
            .collect();
        let threads: Vec<_> =
            stats.drain_threads.iter().map(|one| (one.index, one.items, one.cycles, one.cpu.as_secs_f64())).collect();
        drop(registered);
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
        snapshot.set_item("in_flight", stats.in_flight)?;
        snapshot.set_item("stuck_handlers", PyTuple::new(py, stats.stuck_handlers)?)?;
        snapshot.set_item("partitions", partitions)?;
        snapshot.set_item("handlers", handlers)?;
        snapshot.set_item("drain_threads", threads)?;
        Ok(snapshot)
    }

    fn __reduce__(&self) -> PyResult<()> {
        let name = self.core()?.name();
        Err(PyTypeError::new_err(format!(
            "queue {name:?} is live and cannot be pickled; send its BatchQueueConfig and make a queue in the other process"
        )))
    }

    /// A running queue is a root: its drain threads deliver what was accepted, through handlers that nobody else may
    /// hold any more. Once they have ended, cycles through the handlers are garbage like any other.
    #[allow(clippy::needless_pass_by_value)]
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let ended = self.generation == generation() && self.queue.as_ref().is_some_and(BatchQueue::has_ended);
        if let (true, Some(registered)) = (ended, self.registered.try_lock()) {
            for (handler, _) in &registered.handlers {
                handler.traverse(&visit)?;
            }
            visit.call(&self.error_handler)?;
        }
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.generation != generation() {
            // A forked child: the locks inside may be held by threads that do not exist here.
            std::mem::forget(self.queue.take());
        }
    }
}

fn signed(index: usize) -> isize {
    isize::try_from(index).unwrap_or(isize::MAX)
}

/// Drain threads that a queue with these policies gets.
#[pyfunction]
pub(crate) fn thread_count(threads: PyRef<'_, ThreadPolicy>, partitions: PyRef<'_, PartitionPolicy>) -> usize {
    let config = Config { threads: threads.0, partitions: partitions.0, ..Config::default() };
    config.resolve(crate::available_cores()).0
}
