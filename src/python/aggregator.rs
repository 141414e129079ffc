//! The class `Aggregator`: grouped aggregation.

use std::iter::successors;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, RecordBatchReader};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyString};

use crate::arrow::aggregate::{
    AggregateError, Aggregation, Aggregator, LG_REGISTERS, Measure, Window, sketches,
};
use crate::arrow::time;
use crate::arrow::time::{BucketFinder, Buckets, Clock, ClockReader, Zone};
use crate::python::errors::{BatchQueueError, ConfigError, QueueForkedError};
use crate::python::interpreter::{GuardedRef, generation, guarded_call, release};
use crate::python::item::{batches_of, has_pyarrow, to_pyarrow};
use crate::sync::Mutex;

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

/// The groups in the process of one generation.
struct Life {
    aggregating: Arc<Aggregating>,
    generation: u32,
    /// The groups of a forked child whose queue was restarted.
    next: OnceLock<Box<Life>>,
}

impl Life {
    fn new(
        aggregation: &Aggregation,
        due_at: Instant,
        next_worker: Option<GuardedRef>,
        flush_period: Duration,
        pyarrow: bool,
    ) -> Self {
        let aggregator = Aggregator::new(aggregation.clone());
        let kept = Mutex::new(KeptGroups { aggregator, due_at, dropped: 0 });
        let aggregating = Arc::new(Aggregating { kept, next_worker, flush_period, pyarrow });
        Self { aggregating, generation: generation(), next: OnceLock::new() }
    }
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
        let (next_worker, pyarrow) = (next_worker.map(GuardedRef::new), has_pyarrow(py)?);
        let life = Life::new(&aggregation, due_at, next_worker, flush_period, pyarrow);
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
            batches.extend(Self::read(&data?)?);
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
    fn update(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let own = self.own()?;
        let batches = Self::read(data)?;
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
    fn partials<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let own = self.own()?;
        let partials = py.detach(|| own.kept.lock().aggregator.take_partials())?;
        partials.map(|partials| to_pyarrow(py, partials, own.pyarrow)).transpose()
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
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let own = self.own()?;
        let result = py.detach(|| own.kept.lock().aggregator.result())?;
        result.map(|result| to_pyarrow(py, result, own.pyarrow)).transpose()
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

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A drain thread that uses the aggregator holds a reference to it, so it is not garbage
        // then.
        visit.call(self.life.aggregating.next_worker.as_deref())
    }
}

impl PyAggregator {
    /// Returns the aggregator that a queue of this process feeds. In a forked child it starts
    /// empty, because the groups belong to the parent, and their lock may be held forever.
    fn for_queue(&self, py: Python<'_>) -> Arc<Aggregating> {
        let mut life = &self.life;
        while life.generation != generation() {
            life = life.next.get_or_init(|| {
                let Aggregating { next_worker, flush_period, pyarrow, .. } = &*life.aggregating;
                let due_at = Instant::now() + *flush_period;
                let next_worker = next_worker.as_deref().map(|worker| worker.clone_ref(py));
                let next_worker = next_worker.map(GuardedRef::new);
                Life::new(&self.aggregation, due_at, next_worker, *flush_period, *pyarrow).into()
            });
        }
        life.aggregating.clone()
    }

    /// Returns the aggregator of this process, or an error if a forked child has none. The parent's
    /// is unusable: a drain thread that does not exist here may hold the lock, and may have
    /// aggregated half of a batch.
    fn own(&self) -> PyResult<&Aggregating> {
        let mut lives = successors(Some(&self.life), |life| life.next.get().map(Box::as_ref));
        let own = lives.find(|life| life.generation == generation());
        own.map(|life| &*life.aggregating).ok_or_else(|| {
            QueueForkedError::new_err(
                "this Aggregator was made before a fork, and drain threads of the parent process \
                 may have been inside; make a new one in the child",
            )
        })
    }

    fn read(data: &Bound<'_, PyAny>) -> PyResult<Vec<RecordBatch>> {
        // Dropped while attached: its release may touch Python objects.
        let mut stream = batches_of(data)?;
        data.py().detach(|| {
            let schema = stream.schema();
            let mut batches = stream.by_ref().collect::<Result<Vec<_>, _>>().map_err(|error| {
                BatchQueueError::new_err(format!("the stream of batches failed: {error}"))
            })?;
            if batches.is_empty() {
                // No rows, but the columns are still to be checked.
                batches.push(RecordBatch::new_empty(schema));
            }
            Ok(batches)
        })
    }
}

/// Returns the aggregator behind a handler, unless a subclass overrides `consume`.
pub(super) fn aggregating_of(instance: &Bound<'_, PyAny>) -> PyResult<Option<Arc<Aggregating>>> {
    let Ok(aggregator) = instance.cast::<PyAggregator>() else { return Ok(None) };
    let own = instance.py().get_type::<PyAggregator>().getattr("consume")?;
    let is_own = instance.get_type().getattr("consume")?.is(&own);
    Ok(is_own.then(|| aggregator.get().for_queue(instance.py())))
}

// The part of an `Aggregator` that drain threads run without the interpreter.

/// The part of an aggregator that drain threads enter without the interpreter.
///
/// No thread waits for the interpreter while it holds the lock.
pub(crate) struct Aggregating {
    pub(super) kept: Mutex<KeptGroups>,
    pub(super) next_worker: Option<GuardedRef>,
    pub(super) flush_period: Duration,
    /// Whether partials are handed over as pyarrow batches.
    pub(super) pyarrow: bool,
}

pub(super) struct KeptGroups {
    pub(super) aggregator: Aggregator,
    pub(super) due_at: Instant,
    /// Groups that were lost.
    pub(super) dropped: usize,
}

impl Aggregating {
    /// Aggregates rows or partials. The thread may be attached or not.
    pub(super) fn consume(&self, batches: &[RecordBatch]) -> PyResult<()> {
        self.put(batches)?;
        if self.next_worker.is_some() && Instant::now() >= self.kept.lock().due_at {
            self.flush()?;
        }
        Ok(())
    }

    /// Aggregates batches. Emits the groups early if there would be too many of them.
    pub(super) fn put(&self, batches: &[RecordBatch]) -> PyResult<()> {
        let result = self.kept.lock().aggregator.update(batches);
        match result {
            Err(AggregateError::TooManyGroups { max_groups }) if self.next_worker.is_some() => {
                let before = self.kept.lock().aggregator.len();
                if before > 0 {
                    self.flush()?;
                    if self.kept.lock().aggregator.len() >= before {
                        return Err(BatchQueueError::new_err(format!(
                            "there would be more groups than max_groups, {max_groups}, and the \
                             next worker took none of them: raise max_groups, or let it wait for \
                             space"
                        )));
                    }
                    return self.put(batches);
                }
                if let [batch] = batches {
                    let half = batch.num_rows() / 2;
                    self.put(&[batch.slice(0, half)])?;
                    return self.put(&[batch.slice(half, batch.num_rows() - half)]);
                }
                batches.iter().try_for_each(|batch| self.put(std::slice::from_ref(batch)))
            }
            other => Ok(other?),
        }
    }

    /// Emits all groups to the next worker, if there is one, and starts a new period. Groups that
    /// the worker does not take stay.
    pub(super) fn flush(&self) -> PyResult<()> {
        let Some(next_worker) = &self.next_worker else { return Ok(()) };
        let partials = {
            let mut kept = self.kept.lock();
            kept.due_at = Instant::now() + self.flush_period;
            kept.aggregator.take_partials()?
        };
        let Some(partials) = partials else { return Ok(()) };
        let emitted = Python::try_attach(|py| self.emit(py, next_worker, &partials));
        let taken = match emitted {
            Some(Ok(taken)) => taken,
            Some(Err(error)) => {
                self.kept.lock().dropped += partials.num_rows();
                return Err(error);
            }
            // The interpreter ended, so nothing reads the groups.
            None => 0,
        };
        if taken < partials.num_rows() {
            self.kept
                .lock()
                .aggregator
                .take_back(partials.slice(taken, partials.num_rows() - taken))?;
        }
        Ok(())
    }

    /// Calls the next worker. Returns how many groups it took, from the front.
    fn emit(
        &self,
        py: Python<'_>,
        next_worker: &GuardedRef,
        partials: &RecordBatch,
    ) -> PyResult<usize> {
        let batch = to_pyarrow(py, partials.clone(), self.pyarrow)?;
        let answer = guarded_call(next_worker.bind(py), (batch,))?;
        let all = partials.num_rows();
        // A bool is an int in Python, but it is not a number of groups.
        let is_bool = answer.is_instance_of::<PyBool>();
        let taken = if answer.is_none() { Ok(all) } else { answer.extract::<usize>() };
        release(answer);
        match taken {
            Ok(taken) if taken <= all && !is_bool => Ok(taken),
            _ => Err(BatchQueueError::new_err(format!(
                "the next worker of an Aggregator must return how many of the {all} groups it \
                 took, from the front, or None for all"
            ))),
        }
    }

    /// Emits all groups for the last time. Groups that are not taken now are lost.
    pub(super) fn close(&self) -> PyResult<()> {
        self.flush()?;
        if self.next_worker.is_none() {
            return Ok(());
        }
        let mut kept = self.kept.lock();
        let refused = kept.aggregator.take_partials()?.map_or(0, |partials| partials.num_rows());
        kept.dropped += refused;
        if refused == 0 {
            return Ok(());
        }
        Err(BatchQueueError::new_err(format!(
            "the next worker of an Aggregator refused {refused} groups at close, and they are \
             lost; shut queues down from the first to the last, as BatchQueueManager.shutdown_all \
             does"
        )))
    }

    pub(super) fn emits(&self) -> bool {
        self.next_worker.is_some()
    }
}

// `TimeBuckets` and `with_instants`: times in zones, as the core counts them.

pub(super) fn zone_named(name: &str) -> PyResult<Zone> {
    Zone::named(name).ok_or_else(|| {
        ConfigError::new_err(format!(
            "zone {name:?} is not known; give a name of the IANA database, in its upper and lower \
             case, such as 'America/New_York' or 'UTC', or an offset from UTC such as '+05:30'"
        ))
    })
}

/// Buckets of time, in seconds. The core of `batchqueue.aggregation.bucket_start`.
#[pyclass(name = "TimeBuckets", frozen, module = "batchqueue._core")]
pub(crate) struct PyTimeBuckets {
    finder: Mutex<BucketFinder<Buckets>>,
    reader: Option<Mutex<ClockReader<Clock>>>,
}

#[pymethods]
impl PyTimeBuckets {
    /// Make buckets.
    ///
    /// Args:
    ///     width: Seconds, above 0.
    ///     offset: Where a bucket starts, in seconds after the epoch: from 0 up, and below the
    ///         width.
    ///     zone: The zone whose clock they follow; None for UTC.
    ///
    /// Raises:
    ///     ConfigError: The zone is not known, or a number is out of range.
    #[new]
    #[pyo3(signature = (width: "int", offset: "int", zone: "str | None"))]
    fn new(width: i64, offset: i64, zone: Option<&str>) -> PyResult<Self> {
        if width <= 0 || !(0..width).contains(&offset) {
            return Err(ConfigError::new_err(format!(
                "buckets of {width} s with an offset of {offset} s; give a width above 0, and an \
                 offset from 0 up and below the width"
            )));
        }
        let zone = zone.map(zone_named).transpose()?;
        let clock = zone.clone().map(|zone| Clock::new(zone, 1));
        let reader = clock.map(|clock| Mutex::new(ClockReader::new(clock)));
        let buckets = match zone {
            Some(zone) => Buckets::of_zone(width, offset, zone, 1),
            None => Buckets::of_utc(width, offset),
        };
        Ok(Self { finder: Mutex::new(BucketFinder::new(buckets)), reader })
    }

    /// Return the start of the bucket that an instant is in, in seconds since the epoch.
    fn start(&self, second: i64) -> i64 {
        self.finder.lock().start(second)
    }

    /// Return the start of the bucket of the instant at which the zone's clock showed a time.
    ///
    /// Args:
    ///     second: The time as seconds since 1970-01-01 00:00 on that clock.
    fn start_on_clock(&self, second: i64) -> i64 {
        self.start(self.reader.as_ref().map_or(second, |reader| reader.lock().instant(second)))
    }
}

/// Read timestamps without a zone as times on the clock of a zone, also in lists, structs and maps.
///
/// A time that the clock showed twice is the earlier of the two instants; a time that it skipped is
/// as much later as it skipped, as in Spark SQL.
///
/// Args:
///     batch: A record batch.
///     zone: The zone.
///
/// Returns:
///     A `pyarrow.RecordBatch` in which all timestamps are instants.
///
/// Raises:
///     ConfigError: The zone is not known.
///     BatchQueueError: The data is malformed.
#[pyfunction]
pub(crate) fn with_instants<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    zone: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let found = zone_named(zone)?;
    let malformed = |error| BatchQueueError::new_err(format!("the batch is malformed: {error}"));
    let mut batches = batches_of(batch)?;
    let batch = batches.next().transpose().map_err(malformed)?;
    let batch =
        batch.ok_or_else(|| ConfigError::new_err("there is no record batch in the data"))?;
    let batch = py.detach(|| time::with_instants(&batch, &found, zone)).map_err(malformed)?;
    to_pyarrow(py, batch, true)
}

// The class `DistinctSketch`.

/// A sketch of distinct values: HyperLogLog, as Apache DataSketches has it.
#[pyclass(module = "batchqueue._core")]
pub(crate) struct DistinctSketch(sketches::DistinctSketch);

#[pymethods]
impl DistinctSketch {
    /// Make an empty sketch.
    ///
    /// Args:
    ///     lg_registers: How many registers it has at most, as a power of two: 4 to 21.
    ///
    /// Raises:
    ///     ConfigError: That is another number.
    #[new]
    fn new(lg_registers: u8) -> PyResult<Self> {
        if !LG_REGISTERS.contains(&lg_registers) {
            return Err(ConfigError::new_err(format!(
                "lg_registers is {lg_registers}; give 4 to 21"
            )));
        }
        Ok(Self(sketches::DistinctSketch::new(lg_registers)))
    }

    /// Add a value.
    ///
    /// Raises:
    ///     TypeError: It is not a str, bytes, or an int of 64 bits.
    ///     OverflowError: It is an int of more bits.
    ///     UnicodeEncodeError: It is a str that is not valid Unicode.
    fn add(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(text) = value.cast::<PyString>() {
            self.0.add_bytes(text.to_str()?.as_bytes());
        } else if let Ok(bytes) = value.cast::<PyBytes>() {
            self.0.add_bytes(bytes.as_bytes());
        } else {
            self.0.add_integer(value.extract()?);
        }
        Ok(())
    }

    /// Add the values of another sketch, which `to_bytes` returned.
    ///
    /// Raises:
    ///     ConfigError: The bytes are not those of a sketch.
    fn merge(&mut self, other: &[u8]) -> PyResult<()> {
        self.0.merge(other).map_err(|error| ConfigError::new_err(error.to_string()))
    }

    /// Return the estimated number of distinct values.
    fn estimate(&self) -> f64 {
        self.0.estimate()
    }

    /// Return the sketch as DataSketches of other languages read it.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    /// Return an equal sketch.
    fn copy(&self) -> Self {
        Self(self.0.clone())
    }
}
