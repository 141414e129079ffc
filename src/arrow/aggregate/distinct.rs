//! Distinct counts by `HyperLogLog`, in the sketch of Apache `DataSketches`, which Spark SQL makes
//! as well: Flajolet, Fusy, Gandouet and Meunier, `HyperLogLog`: the analysis of a near-optimal
//! cardinality estimation algorithm, 2007.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BinaryArray, Int64Array, StructArray};
use arrow_schema::ArrowError;
use datasketches::hash::value::raw_bytes;
use datasketches::hll::{HllSketch, HllType, HllUnion};

use super::column::bytes_of;
use super::description::AggregateError;
use super::state::{Input, State};
use super::value::Value;

/// How many registers a sketch has at most, as a power of two.
pub const LG_REGISTERS: std::ops::RangeInclusive<u8> = 4..=21;

/// A sketch of the distinct values that it was given.
#[derive(Clone)]
pub struct DistinctSketch {
    lg_registers: u8,
    sketch: HllSketch,
}

impl DistinctSketch {
    /// An empty sketch.
    ///
    /// # Panics
    ///
    /// The number of registers is not in [`LG_REGISTERS`].
    #[must_use]
    pub fn new(lg_registers: u8) -> Self {
        let sketch = HllSketch::new(lg_registers, HllType::Hll8);
        Self { lg_registers, sketch: sketch.expect("the number of registers was checked") }
    }

    /// Adds an integer, as Java's sketch adds a long.
    pub fn add_integer(&mut self, value: i64) {
        self.sketch.update(value);
    }

    /// Adds bytes, or a text in UTF-8.
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
        // Without what the order of updates adds to the estimate, so that no order of merges does.
        let mut union = HllUnion::new(self.lg_registers).expect("the number was checked");
        union.update(&self.sketch);
        union.update(other);
        self.sketch = union.to_sketch(HllType::Hll8);
    }

    /// The estimated number of distinct values.
    #[must_use]
    pub fn estimate(&self) -> f64 {
        self.sketch.estimate()
    }

    /// The sketch as `DataSketches` of other languages read it.
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
    /// Whether the results are sketches, and not estimates.
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
    fn grow(&mut self, groups: usize) {
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
            // They are sketches: `check` has read them.
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

    fn clear(&mut self) {
        self.sketches.clear();
    }
}
