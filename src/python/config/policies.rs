//! `ThreadPolicy` and `PartitionPolicy`.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};

use crate::config;
use crate::python::exceptions::ConfigError;

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
        let count = partitions("PartitionPolicy.fixed", count)?;
        Ok(Self(config::PartitionPolicy::fixed(count)?))
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
        Ok(Self(config::PartitionPolicy::thread_multiply(multiplier)?))
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
    #[pyo3(signature = (multiplier: "int" = PerThread(25)))]
    fn adaptive(multiplier: PerThread) -> PyResult<Self> {
        Ok(Self(config::PartitionPolicy::adaptive(multiplier.0)?))
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

/// A whole number as a caller gives it, or an error with the limits.
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

/// Partitions per drain thread.
#[derive(Clone, Copy)]
struct PerThread(usize);

impl<'py> FromPyObject<'_, 'py> for PerThread {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        partitions("PartitionPolicy.adaptive", &object).map(Self)
    }
}

fn factor(name: &str, multiplier: &Bound<'_, PyAny>) -> PyResult<f64> {
    multiplier.extract().map_err(|_| {
        let multiplier = multiplier.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        ConfigError::new_err(format!(
            "{name} is {multiplier}; give a number of threads per core, for instance 1.0"
        ))
    })
}

/// There is no constructor, and a call of it is a frequent mistake.
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
