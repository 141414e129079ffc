//! Quantiles by `DDSketch`: Masson, Rim and Lee, `DDSketch`: a fast and fully-mergeable quantile
//! sketch with relative-error guarantees, PVLDB 12(12), 2019.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, Float64Array, ListArray, StructArray, downcast_integer_array};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field};
use sketches_ddsketch::DDSketch;

use super::column::bytes_of;
use super::decimals::to_floats;
use super::description::AggregateError;
use super::state::{Input, State};

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
    fn grow(&mut self, groups: usize) {
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
        if i32::try_from(self.quantiles.len() * self.sketches.len()).is_err() {
            return Err(AggregateError::TooLarge);
        }
        let values: ArrayRef = Arc::new(Float64Array::from_iter_values(values));
        let offsets = OffsetBuffer::from_repeated_length(self.quantiles.len(), self.sketches.len());
        let field = Field::new_list_field(DataType::Float64, true).into();
        let nulls: NullBuffer = has_values.collect();
        Ok(Arc::new(ListArray::try_new(field, offsets, values, Some(nulls))?))
    }

    fn clear(&mut self) {
        self.sketches.clear();
    }
}
