//! The class `Aggregator`: grouped aggregation.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, RecordBatchReader};
use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::aggregating::{Aggregating, KeptGroups};
use super::exceptions::{BatchQueueError, ConfigError, QueueForkedError};
use super::interpreter::{GuardedRef, generation};
use super::item::{batches_of, has_pyarrow, to_pyarrow};
use super::time::zone_named;
use crate::arrow::aggregate::{Aggregation, Aggregator, LG_REGISTERS, Measure, Window};

/// A window as the facade describes it: column, name, width and offset in nanoseconds, zone.
type WindowSpec = (String, String, i64, i64, Option<String>);

fn window_of((column, name, width_ns, offset_ns, zone): WindowSpec) -> PyResult<Window> {
    let zone = zone.map(|name| Ok::<_, PyErr>((name.clone(), zone_named(&name)?))).transpose()?;
    Ok(Window { column, name, width_ns, offset_ns, zone })
}

/// A measure as the facade describes it: name, kind, column, second column, quantiles or the
/// accuracy, n or the registers.
type MeasureSpec = (String, String, Option<String>, Option<String>, Vec<f64>, usize);

fn lg_registers(number: usize) -> PyResult<u8> {
    u8::try_from(number).ok().filter(|number| LG_REGISTERS.contains(number)).ok_or_else(|| {
        ConfigError::new_err(format!("the registers of a sketch are 2^{number}; give 2^4 to 2^21"))
    })
}

fn measure_of(
    (name, kind, column, second, quantiles, n): MeasureSpec,
) -> PyResult<(String, Measure)> {
    let Some(column) = column else { return Ok((name, Measure::Count { column: None })) };
    let measure = match (kind.as_str(), second) {
        ("count", _) => Measure::Count { column: Some(column) },
        ("sum", _) => Measure::Sum { column },
        ("mean", _) => Measure::Mean { column },
        ("min", _) => Measure::Min { column },
        ("max", _) => Measure::Max { column },
        ("first", Some(by)) => Measure::First { column, by },
        ("last", Some(by)) => Measure::Last { column, by },
        ("quantiles", _) => Measure::Quantiles { column, quantiles },
        ("quantilebuckets", _) => Measure::QuantileBuckets {
            column,
            accuracy: quantiles.first().copied().unwrap_or(0.01),
        },
        ("distinct", _) => {
            Measure::Distinct { column, lg_registers: lg_registers(n)?, gives_sketches: false }
        }
        ("distinctsketch", _) => {
            Measure::Distinct { column, lg_registers: lg_registers(n)?, gives_sketches: true }
        }
        ("top_n", label) => Measure::TopN { column, n, label },
        _ => {
            return Err(ConfigError::new_err(format!(
                "measure {name:?} has the unknown kind {kind:?}"
            )));
        }
    };
    Ok((name, measure))
}

/// The core of `batchqueue.aggregation.Aggregator`.
#[pyclass(name = "Aggregator", frozen, subclass, module = "batchqueue._core")]
pub(crate) struct PyAggregator {
    life: Life,
    aggregation: Aggregation,
}

/// The groups in the process with one generation.
struct Life {
    aggregating: Arc<Aggregating>,
    generation: u32,
    /// Those of a forked child whose queue was restarted, in the child.
    next: OnceLock<Box<Life>>,
}

#[pymethods]
impl PyAggregator {
    #[new]
    #[pyo3(signature = (
        keys: "list[str]", window: "tuple[str, str, int, int, str | None] | None",
        measures: "list[tuple[str, str, str | None, str | None, list[float], int]]",
        max_groups: "int", text: "str",
        next_worker: "Any", flush_period_s: "float"
    ))]
    #[allow(clippy::too_many_arguments)] // the fields of the facade's description
    fn new(
        py: Python<'_>,
        keys: Vec<String>,
        window: Option<WindowSpec>,
        measures: Vec<MeasureSpec>,
        max_groups: usize,
        text: String,
        next_worker: Option<Py<PyAny>>,
        flush_period_s: f64,
    ) -> PyResult<Self> {
        let window = window.map(window_of).transpose()?;
        let measures = measures.into_iter().map(measure_of).collect::<PyResult<_>>()?;
        let aggregation = Aggregation { keys, window, measures, max_groups, text };
        let flush_period = Duration::try_from_secs_f64(flush_period_s).map_err(|_| {
            ConfigError::new_err(format!("flush_period is {flush_period_s} s; give 0 or more"))
        })?;
        let due_at = Instant::now().checked_add(flush_period);
        let due_at = due_at.ok_or_else(|| {
            ConfigError::new_err(format!("flush_period is {flush_period_s:e} s; give less"))
        })?;
        let kept =
            KeptGroups { aggregator: Aggregator::new(aggregation.clone()), due_at, dropped: 0 };
        let next_worker = next_worker.map(GuardedRef::new);
        let pyarrow = has_pyarrow(py)?;
        let aggregating =
            Aggregating { kept: Mutex::new(kept), next_worker, flush_period, pyarrow };
        let life = Life {
            aggregating: Arc::new(aggregating),
            generation: generation(),
            next: OnceLock::new(),
        };
        Ok(Self { life, aggregation })
    }

    /// Aggregate a list of Arrow data: rows, or partials of an equal aggregation.
    ///
    /// A queue does this without the interpreter.
    ///
    /// Args:
    ///     batch: Objects with `__arrow_c_array__` or `__arrow_c_stream__`. Either all of them are
    ///         aggregated, or none.
    ///
    /// Raises:
    ///     ConfigError: A column is missing, its type is not supported or has changed, or the
    ///         partials belong to another aggregation.
    ///     BatchQueueError: There would be more than `max_groups` groups and there is no next
    ///         worker, or the data is invalid.
    #[pyo3(signature = (batch: "list[Any]"))]
    fn consume(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let own = self.own()?;
        let mut batches = Vec::new();
        for data in batch.try_iter()? {
            Self::read(&data?, &mut batches)?;
        }
        py.detach(|| own.consume(&batches))
    }

    /// Aggregate one piece of Arrow data.
    ///
    /// Args:
    ///     data: An object with `__arrow_c_array__` or `__arrow_c_stream__`.
    ///
    /// Raises:
    ///     ConfigError: As `consume`.
    ///     BatchQueueError: As `consume`.
    #[pyo3(signature = (data: "Any"))]
    fn update(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let own = self.own()?;
        let mut batches = Vec::new();
        Self::read(data, &mut batches)?;
        py.detach(|| own.consume(&batches))
    }

    /// Emit all groups to the next worker now. Without a next worker, nothing happens.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let own = self.own()?;
        py.detach(|| own.flush())
    }

    /// Emit all groups: no rows wait to be merged with them.
    fn on_idle(&self, py: Python<'_>) -> PyResult<()> {
        self.flush(py)
    }

    /// Emit all groups for the last time.
    ///
    /// Raises:
    ///     BatchQueueError: The next worker refused some of the groups; they are lost.
    fn on_close(&self, py: Python<'_>) -> PyResult<()> {
        let own = self.own()?;
        py.detach(|| own.close())
    }

    /// Take all groups out, as a record batch of partials that an equal aggregator can aggregate
    /// further, in this process or another.
    ///
    /// Returns:
    ///     A `pyarrow.RecordBatch` (without pyarrow: an object with `__arrow_c_array__`), or None
    ///     if there are no groups.
    #[pyo3(signature = () -> "Any")]
    fn partials(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let own = self.own()?;
        let partials = py.detach(|| own.kept.lock().aggregator.take_partials())?;
        partials.map(|partials| Ok(to_pyarrow(py, partials, own.pyarrow)?.unbind())).transpose()
    }

    /// Return the keys and the measures of all groups, in order of first appearance. The groups
    /// stay.
    ///
    /// Returns:
    ///     A `pyarrow.RecordBatch` (without pyarrow: an object with `__arrow_c_array__`), or None
    ///     if there are no groups.
    ///
    /// Raises:
    ///     OverflowError: A sum of integers does not fit into 64 bits; `partials` returns it as a
    ///         decimal.
    #[pyo3(signature = () -> "Any")]
    fn result(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let own = self.own()?;
        let result = py.detach(|| own.kept.lock().aggregator.result())?;
        result.map(|result| Ok(to_pyarrow(py, result, own.pyarrow)?.unbind())).transpose()
    }

    /// Groups that were lost because the next worker raised, or refused them at close.
    #[getter]
    fn dropped(&self, py: Python<'_>) -> PyResult<usize> {
        let own = self.own()?;
        Ok(py.detach(|| own.kept.lock().dropped))
    }

    /// Whether there is a next worker, to which the groups are emitted.
    #[getter]
    fn emits(&self) -> bool {
        self.life.aggregating.emits()
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let own = self.own()?;
        Ok(py.detach(|| own.kept.lock().aggregator.len()))
    }

    /// Return True, even while there are no groups.
    #[allow(clippy::unused_self)] // as Python calls it
    fn __bool__(&self) -> bool {
        true
    }

    #[allow(clippy::needless_pass_by_value)]
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A drain thread that uses the aggregator holds a reference to it, so it is not garbage
        // then.
        visit.call(self.life.aggregating.next_worker.as_deref())
    }
}

impl PyAggregator {
    /// What a queue of this process feeds: in a forked child an empty aggregator, because what the
    /// parent's has belongs to the parent, and its lock may be held for ever.
    fn for_queue(&self, py: Python<'_>) -> Arc<Aggregating> {
        let mut life = &self.life;
        while life.generation != generation() {
            life = life.next.get_or_init(|| {
                let former = &life.aggregating;
                let kept = KeptGroups {
                    aggregator: Aggregator::new(self.aggregation.clone()),
                    due_at: Instant::now() + former.flush_period,
                    dropped: 0,
                };
                let next_worker = former.next_worker.as_deref();
                let aggregating = Aggregating {
                    kept: Mutex::new(kept),
                    next_worker: next_worker.map(|worker| GuardedRef::new(worker.clone_ref(py))),
                    flush_period: former.flush_period,
                    pyarrow: former.pyarrow,
                };
                Box::new(Life {
                    aggregating: Arc::new(aggregating),
                    generation: generation(),
                    next: OnceLock::new(),
                })
            });
        }
        life.aggregating.clone()
    }

    /// The aggregator, unless this is a forked child: a drain thread that does not exist here may
    /// hold the lock, and may have aggregated half of a batch.
    fn own(&self) -> PyResult<&Aggregating> {
        let mut life = &self.life;
        loop {
            if life.generation == generation() {
                return Ok(&life.aggregating);
            }
            let Some(next) = life.next.get() else { break };
            life = next;
        }
        Err(QueueForkedError::new_err(
            "this Aggregator was made before a fork, and drain threads of the parent process may \
             have been inside; make a new one in the child",
        ))
    }

    fn read(data: &Bound<'_, PyAny>, into: &mut Vec<RecordBatch>) -> PyResult<()> {
        let mut batches = batches_of(data)?;
        data.py().detach(|| -> PyResult<()> {
            let schema = batches.schema();
            let before = into.len();
            for batch in &mut batches {
                into.push(batch.map_err(|error| {
                    BatchQueueError::new_err(format!("the stream of batches failed: {error}"))
                })?);
            }
            if into.len() == before {
                // No rows, but the columns are still to be checked.
                into.push(RecordBatch::new_empty(schema));
            }
            Ok(())
        })
    }
}

/// The aggregator behind a handler, unless a subclass overrides `consume`.
pub(super) fn aggregating_of(instance: &Bound<'_, PyAny>) -> PyResult<Option<Arc<Aggregating>>> {
    let Ok(aggregator) = instance.cast::<PyAggregator>() else { return Ok(None) };
    let own = instance.py().get_type::<PyAggregator>().getattr("consume")?;
    let is_own = instance.get_type().getattr("consume")?.is(&own);
    Ok(is_own.then(|| aggregator.get().for_queue(instance.py())))
}
