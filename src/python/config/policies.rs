//! `ThreadPolicy` and `PartitionPolicy`.

use pyo3::prelude::*;

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
    /// Use `count` drain threads on every machine.
    ///
    /// Args:
    ///     count: Drain threads, 1 or more.
    ///
    /// Raises:
    ///     ConfigError: `count` is below 1.
    #[staticmethod]
    fn fixed(count: i64) -> PyResult<Self> {
        Ok(Self(config::ThreadPolicy::fixed(not_negative("ThreadPolicy.fixed", count)?)?))
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
    fn cpu_cores(multiplier: f64) -> PyResult<Self> {
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
    fn cpu_cores_with_base(base: i64, multiplier: f64) -> PyResult<Self> {
        Ok(Self(config::ThreadPolicy::cores(
            not_negative("ThreadPolicy.cpu_cores_with_base", base)?,
            multiplier,
        )?))
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
    /// Use `count` partitions.
    ///
    /// Args:
    ///     count: Partitions, 1 or more.
    ///
    /// Raises:
    ///     ConfigError: `count` is below 1.
    #[staticmethod]
    fn fixed(count: i64) -> PyResult<Self> {
        Ok(Self(config::PartitionPolicy::fixed(not_negative("PartitionPolicy.fixed", count)?)?))
    }

    /// Use `multiplier` partitions per drain thread.
    ///
    /// Args:
    ///     multiplier: Partitions per drain thread, 1 or more.
    ///
    /// Raises:
    ///     ConfigError: `multiplier` is below 1.
    #[staticmethod]
    fn thread_multiply(multiplier: i64) -> PyResult<Self> {
        let multiplier = not_negative("PartitionPolicy.thread_multiply", multiplier)?;
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
    #[pyo3(signature = (multiplier=25))]
    fn adaptive(multiplier: i64) -> PyResult<Self> {
        Ok(Self(config::PartitionPolicy::adaptive(not_negative(
            "PartitionPolicy.adaptive",
            multiplier,
        )?)?))
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

fn not_negative(name: &str, count: i64) -> PyResult<usize> {
    usize::try_from(count).map_err(|_| {
        ConfigError::new_err(format!("{name}: {count} is out of range; give a number from 0 up"))
    })
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
