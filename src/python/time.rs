//! `TimeBuckets` and `with_instants`: times in zones, as the core counts them.

use parking_lot::Mutex;
use pyo3::prelude::*;

use super::exceptions::{BatchQueueError, ConfigError};
use super::item::{batches_of, to_pyarrow};
use crate::arrow::time::{self, BucketFinder, Buckets, Clock, ClockReader, Zone};

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
#[pyo3(signature = (batch: "Any", zone: "str") -> "Any")]
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
