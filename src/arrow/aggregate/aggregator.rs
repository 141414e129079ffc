//! The aggregator: rows and partials in, partials and results out.

use std::fmt;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StructArray};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use arrow_select::take::{TakeOptions, take};

use crate::arrow::aggregate::column::{Column, Input, State, Values};
use crate::arrow::aggregate::description::{AggregateError, Aggregation, Measure};
use crate::arrow::aggregate::extremes::{Extreme, FirstLast, TopN};
use crate::arrow::aggregate::groups::{Groups, Mark};
use crate::arrow::aggregate::partials::{are_partials, metadata_of};
use crate::arrow::aggregate::schema::{
    Bucketing, ColumnIndices, MeasureIndices, Types, in_partials, in_rows, type_error,
};
use crate::arrow::aggregate::sketches::{Distinct, QuantileBuckets, Quantiles};
use crate::arrow::aggregate::sums::{Counts, DecimalSums, EXACT, FloatSums, IntegerSums};
use crate::arrow::time::{BucketFinder, ClockReader};

/// Aggregates record batches. The columns that it reads must have the same types in all of them.
///
/// A batch holds either rows or the partials of an equal aggregator. It is applied completely or
/// not at all.
pub struct Aggregator {
    aggregation: Aggregation,
    /// Set by the first batch.
    types: Option<Types>,
    groups: Groups,
    measured: Vec<Measured>,
    /// The column indices for the schema of the last batch.
    indices: Option<(SchemaRef, ColumnIndices)>,
    /// The group of each row of the current step; kept to reuse its memory.
    of_row: Vec<u32>,
}

impl fmt::Debug for Aggregator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aggregator")
            .field("aggregation", &self.aggregation)
            .field("groups", &self.len())
            .finish_non_exhaustive()
    }
}

/// The aggregator's contents before an update.
struct Snapshot {
    groups: Mark,
    measured: Vec<Measured>,
}

/// Copying the state of one group costs at most as much as looking up this many rows.
const ROWS_OF_A_COPY: usize = 8;

impl Aggregator {
    /// Creates an aggregator without groups.
    pub fn new(aggregation: Aggregation) -> Self {
        let keys = aggregation.keys.len() + usize::from(aggregation.window.is_some());
        Self {
            aggregation,
            types: None,
            groups: Groups::new(keys),
            measured: Vec::new(),
            indices: None,
            of_row: Vec::new(),
        }
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Applies batches of rows or partials: all of them, or none.
    ///
    /// # Errors
    /// A column is missing or has an unsuitable type, the partials belong to another aggregation,
    /// there would be too many groups, or the data is malformed.
    pub fn update(&mut self, batches: &[RecordBatch]) -> Result<(), AggregateError> {
        if self.is_empty() {
            // Batches that were rejected, or had no rows, do not fix the types.
            (self.types, self.indices) = (None, None);
        }
        let prepared =
            batches.iter().map(|batch| self.prepare(batch)).collect::<Result<Vec<_>, _>>()?;
        let rows: usize = prepared.iter().map(|batch| batch.rows).sum();
        let snapshot = self.snapshot(&prepared, rows)?;
        for step in prepared.iter().flat_map(Prepared::steps) {
            if !self.take(&step) {
                let Some(snapshot) = snapshot else {
                    unreachable!("all groups were counted in advance")
                };
                self.groups.roll_back(&snapshot.groups);
                self.measured = snapshot.measured;
                return Err(AggregateError::TooManyGroups {
                    max_groups: self.aggregation.max_groups,
                });
            }
        }
        Ok(())
    }

    /// Prepares for an update that may exceed `max_groups`. Returns a snapshot to roll back to or,
    /// where a snapshot would cost more than looking up all rows, counts the groups up front and
    /// fails if there are too many.
    fn snapshot(
        &mut self,
        prepared: &[Prepared],
        rows: usize,
    ) -> Result<Option<Snapshot>, AggregateError> {
        if self.len().saturating_add(rows) <= self.aggregation.max_groups {
            return Ok(None);
        }
        if self.len().saturating_mul(ROWS_OF_A_COPY) <= rows
            && let Some(measured) = self.measured.iter().map(Measured::copied).collect()
        {
            return Ok(Some(Snapshot { groups: self.groups.mark(), measured }));
        }
        self.find_groups(prepared, rows).map(|()| None)
    }

    /// Creates the groups before any row is applied. Stops as soon as a new group for every
    /// remaining row would still be within the limit.
    fn find_groups(
        &mut self,
        prepared: &[Prepared],
        mut rows_left: usize,
    ) -> Result<(), AggregateError> {
        let (mark, max_groups) = (self.groups.mark(), self.aggregation.max_groups);
        for step in prepared.iter().flat_map(Prepared::steps) {
            if self.groups.len().saturating_add(rows_left) <= max_groups {
                break;
            }
            rows_left -= step.rows;
            self.groups.assign(&step.keys, step.rows, &mut self.of_row);
            if self.groups.len() > max_groups {
                self.groups.roll_back(&mark);
                return Err(AggregateError::TooManyGroups { max_groups });
            }
        }
        Ok(())
    }

    /// Applies the rows of a step. Returns `false`, with no state changed, if there are too many
    /// groups.
    fn take(&mut self, step: &Prepared) -> bool {
        let mut of_row = std::mem::take(&mut self.of_row);
        self.groups.assign(&step.keys, step.rows, &mut of_row);
        let groups = self.groups.len();
        if groups > self.aggregation.max_groups {
            return false;
        }
        self.states().for_each(|state| state.resize(groups));
        match &step.measures {
            PreparedMeasures::Rows(inputs) => {
                self.states().zip(inputs).for_each(|(state, input)| state.update(&of_row, input));
            }
            PreparedMeasures::Partials(partials) => {
                self.states()
                    .zip(partials)
                    .for_each(|(state, partials)| state.merge(&of_row, partials));
            }
        }
        self.of_row = of_row;
        true
    }

    /// Takes back partials that [`take_partials`](Self::take_partials) returned, regardless of
    /// `max_groups`.
    ///
    /// # Errors
    /// The partials are not those that were returned.
    pub fn take_back(&mut self, partials: RecordBatch) -> Result<(), AggregateError> {
        let max_groups = std::mem::replace(&mut self.aggregation.max_groups, usize::MAX);
        let result = self.update(&[partials]);
        self.aggregation.max_groups = max_groups;
        result
    }

    /// Returns the states, in the order of their measures.
    fn states(&mut self) -> impl Iterator<Item = &mut Box<dyn State>> {
        self.measured.iter_mut().filter_map(|measured| match measured {
            Measured::Own(state) => Some(state),
            Measured::CountOf(_) => None,
        })
    }

    /// Returns the columns of a measure's partials, or the single column of its result.
    fn columns_of(
        &self,
        measured: &Measured,
        is_result: bool,
    ) -> Result<Vec<ArrayRef>, AggregateError> {
        match measured {
            Measured::Own(state) if is_result => Ok(vec![state.result()?]),
            Measured::Own(state) => state.partials(),
            Measured::CountOf(sum) => match &self.measured[*sum] {
                Measured::Own(sum) => Ok(sum.counts().into_iter().collect()),
                Measured::CountOf(_) => unreachable!("a count is of a sum"),
            },
        }
    }

    /// Returns the state of all groups, for another aggregator, and clears this one. Returns `None`
    /// if there are no groups.
    ///
    /// # Errors
    /// The state does not fit into Arrow arrays. Nothing is lost.
    pub fn take_partials(&mut self) -> Result<Option<RecordBatch>, AggregateError> {
        let Some(types) = self.types_if_any() else { return Ok(None) };
        let (mut fields, mut columns) = self.keys(types)?;
        for (((name, _), measured), kept) in
            self.aggregation.measures.iter().zip(&self.measured).zip(&types.kept)
        {
            let kept = StructArray::try_new(kept.clone(), self.columns_of(measured, false)?, None)?;
            fields.push(Field::new(name, kept.data_type().clone(), false));
            columns.push(Arc::new(kept));
        }
        let partials =
            self.batch(Schema::new_with_metadata(fields, metadata_of(&self.aggregation)), columns)?;
        self.clear();
        Ok(Some(partials))
    }

    /// Returns the keys and the measures of each group, in order of first appearance, or `None` if
    /// there are no groups.
    ///
    /// # Errors
    /// A sum does not fit into its column.
    pub fn result(&self) -> Result<Option<RecordBatch>, AggregateError> {
        let Some(types) = self.types_if_any() else { return Ok(None) };
        let (mut fields, mut columns) = self.keys(types)?;
        for ((name, _), measured) in self.aggregation.measures.iter().zip(&self.measured) {
            for column in self.columns_of(measured, true)? {
                fields.push(Field::new(name, column.data_type().clone(), true));
                columns.push(column);
            }
        }
        self.batch(Schema::new(fields), columns).map(Some)
    }

    /// Returns the types, if there are groups.
    fn types_if_any(&self) -> Option<&Types> {
        self.types.as_ref().filter(|_| !self.is_empty())
    }

    fn keys(&self, types: &Types) -> Result<(Vec<Field>, Vec<ArrayRef>), AggregateError> {
        let names = self.aggregation.key_names().zip(&types.keys);
        let fields =
            names.map(|(name, data_type)| Field::new(name, data_type.clone(), true)).collect();
        Ok((fields, self.groups.key_columns(&types.keys)?))
    }

    fn batch(&self, schema: Schema, columns: Vec<ArrayRef>) -> Result<RecordBatch, AggregateError> {
        let rows = RecordBatchOptions::new().with_row_count(Some(self.len()));
        Ok(RecordBatch::try_new_with_options(schema.into(), columns, &rows)?)
    }

    fn clear(&mut self) {
        self.groups = Groups::new(self.aggregation.key_names().count());
        self.states().for_each(|state| state.resize(0));
    }

    /// Returns the index of the first sum or mean over the column that a measure counts, if any.
    fn sum_that_counts(&self, measure: &Measure) -> Option<usize> {
        let Measure::Count { column: Some(column) } = measure else { return None };
        self.aggregation.measures.iter().position(|(_, other)| match other {
            Measure::Sum { column: of } | Measure::Mean { column: of } => of == column,
            _ => false,
        })
    }

    fn prepare(&mut self, batch: &RecordBatch) -> Result<Prepared, AggregateError> {
        let schema = batch.schema_ref();
        let indices = match &self.indices {
            Some((known, indices)) if Arc::ptr_eq(known, schema) => indices.clone(),
            _ => {
                let indices = self.resolve(schema)?;
                self.indices = Some((schema.clone(), indices.clone()));
                indices
            }
        };
        let is_own: Vec<bool> =
            self.measured.iter().map(|measured| matches!(measured, Measured::Own(_))).collect();
        let prepared = Prepared::of(batch, &self.aggregation, &indices, &is_own)?;
        if let PreparedMeasures::Partials(partials) = &prepared.measures {
            self.states().zip(partials).try_for_each(|(state, partials)| state.check(partials))?;
        }
        Ok(prepared)
    }

    /// Finds the columns in a schema and checks that their types have not changed.
    fn resolve(&mut self, schema: &Schema) -> Result<ColumnIndices, AggregateError> {
        let of_partials = are_partials(schema, &self.aggregation)?;
        let (indices, types) = if of_partials {
            in_partials(&self.aggregation, schema)?
        } else {
            in_rows(&self.aggregation, schema)?
        };
        match &self.types {
            None => {
                let described = self.aggregation.measures.iter().zip(&types.kept);
                let measured =
                    described.map(|((name, measure), kept)| match self.sum_that_counts(measure) {
                        Some(sum) => Measured::CountOf(sum),
                        None => Measured::Own(state_of(name, measure, kept)),
                    });
                self.measured = measured.collect();
                self.types = Some(types);
            }
            Some(known) => {
                let measures = self.aggregation.measures.iter().map(|(name, _)| name.as_str());
                let names = self.aggregation.key_names().chain(measures);
                for (name, (earlier, now)) in names.zip(known.all().zip(types.all())) {
                    if now != earlier {
                        return Err(type_error(name, &now, format!("{earlier}, as before")));
                    }
                }
            }
        }
        Ok(indices)
    }
}

// A batch ready to be applied: everything that can be wrong with its data has been checked.

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
    /// Checks a batch and reads its columns. `is_own` says which measures have their own state.
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

    /// Splits the batch into steps of [`STEP_ROWS`] rows and prefetches each.
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

    /// Returns a range of the rows.
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
        // Consecutive times mostly share a bucket; a division per row would cost more than
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

// The state that an aggregator keeps for each measure.

/// The state of a measure.
pub(super) enum Measured {
    /// Its own state.
    Own(Box<dyn State>),
    /// The count of values of the sum or mean with this index, which is over the same column.
    CountOf(usize),
}

impl Measured {
    pub(super) fn copied(&self) -> Option<Self> {
        match self {
            Self::Own(state) => state.copied().map(Self::Own),
            Self::CountOf(sum) => Some(Self::CountOf(*sum)),
        }
    }
}

/// Creates the state for a measure whose partials have these fields.
pub(super) fn state_of(name: &str, measure: &Measure, fields: &Fields) -> Box<dyn State> {
    let of = |place: usize| fields[place].data_type().clone();
    match measure {
        Measure::Count { .. } => Box::<Counts>::default(),
        Measure::Sum { .. } | Measure::Mean { .. } => {
            let is_mean = matches!(measure, Measure::Mean { .. });
            match of(0) {
                EXACT => Box::new(IntegerSums::new(name, is_mean)),
                DataType::Decimal256(_, scale) => Box::new(DecimalSums::new(name, is_mean, scale)),
                _ => Box::new(FloatSums::new(is_mean)),
            }
        }
        Measure::Min { .. } => Box::new(Extreme::new(of(0), false)),
        Measure::Max { .. } => Box::new(Extreme::new(of(0), true)),
        Measure::First { .. } => Box::new(FirstLast::new(of(0), of(1), false)),
        Measure::Last { .. } => Box::new(FirstLast::new(of(0), of(1), true)),
        Measure::Quantiles { quantiles, .. } => Box::new(Quantiles::new(quantiles)),
        Measure::QuantileBuckets { accuracy, .. } => Box::new(QuantileBuckets::new(*accuracy)),
        Measure::Distinct { lg_registers, gives_sketches, .. } => {
            Box::new(Distinct::new(*lg_registers, *gives_sketches))
        }
        Measure::TopN { n, .. } => Box::new(TopN::new(*n, fields)),
    }
}
