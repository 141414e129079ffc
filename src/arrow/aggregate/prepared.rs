//! A batch ready to be applied: everything that can be wrong with its data has been checked.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StructArray};
use arrow_schema::DataType;
use arrow_select::take::{TakeOptions, take};

use super::column::{Column, Values};
use super::description::{AggregateError, Aggregation, Measure};
use super::schema::{Bucketing, ColumnIndices, MeasureIndices};
use super::state::Input;
use crate::arrow::time::{BucketFinder, ClockReader};

/// A checked batch, or a range of its rows.
pub(super) struct Prepared {
    pub(super) rows: usize,
    pub(super) keys: Vec<Column>,
    pub(super) measures: PreparedMeasures,
}

pub(super) enum PreparedMeasures {
    Rows(Vec<Input>),
    Partials(Vec<StructArray>),
}

impl Prepared {
    /// `is_own` says which measures have their own state.
    pub(super) fn of(
        batch: &RecordBatch,
        aggregation: &Aggregation,
        indices: &ColumnIndices,
        is_own: &[bool],
    ) -> Result<Self, AggregateError> {
        let mut keys = indices
            .keys
            .iter()
            .map(|&index| Column::of(batch.column(index)))
            .collect::<Result<Vec<_>, _>>()?;
        let measures = match &indices.measures {
            MeasureIndices::Rows(columns) => {
                if let (Some(bucketing), Some(times)) = (&indices.bucketing, keys.last_mut()) {
                    floor(times, bucketing);
                }
                let column = |index: Option<usize>| index.map(|index| batch.column(index));
                let inputs = aggregation
                    .measures
                    .iter()
                    .zip(columns)
                    .zip(is_own)
                    .filter(|(_, is_own)| **is_own);
                let inputs = inputs.map(|(((_, measure), &(first, second)), _)| {
                    input_of(measure, column(first), column(second))
                });
                PreparedMeasures::Rows(inputs.collect::<Result<_, _>>()?)
            }
            MeasureIndices::Partials(columns) => {
                let own = columns.iter().zip(is_own).filter(|(_, is_own)| **is_own);
                PreparedMeasures::Partials(
                    own.map(|(&index, _)| batch.column(index).as_struct().clone()).collect(),
                )
            }
        };
        Ok(Self { rows: batch.num_rows(), keys, measures })
    }

    /// The batch in steps of [`STEP_ROWS`] rows, each prefetched.
    pub(super) fn steps(&self) -> impl Iterator<Item = Self> {
        (0..self.rows).step_by(STEP_ROWS).map(|start| {
            let step = self.slice(start, STEP_ROWS.min(self.rows - start));
            step.prefetch();
            step
        })
    }

    /// Reads one byte of each cache line of numbers. Unlike the reads of the actual work, these do
    /// not depend on each other, which hides the latency of main memory (count and sum: 3.2 instead
    /// of 4.4 ns per row).
    fn prefetch(&self) {
        for key in &self.keys {
            match (&key.values, &key.indices) {
                (Values::Codes(codes), None) => touch(codes.inner()),
                (_, Some(indices)) => touch(indices.inner()),
                _ => {}
            }
        }
        let PreparedMeasures::Rows(inputs) = &self.measures else { return };
        for numbers in inputs.iter().filter_map(|input| input.array.as_ref()) {
            if let Some(width) = numbers.data_type().primitive_width() {
                let data = numbers.to_data();
                touch(&data.buffers()[0][data.offset() * width..][..data.len() * width]);
            }
        }
    }

    /// A range of its rows.
    fn slice(&self, start: usize, rows: usize) -> Self {
        let keys = self.keys.iter().map(|key| key.slice(start, rows)).collect();
        let measures = match &self.measures {
            PreparedMeasures::Rows(inputs) => PreparedMeasures::Rows(
                inputs.iter().map(|input| input.slice(start, rows)).collect(),
            ),
            PreparedMeasures::Partials(partials) => PreparedMeasures::Partials(
                partials.iter().map(|partials| partials.slice(start, rows)).collect(),
            ),
        };
        Self { rows, keys, measures }
    }
}

/// The rows of a step: few enough that their groups and inputs stay in the first cache levels.
const STEP_ROWS: usize = 2_048;

const CACHE_LINE: usize = 64;

fn touch(bytes: &[u8]) {
    std::hint::black_box(bytes.iter().step_by(CACHE_LINE).fold(0_u8, |all, byte| all ^ byte));
}

fn input_of(
    measure: &Measure,
    first: Option<&ArrayRef>,
    second: Option<&ArrayRef>,
) -> Result<Input, AggregateError> {
    let is_array = measure.wants_numbers() || matches!(measure, Measure::Count { .. });
    let column = |array: Option<&ArrayRef>| array.map(Column::of).transpose();
    Ok(Input {
        array: match first.filter(|_| is_array) {
            Some(array) if measure.wants_numbers() => Some(plain(array)?),
            other => other.cloned(),
        },
        value: column(first.filter(|_| !is_array))?,
        second: column(second)?,
    })
}

/// Decodes a dictionary; other arrays are returned as they are.
fn plain(array: &ArrayRef) -> Result<ArrayRef, AggregateError> {
    let DataType::Dictionary(..) = array.data_type() else { return Ok(array.clone()) };
    let dictionary = array.as_any_dictionary();
    let options = TakeOptions { check_bounds: true };
    plain(&take(dictionary.values(), dictionary.keys(), Some(options))?)
}

/// Rounds each time down to the start of its bucket.
fn floor(times: &mut Column, Bucketing { clock, buckets }: &Bucketing) {
    let Values::Codes(codes) = &times.values else { return };
    times.values = Values::Codes(if let (None, Some(grid)) = (clock, buckets.grid()) {
        // Neighbouring times are mostly in the same bucket: a division per row would cost more than
        // everything else.
        let mut bucket = 0..0;
        let floored = codes.iter().map(|&time| {
            if !bucket.contains(&time) {
                bucket = grid.around(time);
            }
            bucket.start
        });
        floored.collect()
    } else {
        let mut finder = BucketFinder::new(buckets);
        let mut reader = clock.as_ref().map(ClockReader::new);
        let starts = codes
            .iter()
            .map(|&time| finder.start(reader.as_mut().map_or(time, |reader| reader.instant(time))));
        starts.collect()
    });
}
