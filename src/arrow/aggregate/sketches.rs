//! Quantiles by `DDSketch`: Masson, Rim and Lee, `DDSketch`: a fast and fully-mergeable quantile
//! sketch with relative-error guarantees, PVLDB 12(12), 2019.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float32Type, Float64Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, Float64Array, Int64Array, ListArray, StructArray,
    downcast_integer_array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field, Fields};
use datasketches::hash::value::raw_bytes;
use datasketches::hll::{HllSketch, HllType, HllUnion};
use rustc_hash::FxHashMap;
use sketches_ddsketch::{Config, DDSketch};

use crate::arrow::aggregate::column::{Input, State, Value, bytes_of, check_size};
use crate::arrow::aggregate::description::AggregateError;
use crate::arrow::aggregate::sums::to_floats;

/// One sketch per group, with a relative error of 1 % and at most 2,048 buckets per sign.
pub(super) struct Quantiles {
    quantiles: Vec<f64>,
    sketches: Vec<DDSketch>,
}

impl Quantiles {
    pub(super) fn new(quantiles: &[f64]) -> Self {
        Self { quantiles: quantiles.to_vec(), sketches: Vec::new() }
    }
}

/// Calls `add` with the group and the value of each row that has a finite value.
pub(super) fn each_number(groups: &[u32], column: &ArrayRef, add: impl FnMut(usize, f64)) {
    downcast_integer_array! {
        column => each_finite(groups, column.iter().map(|value| value.map(rounded)), add),
        DataType::Decimal128(..) => {
            each_finite(groups, to_floats(column.as_primitive::<Decimal128Type>()), add);
        },
        DataType::Float32 => {
            let floats = column.as_primitive::<Float32Type>();
            each_finite(groups, floats.iter().map(|value| value.map(f64::from)), add);
        },
        _ => each_finite(groups, column.as_primitive::<Float64Type>().iter(), add)
    }
}

fn each_finite(
    groups: &[u32],
    values: impl Iterator<Item = Option<f64>>,
    mut add: impl FnMut(usize, f64),
) {
    for (&group, value) in groups.iter().zip(values) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            add(group as usize, value);
        }
    }
}

#[allow(clippy::cast_precision_loss)] // far below the sketch's own error
fn rounded(value: impl Into<i128>) -> f64 {
    value.into() as f64
}

fn sketches_of(partials: &StructArray) -> impl Iterator<Item = Result<DDSketch, AggregateError>> {
    partials.column(0).as_binary::<i32>().iter().map(|bytes| {
        DDSketch::from_java_bytes(bytes.unwrap_or_default()).map_err(|error| {
            ArrowError::InvalidArgumentError(format!("a sketch cannot be read: {error:?}")).into()
        })
    })
}

impl State for Quantiles {
    fn resize(&mut self, groups: usize) {
        self.sketches.resize_with(groups, DDSketch::default);
    }

    fn update(&mut self, groups: &[u32], input: &Input) {
        let Some(column) = &input.array else { return };
        each_number(groups, column, |group, value| self.sketches[group].add(value));
    }

    fn check(&self, partials: &StructArray) -> Result<(), AggregateError> {
        sketches_of(partials).try_for_each(|sketch| {
            DDSketch::default().merge(&sketch?).map_err(|error| {
                ArrowError::InvalidArgumentError(format!(
                    "a sketch has another precision: {error:?}"
                ))
                .into()
            })
        })
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        for (&group, sketch) in groups.iter().zip(sketches_of(partials).flatten()) {
            // The precision is the same: `check` has verified it.
            let _ = self.sketches[group as usize].merge(&sketch);
        }
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        Ok(vec![Arc::new(bytes_of(
            self.sketches.iter().map(|sketch| Some(sketch.to_java_bytes())),
        )?)])
    }

    fn result(&self) -> Result<ArrayRef, AggregateError> {
        let has_values = self.sketches.iter().map(|sketch| sketch.count() > 0);
        let values = self.sketches.iter().flat_map(|sketch| {
            // The estimate for an outermost bucket may lie outside the range of the values.
            let (least, most) =
                (sketch.min().unwrap_or(f64::MIN), sketch.max().unwrap_or(f64::MAX));
            self.quantiles.iter().map(move |&quantile| {
                sketch
                    .quantile(quantile)
                    .ok()
                    .flatten()
                    .map_or(0.0, |value| value.clamp(least, most))
            })
        });
        check_size(self.quantiles.len() * self.sketches.len())?;
        let values: ArrayRef = Arc::new(Float64Array::from_iter_values(values));
        let offsets = OffsetBuffer::from_repeated_length(self.quantiles.len(), self.sketches.len());
        let field = Field::new_list_field(DataType::Float64, true).into();
        let nulls: NullBuffer = has_values.collect();
        Ok(Arc::new(ListArray::try_new(field, offsets, values, Some(nulls))?))
    }
}

// The number of values in each bucket of a `DDSketch`: the form in which stores keep a
// distribution, since the counts of any two can be added. See
// [`quantiles`](crate::arrow::aggregate::sketches) for the source.

/// Returns the fields of a bucket: its number, and its count of values.
///
/// A static would be filled on the first use, detached from the interpreter: a child forked
/// meanwhile would wait for that forever.
pub(super) fn bucket_fields() -> Fields {
    [Field::new("bucket", DataType::Int64, false), Field::new("count", DataType::Int64, false)]
        .into_iter()
        .collect()
}

/// Values closer to 0 than this are in bucket 0.
const LEAST: f64 = 1e-9;

/// The buckets of each group.
pub(super) struct QuantileBuckets {
    mapping: Config,
    groups: Vec<FxHashMap<i64, i64>>,
}

impl QuantileBuckets {
    pub(super) fn new(accuracy: f64) -> Self {
        Self { mapping: Config::new(accuracy, 0, LEAST), groups: Vec::new() }
    }
}

/// Returns the bucket of a value. Buckets are numbered in the order of their values: from 1 up for
/// positive values, 0, from -1 down for negative ones.
fn bucket_of(mapping: &Config, value: f64) -> i64 {
    let distance = value.abs();
    if distance < LEAST {
        return 0;
    }
    let number = i64::from(mapping.key(distance)) + i64::from(mapping.offset);
    if value < 0.0 { -number } else { number }
}

impl State for QuantileBuckets {
    fn resize(&mut self, groups: usize) {
        self.groups.resize_with(groups, FxHashMap::default);
    }

    fn update(&mut self, groups: &[u32], input: &Input) {
        let Some(column) = &input.array else { return };
        let Self { mapping, groups: kept } = self;
        each_number(groups, column, |group, value| {
            *kept[group].entry(bucket_of(mapping, value)).or_default() += 1;
        });
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        let lists = partials.column(0).as_list::<i32>();
        for (&group, buckets) in groups.iter().zip(lists.iter()) {
            let Some(buckets) = buckets else { continue };
            let column =
                |place: usize| buckets.as_struct().column(place).as_primitive::<Int64Type>();
            for (&bucket, &count) in column(0).values().iter().zip(column(1).values()) {
                *self.groups[group as usize].entry(bucket).or_default() += count;
            }
        }
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        Ok(vec![self.result()?])
    }

    fn result(&self) -> Result<ArrayRef, AggregateError> {
        let total: usize = self.groups.iter().map(FxHashMap::len).sum();
        check_size(total)?;
        let (mut buckets, mut counts) = (Vec::with_capacity(total), Vec::with_capacity(total));
        for group in &self.groups {
            let mut sorted: Vec<_> =
                group.iter().map(|(&bucket, &count)| (bucket, count)).collect();
            sorted.sort_unstable();
            for (bucket, count) in sorted {
                buckets.push(bucket);
                counts.push(count);
            }
        }
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(buckets)), Arc::new(Int64Array::from(counts))];
        let fields = bucket_fields();
        let values: ArrayRef = Arc::new(StructArray::try_new(fields.clone(), columns, None)?);
        let offsets = OffsetBuffer::from_lengths(self.groups.iter().map(FxHashMap::len));
        let field = Field::new_list_field(DataType::Struct(fields), true).into();
        Ok(Arc::new(ListArray::try_new(field, offsets, values, None)?))
    }
}

// Distinct counts by `HyperLogLog`, in the sketch of Apache `DataSketches`, which Spark SQL writes
// as well: Flajolet, Fusy, Gandouet and Meunier, `HyperLogLog`: the analysis of a near-optimal
// cardinality estimation algorithm, 2007.

/// The binary logarithm of the most registers of a sketch.
pub const LG_REGISTERS: std::ops::RangeInclusive<u8> = 4..=21;

/// A sketch of distinct values.
#[derive(Clone)]
pub struct DistinctSketch {
    lg_registers: u8,
    sketch: HllSketch,
}

impl DistinctSketch {
    /// Creates an empty sketch.
    ///
    /// # Panics
    ///
    /// The number of registers is not in [`LG_REGISTERS`].
    #[must_use]
    pub fn new(lg_registers: u8) -> Self {
        let sketch = HllSketch::new(lg_registers, HllType::Hll8);
        Self { lg_registers, sketch: sketch.expect("the number of registers was checked") }
    }

    /// Adds an integer the way Java's sketch adds a `long`.
    pub fn add_integer(&mut self, value: i64) {
        self.sketch.update(value);
    }

    /// Adds bytes, or a string in UTF-8.
    pub fn add_bytes(&mut self, value: &[u8]) {
        self.sketch.update(raw_bytes::from_slice(value));
    }

    /// Adds the values of another sketch.
    ///
    /// # Errors
    ///
    /// The bytes are not those of a sketch.
    pub fn merge(&mut self, other: &[u8]) -> Result<(), ArrowError> {
        self.union(&read(other)?);
        Ok(())
    }

    fn union(&mut self, other: &HllSketch) {
        if other.is_empty() {
            return;
        }
        // A union drops the part of the estimate that depends on the order of updates, so that the
        // order of merges does not matter either.
        let mut union = HllUnion::new(self.lg_registers).expect("the number was checked");
        union.update(&self.sketch);
        union.update(other);
        self.sketch = union.to_sketch(HllType::Hll8);
    }

    /// Returns the estimated number of distinct values.
    #[must_use]
    pub fn estimate(&self) -> f64 {
        self.sketch.estimate()
    }

    /// Returns the sketch in the format of `DataSketches`, which other languages read.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.sketch.serialize()
    }
}

fn read(bytes: &[u8]) -> Result<HllSketch, ArrowError> {
    HllSketch::deserialize(bytes).map_err(|error| {
        ArrowError::InvalidArgumentError(format!("a sketch of distinct values is damaged: {error}"))
    })
}

/// A sketch for each group.
pub(super) struct Distinct {
    lg_registers: u8,
    /// Whether the results are sketches instead of estimates.
    gives_sketches: bool,
    sketches: Vec<DistinctSketch>,
}

impl Distinct {
    pub(super) fn new(lg_registers: u8, gives_sketches: bool) -> Self {
        Self { lg_registers, gives_sketches, sketches: Vec::new() }
    }

    fn to_bytes(&self) -> Result<BinaryArray, AggregateError> {
        bytes_of(self.sketches.iter().map(|sketch| Some(sketch.to_bytes())))
    }
}

impl State for Distinct {
    fn resize(&mut self, groups: usize) {
        let lg_registers = self.lg_registers;
        self.sketches.resize_with(groups, || DistinctSketch::new(lg_registers));
    }

    fn update(&mut self, groups: &[u32], input: &Input) {
        let Some(values) = &input.value else { return };
        for (row, &group) in groups.iter().enumerate() {
            let sketch = &mut self.sketches[group as usize];
            match values.get(row) {
                Some(Value::Code(code)) => sketch.add_integer(code),
                Some(Value::Bytes(bytes)) => sketch.add_bytes(bytes),
                None => {}
            }
        }
    }

    fn check(&self, partials: &StructArray) -> Result<(), AggregateError> {
        let sketches = partials.column(0).as_binary::<i32>();
        sketches.iter().flatten().try_for_each(|bytes| read(bytes).map(|_| ()))?;
        Ok(())
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        for (&group, bytes) in groups.iter().zip(partials.column(0).as_binary::<i32>()) {
            // All of them are sketches: `check` has read them.
            if let Some(Ok(other)) = bytes.map(read) {
                self.sketches[group as usize].union(&other);
            }
        }
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        Ok(vec![Arc::new(self.to_bytes()?)])
    }

    fn result(&self) -> Result<ArrayRef, AggregateError> {
        if self.gives_sketches {
            return Ok(Arc::new(self.to_bytes()?));
        }
        #[allow(clippy::cast_possible_truncation)] // far below 2^53
        let counts = self.sketches.iter().map(|sketch| sketch.estimate().round() as i64);
        Ok(Arc::new(Int64Array::from_iter_values(counts)))
    }
}
