//! The facade's `BatchQueueConfig`, translated into the core's: settings, balancer, selector, and
//! the policies of threads and partitions.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyString, PyTuple};

use crate::config;
use crate::config::{Assign, BufferStrategy, Config, DrainBalancer, RetryPolicy, Selector};
use crate::python::errors::ConfigError;
use crate::python::interpreter::{CALLBACKS, GuardedRef, call_in, describe_error, release};
use crate::python::item::PyItem;
use crate::queue::BatchQueue;

// The facade's `BatchQueueConfig` as the core's `Config`.

pub(crate) fn millis(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value / 1e3).map_err(|_| {
        ConfigError::new_err(format!("{name} is {value}; give milliseconds from 0 up"))
    })
}

/// The attributes of the facade's `BatchQueueConfig` that the core needs.
#[derive(FromPyObject)]
pub(crate) struct Settings<'py> {
    threads: Option<PyRef<'py, ThreadPolicy>>,
    pub(crate) shared_scheduler: Option<(String, PyRef<'py, ThreadPolicy>)>,
    partitions: PyRef<'py, PartitionPolicy>,
    buffer_size: usize,
    strategy: Named,
    min_idle_ms: f64,
    max_idle_ms: f64,
    max_batch_items: usize,
    max_delay_ms: Option<f64>,
    error_handler: Option<Py<PyAny>>,
    retry: Option<RetrySettings>,
    balancer: Option<BalancerSettings>,
    rebalance_interval_ms: f64,
    takeover_after_ms: f64,
    spare_threads: Option<usize>,
    warn_after: Option<f64>,
    pub(crate) inline: bool,
    pub(crate) shutdown_timeout: Option<f64>,
}

/// The facade's `RetryPolicy`.
#[derive(FromPyObject)]
pub(crate) struct RetrySettings {
    attempts: Option<u32>,
    backoff_ms: f64,
    factor: f64,
    max_backoff_ms: f64,
    retry_on: Py<PyAny>,
    jitter: f64,
    bisect: bool,
}

impl RetrySettings {
    /// Returns the policy, and the exceptions that it covers as a tuple.
    pub(crate) fn into_core(self) -> PyResult<(RetryPolicy, Py<PyAny>)> {
        let policy = RetryPolicy {
            attempts: self.attempts,
            backoff: millis("backoff_ms", self.backoff_ms)?,
            factor: self.factor,
            max_backoff: millis("max_backoff_ms", self.max_backoff_ms)?,
            jitter: self.jitter,
            bisect: self.bisect,
        };
        Ok((policy, self.retry_on))
    }
}

/// A member of a Python enum, by name.
#[derive(FromPyObject)]
struct Named {
    name: String,
}

/// The settings as the core and the bindings use them.
pub(crate) struct CoreSettings {
    pub(crate) settings: Config,
    pub(crate) common: CommonCallbacks,
    /// The custom balancer in the settings, for the garbage collector.
    pub(crate) assign: Option<Arc<PyAssign>>,
}

/// The callbacks and exceptions that all handlers of a queue share.
pub(crate) struct CommonCallbacks {
    /// For handlers without `on_error`.
    pub(crate) error_handler: Option<Py<PyAny>>,
    /// The exceptions that the retry policy applies to, as a tuple.
    pub(crate) retry_on: Option<Py<PyAny>>,
}

impl Settings<'_> {
    pub(crate) fn into_core(self, selector: Selector) -> PyResult<CoreSettings> {
        let balancer = self.balancer.map(BalancerSettings::core).transpose()?;
        let (balancer, assign) = balancer.unzip();
        let (retry, retry_on) = self.retry.map(RetrySettings::into_core).transpose()?.unzip();
        let settings = Config {
            threads: self.threads.as_ref().map_or(Config::default().threads, |policy| policy.0),
            partitions: self.partitions.0,
            selector,
            buffer_size: self.buffer_size,
            strategy: match self.strategy.name.as_str() {
                "IF_POSSIBLE" => BufferStrategy::IfPossible,
                _ => BufferStrategy::Blocking,
            },
            min_idle: millis("min_idle_ms", self.min_idle_ms)?,
            max_idle: millis("max_idle_ms", self.max_idle_ms)?,
            max_batch_items: self.max_batch_items,
            max_delay: self.max_delay_ms.map(|delay| millis("max_delay_ms", delay)).transpose()?,
            retry,
            balancer,
            rebalance_interval: millis("rebalance_interval_ms", self.rebalance_interval_ms)?,
            takeover_after: millis("takeover_after_ms", self.takeover_after_ms)?,
            spare_threads: self.spare_threads,
            warn_after: self
                .warn_after
                .map(|after| millis("warn_after", after * 1e3))
                .transpose()?,
        };
        let common = CommonCallbacks { error_handler: self.error_handler, retry_on };
        Ok(CoreSettings { settings, common, assign: assign.flatten() })
    }
}

// The balancer of a queue, as its config names it.

/// The facade's `DrainBalancer`.
#[derive(FromPyObject)]
struct BalancerSettings {
    kind: String,
    skip_ratio: f64,
    function: Option<Py<PyAny>>,
}

impl BalancerSettings {
    /// Returns the core's balancer, and the Python function in it for the garbage collector.
    fn core(self) -> Result<(DrainBalancer, Option<Arc<PyAssign>>), crate::error::ConfigError> {
        let balancer = match (self.kind.as_str(), self.function) {
            ("custom", Some(function)) => {
                let function = GuardedRef::new(function);
                let assign = Arc::new(PyAssign { function, is_over: AtomicBool::new(false) });
                return Ok((DrainBalancer::custom(assign.clone()), Some(assign)));
            }
            ("load_weighted", _) => DrainBalancer::load_weighted().with_skip_ratio(self.skip_ratio),
            _ => DrainBalancer::throughput_weighted().with_skip_ratio(self.skip_ratio),
        };
        Ok((balancer?, None))
    }
}

thread_local! {
    /// The interrupt that the running balancer raises to its caller on this thread; `None` while no
    /// caller waits for one.
    static INTERRUPT: Cell<Option<Result<(), PyErr>>> = const { Cell::new(None) };
}

/// Runs a balancer on behalf of a Python caller. An interrupt in a custom balancer, like
/// `KeyboardInterrupt`, is raised to the caller.
pub(crate) fn run_for_caller(
    py: Python<'_>,
    run: impl FnOnce() -> usize + Send,
) -> PyResult<usize> {
    let outer = INTERRUPT.replace(Some(Ok(())));
    let moved = py.detach(run);
    let interrupt = INTERRUPT.replace(outer);
    interrupt.unwrap_or(Ok(())).map(|()| moved)
}

/// Keeps an interrupt, which is not an `Exception`, for this thread's caller if there is one.
fn keep_interrupt(py: Python<'_>, error: &PyErr) {
    let interrupt = INTERRUPT.take();
    INTERRUPT.set(match interrupt {
        Some(Ok(())) if !error.is_instance_of::<PyException>(py) => Some(Err(error.clone_ref(py))),
        before => before,
    });
}

/// An assignment written in Python. It runs on the control thread, or on the thread that called
/// `rebalance`.
///
/// The control thread may still be about to call it when the queue has ended. By then the function
/// may be garbage: the collector considers it the queue's alone, and clears it whatever a native
/// thread does meanwhile. So it is not called once the collector has seen it.
pub(crate) struct PyAssign {
    function: GuardedRef,
    is_over: AtomicBool,
}

impl PyAssign {
    /// Visits the function of a queue that has ended.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Relaxed: the collector holds the GIL, or has stopped all threads that are attached.
        self.is_over.store(true, Ordering::Relaxed);
        visit.call(&*self.function)
    }
}

impl Assign for PyAssign {
    fn assign(
        &self,
        load: &[f64],
        owner: &[usize],
        threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        Python::attach(|py| {
            // The reference, which the collector counts, must come before the check.
            let function = self.function.bind(py).clone();
            if self.is_over.load(Ordering::Relaxed) {
                return Ok(None);
            }
            // Guarded: the function is the user's code, and the conversion of its result may be.
            let result = call_in(py, CALLBACKS, "assign", (&function, load, owner, threads));
            release(function);
            let plan = result.map_err(|error| {
                keep_interrupt(py, &error);
                format!("the custom balancer raised {}", describe_error(py, error))
            })?;
            if let Ok(problem) = plan.extract::<String>() {
                return Err(problem);
            }
            // Invalid thread ids are kept as an id that is out of range: the core rejects the plan
            // and says why.
            let plan = plan.extract::<Option<Vec<i64>>>().map_err(|error| error.to_string())?;
            Ok(plan.map(|plan| {
                plan.into_iter()
                    .map(|thread| usize::try_from(thread).unwrap_or(usize::MAX))
                    .collect()
            }))
        })
    }
}

// The selection of an item's partition, by the core or by a Python function.

/// The selection of an item's partition.
pub(crate) struct PySelector {
    /// The selector as the core sees it.
    pub(crate) core: Selector,
    /// The Python function that chooses the partition, or the key, of each item.
    pub(crate) function: Option<Py<PyAny>>,
    is_by_key: bool,
}

impl PySelector {
    /// Translates the facade's `PartitionSelector`.
    pub(crate) fn new(kind: &str, function: Option<Py<PyAny>>) -> Self {
        let core = match kind {
            _ if function.is_some() => Selector::Given,
            "round_robin" => Selector::RoundRobin,
            _ => Selector::ByType,
        };
        Self { core, function, is_by_key: kind == "by_key" }
    }

    /// Returns the partition that a Python function chooses, or `None` if the core selects it.
    #[inline]
    pub(crate) fn given(
        &self,
        queue: &BatchQueue<PyItem>,
        item: &Bound<'_, PyAny>,
    ) -> PyResult<Option<usize>> {
        match &self.function {
            None => Ok(None),
            Some(function) => self.call(function.bind(item.py()), queue, item).map(Some),
        }
    }

    #[inline(never)]
    fn call(
        &self,
        function: &Bound<'_, PyAny>,
        queue: &BatchQueue<PyItem>,
        item: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let count = queue.partition_count();
        if self.is_by_key {
            return partition_of(&function.call1((item,))?, count);
        }
        let chosen = function.call1((item, count))?;
        match chosen.extract::<usize>() {
            Ok(index) if index < count => Ok(index),
            _ => Err(ConfigError::new_err(format!(
                "the custom selector chose partition {}; it must be an int from 0 to {}",
                chosen.repr()?,
                count - 1
            ))),
        }
    }
}

// The partition of a key, the same in every process and version.
//
// The bytes of a str, of an int, and of bytes are hashed as they are. A bool is preceded by its
// kind, and each part of a tuple by its kind and length: `1`, `True` and `"1"` are different parts.

/// Return the partition of a key, the same in every process and version.
///
/// Args:
///     key: A str, bytes, int or bool, or a tuple of these and None.
///     partitions: The number of partitions, 1 or more.
///
/// Raises:
///     ConfigError: The key is of another type.
#[pyfunction]
pub(crate) fn partition_of_key(
    key: &Bound<'_, PyAny>,
    partitions: NonZeroUsize,
) -> PyResult<usize> {
    partition_of(key, partitions.get())
}

fn partition_of(key: &Bound<'_, PyAny>, count: usize) -> PyResult<usize> {
    let bytes = if let Ok(parts) = key.cast::<PyTuple>() {
        let mut all = Vec::with_capacity(32 * parts.len());
        for part in parts {
            let (kind, bytes) = part_of(&part)?.ok_or_else(|| unstable(key, &part))?;
            all.push(kind);
            all.extend((bytes.len() as u64).to_le_bytes());
            all.extend(bytes);
        }
        all
    } else {
        match part_of(key)? {
            Some((BOOL, value)) => [&[BOOL], &*value].concat(),
            Some((MISSING, _)) | None => return Err(unstable(key, key)),
            Some((_, bytes)) => bytes,
        }
    };
    Ok(usize::try_from(fnv1a(&bytes) % count as u64).unwrap_or(0))
}

/// The kind of a bool, which is an int to Python.
const BOOL: u8 = b'?';

/// The kind of None.
const MISSING: u8 = b'-';

/// Returns the kind and the bytes of a key, or of a part of one, or `None` for another type.
fn part_of(value: &Bound<'_, PyAny>) -> PyResult<Option<(u8, Vec<u8>)>> {
    Ok(Some(if value.is_none() {
        (MISSING, Vec::new())
    } else if let Ok(flag) = value.cast::<PyBool>() {
        (BOOL, vec![u8::from(flag.is_true())])
    } else if let Ok(text) = value.cast::<PyString>() {
        (b's', text_of(text)?)
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        (b'b', bytes.as_bytes().to_vec())
    } else if let Ok(number) = value.extract::<i128>() {
        (b'i', number.to_le_bytes().to_vec())
    } else if let Ok(number) = value.cast::<PyInt>() {
        (b'i', large_int(number)?)
    } else {
        return Ok(None);
    }))
}

/// Encodes a text as UTF-8, lone surrogates included.
fn text_of(text: &Bound<'_, PyString>) -> PyResult<Vec<u8>> {
    if let Ok(text) = text.to_cow() {
        return Ok(text.as_bytes().to_vec());
    }
    text.call_method1("encode", ("utf-8", "surrogatepass"))?.extract()
}

/// Encodes an int of more than 128 bits.
fn large_int(number: &Bound<'_, PyInt>) -> PyResult<Vec<u8>> {
    let bits: usize = number.call_method0("bit_length")?.extract()?;
    let kwargs = pyo3::types::PyDict::new(number.py());
    kwargs.set_item("signed", true)?;
    number.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&kwargs))?.extract()
}

fn unstable(key: &Bound<'_, PyAny>, part: &Bound<'_, PyAny>) -> PyErr {
    let problem = || {
        Ok::<_, PyErr>(if key.is_none() {
            "the key of an item is None: have the function return a str, bytes, int or bool, or a \
             tuple of these and None, like (None,)"
                .to_owned()
        } else if part.is_instance_of::<PyTuple>() {
            format!(
                "the key {} has a tuple inside a tuple; return one tuple of str, bytes, int, bool \
                 and None",
                key.repr()?
            )
        } else {
            format!(
                "the key {} has a value of type {}, which cannot be hashed the same way in every \
                 process; return a str, bytes, int or bool, or a tuple of these and None",
                key.repr()?,
                part.get_type().qualname()?
            )
        })
    };
    problem().map_or_else(|error| error, ConfigError::new_err)
}

/// Hashes with FNV-1a, 64 bits (Fowler, Noll, Vo). Unlike Python's `hash`, it is the same in every
/// process and version.
fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.iter().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

// `ThreadPolicy` and `PartitionPolicy`.

/// How many drain threads a queue has. Compares by value and pickles.
#[pyclass(frozen, eq, hash, module = "batchqueue")]
#[derive(Clone, PartialEq)]
pub(crate) struct ThreadPolicy(pub(crate) config::ThreadPolicy);

impl std::hash::Hash for ThreadPolicy {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        format!("{:?}", self.0).hash(state);
    }
}

#[pymethods]
impl ThreadPolicy {
    /// Raise TypeError: use a static method.
    #[new]
    #[pyo3(signature = (*args: "Any", **options: "Any"))]
    fn new(args: &Bound<'_, PyTuple>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let _ = options;
        let examples = "ThreadPolicy.fixed(2) or ThreadPolicy.cpu_cores(1.0)";
        Err(no_constructor("ThreadPolicy", args, examples))
    }

    /// Use `count` drain threads on every machine.
    ///
    /// Args:
    ///     count: Drain threads, 1 or more.
    ///
    /// Raises:
    ///     ConfigError: `count` is below 1.
    #[staticmethod]
    #[pyo3(signature = (count: "int"))]
    fn fixed(count: &Bound<'_, PyAny>) -> PyResult<Self> {
        let count = whole("ThreadPolicy.fixed", "threads", count, 1, config::MAX_THREADS)?;
        Ok(Self(config::ThreadPolicy::fixed(count)?))
    }

    /// Use `multiplier` drain threads per core that this process may use: rounded half up, at
    /// least 1.
    ///
    /// Args:
    ///     multiplier: Drain threads per core, above 0.
    ///
    /// Raises:
    ///     ConfigError: `multiplier` is not a finite number above 0.
    #[staticmethod]
    #[pyo3(signature = (multiplier: "float"))]
    fn cpu_cores(multiplier: &Bound<'_, PyAny>) -> PyResult<Self> {
        let multiplier = factor("ThreadPolicy.cpu_cores", multiplier)?;
        Ok(Self(config::ThreadPolicy::cores(0, multiplier)?))
    }

    /// Use `base` drain threads and `multiplier` more per core, rounded half up.
    ///
    /// Args:
    ///     base: Drain threads on every machine, 0 or more.
    ///     multiplier: Further drain threads per core that this process may use, above 0.
    ///
    /// Raises:
    ///     ConfigError: `base` is negative, or `multiplier` is not a finite number above 0.
    #[staticmethod]
    #[pyo3(signature = (base: "int", multiplier: "float"))]
    fn cpu_cores_with_base(
        base: &Bound<'_, PyAny>,
        multiplier: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let name = "ThreadPolicy.cpu_cores_with_base";
        let base = whole(name, "threads", base, 0, config::MAX_THREADS)?;
        Ok(Self(config::ThreadPolicy::cores(base, factor(name, multiplier)?)?))
    }

    /// Return the number of drain threads, at least 1.
    ///
    /// Args:
    ///     cores: Cores to count with. Default: the cores that this process may use.
    #[pyo3(signature = (cores=None))]
    fn resolve(&self, cores: Option<usize>) -> usize {
        self.0.resolve(cores.unwrap_or_else(config::available_cores))
    }

    fn __repr__(&self) -> String {
        match self.0 {
            config::ThreadPolicy::Fixed(count) => format!("ThreadPolicy.fixed({count})"),
            config::ThreadPolicy::Cores { base: 0, multiplier } => {
                format!("ThreadPolicy.cpu_cores({multiplier})")
            }
            config::ThreadPolicy::Cores { base, multiplier } => {
                format!("ThreadPolicy.cpu_cores_with_base({base}, {multiplier})")
            }
        }
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let class = py.get_type::<Self>();
        Ok(match self.0 {
            config::ThreadPolicy::Fixed(count) => {
                (class.getattr("fixed")?, (count,).into_pyobject(py)?.into_any())
            }
            config::ThreadPolicy::Cores { base, multiplier } => (
                class.getattr("cpu_cores_with_base")?,
                (base, multiplier).into_pyobject(py)?.into_any(),
            ),
        })
    }
}

/// How many partitions a queue has. Compares by value and pickles.
#[pyclass(frozen, eq, hash, module = "batchqueue")]
#[derive(Clone, PartialEq, Hash)]
pub(crate) struct PartitionPolicy(pub(crate) config::PartitionPolicy);

#[pymethods]
impl PartitionPolicy {
    /// Raise TypeError: use a static method.
    #[new]
    #[pyo3(signature = (*args: "Any", **options: "Any"))]
    fn new(args: &Bound<'_, PyTuple>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let _ = options;
        let examples = "PartitionPolicy.fixed(8) or PartitionPolicy.adaptive()";
        Err(no_constructor("PartitionPolicy", args, examples))
    }

    /// Use `count` partitions.
    ///
    /// Args:
    ///     count: Partitions, 1 or more.
    ///
    /// Raises:
    ///     ConfigError: `count` is below 1.
    #[staticmethod]
    #[pyo3(signature = (count: "int"))]
    fn fixed(count: &Bound<'_, PyAny>) -> PyResult<Self> {
        partitions("PartitionPolicy.fixed", count).map(config::PartitionPolicy::Fixed).map(Self)
    }

    /// Use `multiplier` partitions per drain thread.
    ///
    /// Args:
    ///     multiplier: Partitions per drain thread, 1 or more.
    ///
    /// Raises:
    ///     ConfigError: `multiplier` is below 1.
    #[staticmethod]
    #[pyo3(signature = (multiplier: "int"))]
    fn thread_multiply(multiplier: &Bound<'_, PyAny>) -> PyResult<Self> {
        let multiplier = partitions("PartitionPolicy.thread_multiply", multiplier)?;
        Ok(Self(config::PartitionPolicy::ThreadMultiply(multiplier)))
    }

    /// Let the partitions grow with `add_handler`: one for each handler up to `multiplier` per
    /// drain thread, then one for every two handlers.
    ///
    /// Args:
    ///     multiplier: Partitions per drain thread up to which each handler gets its own, 1 or
    ///         more.
    ///
    /// Raises:
    ///     ConfigError: `multiplier` is below 1.
    #[staticmethod]
    #[pyo3(signature = (multiplier: "int" = 25))]
    fn adaptive(#[pyo3(from_py_with = per_thread)] multiplier: usize) -> PyResult<Self> {
        Ok(Self(config::PartitionPolicy::adaptive(multiplier)?))
    }

    /// Return the number of partitions, at least 1.
    ///
    /// Args:
    ///     threads: Drain threads.
    ///     handlers: Sum of the weights of the handlers.
    #[pyo3(signature = (threads, handlers=0.0))]
    fn resolve(&self, threads: usize, handlers: f64) -> usize {
        self.0.resolve(threads, handlers)
    }

    fn __repr__(&self) -> String {
        let (name, count) = self.parts();
        format!("PartitionPolicy.{name}({count})")
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (usize,))> {
        let (name, count) = self.parts();
        Ok((py.get_type::<Self>().getattr(name)?, (count,)))
    }
}

impl PartitionPolicy {
    fn parts(&self) -> (&'static str, usize) {
        match self.0 {
            config::PartitionPolicy::Fixed(count) => ("fixed", count),
            config::PartitionPolicy::ThreadMultiply(multiplier) => ("thread_multiply", multiplier),
            config::PartitionPolicy::Adaptive { multiplier } => ("adaptive", multiplier),
        }
    }
}

/// Checks a whole number given by a caller. The error names the limits.
fn whole(
    name: &str,
    what: &str,
    count: &Bound<'_, PyAny>,
    least: usize,
    most: usize,
) -> PyResult<usize> {
    let number: Option<usize> =
        if count.is_instance_of::<PyBool>() { None } else { count.extract().ok() };
    number.filter(|count| (least..=most).contains(count)).ok_or_else(|| {
        let count = count.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        ConfigError::new_err(format!("{name} is {count}; give {least} to {most} {what}"))
    })
}

fn partitions(name: &str, count: &Bound<'_, PyAny>) -> PyResult<usize> {
    whole(name, "partitions", count, 1, config::MAX_PARTITIONS)
}

fn per_thread(multiplier: &Bound<'_, PyAny>) -> PyResult<usize> {
    partitions("PartitionPolicy.adaptive", multiplier)
}

fn factor(name: &str, multiplier: &Bound<'_, PyAny>) -> PyResult<f64> {
    multiplier.extract().map_err(|_| {
        let multiplier = multiplier.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        ConfigError::new_err(format!(
            "{name} is {multiplier}; give a number of threads per core, for instance 1.0"
        ))
    })
}

/// Returns the error for a call of a constructor that does not exist, which is a frequent mistake.
fn no_constructor(name: &str, args: &Bound<'_, PyTuple>, examples: &str) -> PyErr {
    let given = args.get_item(0).and_then(|first| first.repr()).map(|text| text.to_string());
    PyTypeError::new_err(format!(
        "{name}({}) does not say how to count; give {examples}",
        given.unwrap_or_default()
    ))
}

/// Return the number of drain threads of a queue with these policies.
#[pyfunction]
pub(crate) fn thread_count(threads: &ThreadPolicy, partitions: &PartitionPolicy) -> usize {
    let config = config::Config {
        threads: threads.0,
        partitions: partitions.0,
        ..config::Config::default()
    };
    config.resolve(config::available_cores()).0
}
