//! Counts, sums and means.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal128Type, Decimal256Type, DecimalType, Float32Type, Float64Type,
    Int64Type,
};
use arrow_array::{
    Array, ArrayRef, Decimal128Array, Decimal256Array, Float64Array, Int64Array, PrimitiveArray,
    StructArray, downcast_integer_array,
};
use arrow_buffer::i256;
use arrow_schema::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType};

use crate::arrow::aggregate::column::{Input, State};
use crate::arrow::aggregate::description::AggregateError;

/// The type of an exact sum of integers: wide enough for 2^63 of the largest values.
pub(super) const EXACT: DataType = DataType::Decimal128(38, 0);

/// The number of rows, or of rows with a value.
#[derive(Clone, Default)]
pub(super) struct Counts(Vec<i64>);

impl State for Counts {
    fn copied(&self) -> Option<Box<dyn State>> {
        Some(Box::new(self.clone()))
    }

    fn resize(&mut self, groups: usize) {
        self.0.resize(groups, 0);
    }

    fn update(&mut self, groups: &[u32], input: &Input) {
        match input
            .array
            .as_ref()
            .and_then(Array::logical_nulls)
            .filter(|nulls| nulls.null_count() > 0)
        {
            None => groups.iter().for_each(|&group| self.0[group as usize] += 1),
            Some(nulls) => nulls.valid_indices().for_each(|row| self.0[groups[row] as usize] += 1),
        }
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        for (&group, &count) in groups.iter().zip(counts_of(partials, 0)) {
            self.0[group as usize] += count;
        }
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        Ok(vec![self.result()?])
    }

    fn result(&self) -> Result<ArrayRef, AggregateError> {
        Ok(Arc::new(Int64Array::from(self.0.clone())))
    }
}

pub(super) fn counts_of(partials: &StructArray, place: usize) -> &[i64] {
    partials.column(place).as_primitive::<Int64Type>().values()
}

/// Calls `add` with the group and the value of each row that has a value.
pub(super) fn each<T: ArrowPrimitiveType>(
    groups: &[u32],
    values: &PrimitiveArray<T>,
    mut add: impl FnMut(usize, T::Native),
) {
    match values.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => groups
            .iter()
            .zip(values.values())
            .for_each(|(&group, &value)| add(group as usize, value)),
        Some(nulls) => {
            for row in nulls.valid_indices() {
                add(groups[row] as usize, values.value(row));
            }
        }
    }
}

/// A sum and the number of its values.
#[derive(Clone, Copy, Default)]
struct Counted<S> {
    sum: S,
    count: i64,
}

/// Defines the methods that the states of all sums share.
macro_rules! shared_by_sums {
    () => {
        fn copied(&self) -> Option<Box<dyn State>> {
            Some(Box::new(self.clone()))
        }

        fn resize(&mut self, groups: usize) {
            self.sums.resize(groups, Counted::default());
        }

        fn counts(&self) -> Option<ArrayRef> {
            Some(counts(&self.sums))
        }
    };
}

fn counts<S>(sums: &[Counted<S>]) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(sums.iter().map(|sum| sum.count)))
}

/// Exact sums of integers.
#[derive(Clone)]
pub(super) struct IntegerSums {
    name: String,
    is_mean: bool,
    sums: Vec<Counted<i128>>,
}

impl IntegerSums {
    pub(super) fn new(name: &str, is_mean: bool) -> Self {
        Self { name: name.to_owned(), is_mean, sums: Vec::new() }
    }
}

impl State for IntegerSums {
    shared_by_sums!();

    fn update(&mut self, groups: &[u32], input: &Input) {
        let Some(column) = &input.array else { return };
        downcast_integer_array! {
            column => each(groups, column, |group, value| {
                let sum = &mut self.sums[group];
                sum.sum += i128::from(value);
                sum.count += 1;
            }),
            other => unreachable!("{other} is not an integer type")
        }
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        let sums = partials.column(0).as_primitive::<Decimal128Type>();
        for ((&group, &sum), &count) in groups.iter().zip(sums.values()).zip(counts_of(partials, 1))
        {
            let kept = &mut self.sums[group as usize];
            kept.sum += sum;
            kept.count += count;
        }
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        let sums: Decimal128Array = self.sums.iter().map(|exact| Some(exact.sum)).collect();
        Ok(vec![Arc::new(sums.with_data_type(EXACT)), counts(&self.sums)])
    }

    fn result(&self) -> Result<ArrayRef, AggregateError> {
        if self.is_mean {
            #[allow(clippy::cast_precision_loss)] // each operand is rounded once
            let mean = |exact: &Counted<i128>| {
                (exact.count > 0).then(|| exact.sum as f64 / exact.count as f64)
            };
            return Ok(Arc::new(self.sums.iter().map(mean).collect::<Float64Array>()));
        }
        let sum = |exact: &Counted<i128>| match i64::try_from(exact.sum) {
            Ok(sum) => Ok((exact.count > 0).then_some(sum)),
            Err(_) => Err(AggregateError::Overflow {
                name: self.name.clone(),
                sum: exact.sum.to_string(),
                data_type: DataType::Int64,
            }),
        };
        Ok(Arc::new(self.sums.iter().map(sum).collect::<Result<Int64Array, _>>()?))
    }
}

#[derive(Clone, Copy, Default)]
struct Rounded {
    sum: f64,
    /// The part of the sum that rounding has lost.
    error: f64,
}

impl Rounded {
    /// Two-sum: Knuth, The Art of Computer Programming, volume 2, 4.2.2.
    #[inline]
    fn add(&mut self, value: f64) {
        let sum = self.sum + value;
        let part = sum - self.sum;
        self.error += (self.sum - (sum - part)) + (value - part);
        self.sum = sum;
    }

    /// Returns the compensated sum, rounded once. The error is NaN if the sum is NaN or infinite.
    fn total(&self) -> f64 {
        if self.sum.is_finite() && self.error.is_finite() {
            self.sum + self.error
        } else {
            self.sum
        }
    }
}

/// Compensated sums of floating-point numbers.
#[derive(Clone)]
pub(super) struct FloatSums {
    is_mean: bool,
    sums: Vec<Counted<Rounded>>,
}

impl FloatSums {
    pub(super) fn new(is_mean: bool) -> Self {
        Self { is_mean, sums: Vec::new() }
    }

    fn add<T: ArrowPrimitiveType<Native: Into<f64>>>(
        &mut self,
        groups: &[u32],
        values: &PrimitiveArray<T>,
    ) {
        each(groups, values, |group, value| {
            let kept = &mut self.sums[group];
            kept.sum.add(value.into());
            kept.count += 1;
        });
    }
}

impl State for FloatSums {
    shared_by_sums!();

    fn update(&mut self, groups: &[u32], input: &Input) {
        let Some(column) = &input.array else { return };
        match column.data_type() {
            DataType::Float32 => self.add(groups, column.as_primitive::<Float32Type>()),
            _ => self.add(groups, column.as_primitive::<Float64Type>()),
        }
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        let floats = |place: usize| partials.column(place).as_primitive::<Float64Type>().values();
        let parts = floats(0).iter().zip(floats(1)).zip(counts_of(partials, 2));
        for (&group, ((&sum, &error), &count)) in groups.iter().zip(parts) {
            let kept = &mut self.sums[group as usize];
            kept.sum.add(sum);
            kept.sum.error += error;
            kept.count += count;
        }
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        let floats = |part: fn(&Rounded) -> f64| -> ArrayRef {
            Arc::new(Float64Array::from_iter_values(self.sums.iter().map(|kept| part(&kept.sum))))
        };
        Ok(vec![floats(|sum| sum.sum), floats(|sum| sum.error), counts(&self.sums)])
    }

    fn result(&self) -> Result<ArrayRef, AggregateError> {
        #[allow(clippy::cast_precision_loss)] // rounded once
        let result = |kept: &Counted<Rounded>| {
            let divisor = if self.is_mean { kept.count as f64 } else { 1.0 };
            (kept.count > 0).then(|| kept.sum.total() / divisor)
        };
        Ok(Arc::new(self.sums.iter().map(result).collect::<Float64Array>()))
    }
}

// 128-bit decimals and their sums.

/// Returns the type of a sum of decimals, which has the most digits possible.
pub(super) fn sum_type(scale: i8) -> DataType {
    DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale)
}

/// Returns the type of such a sum in partials: wide enough for 2^63 of the largest values.
pub(super) fn kept_sum_type(scale: i8) -> DataType {
    DataType::Decimal256(DECIMAL256_MAX_PRECISION, scale)
}

/// Converts decimals to floats, rounded.
pub(super) fn to_floats(decimals: &Decimal128Array) -> impl Iterator<Item = Option<f64>> {
    let unit = 10_f64.powi(i32::from(decimals.scale()));
    #[allow(clippy::cast_precision_loss)] // rounded
    decimals.iter().map(move |value| value.map(|value| value as f64 / unit))
}

/// Exact sums of decimals of one scale.
#[derive(Clone)]
pub(super) struct DecimalSums {
    name: String,
    is_mean: bool,
    scale: i8,
    sums: Vec<Counted<i256>>,
}

impl DecimalSums {
    pub(super) fn new(name: &str, is_mean: bool, scale: i8) -> Self {
        Self { name: name.to_owned(), is_mean, scale, sums: Vec::new() }
    }

    fn text(&self, sum: i256) -> String {
        Decimal256Type::format_decimal(sum, DECIMAL256_MAX_PRECISION, self.scale)
    }

    /// Returns the mean, whose sum and count are each rounded once.
    fn mean(&self, exact: &Counted<i256>) -> Option<f64> {
        #[allow(clippy::cast_precision_loss)]
        let count = exact.count as f64;
        let sum = self.text(exact.sum).parse::<f64>().unwrap_or(f64::NAN);
        (exact.count > 0).then(|| sum / count)
    }

    fn sum(&self, exact: &Counted<i256>) -> Result<Option<i128>, AggregateError> {
        if exact.count == 0 {
            return Ok(None);
        }
        let fits = |sum: &i128| {
            Decimal128Type::validate_decimal_precision(*sum, DECIMAL128_MAX_PRECISION, self.scale)
                .is_ok()
        };
        exact.sum.to_i128().filter(fits).map(Some).ok_or_else(|| AggregateError::Overflow {
            name: self.name.clone(),
            sum: self.text(exact.sum),
            data_type: sum_type(self.scale),
        })
    }
}

impl State for DecimalSums {
    shared_by_sums!();

    fn update(&mut self, groups: &[u32], input: &Input) {
        let Some(column) = &input.array else { return };
        each(groups, column.as_primitive::<Decimal128Type>(), |group, value| {
            let sum = &mut self.sums[group];
            sum.sum = sum.sum.wrapping_add(i256::from_i128(value));
            sum.count += 1;
        });
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        let sums = partials.column(0).as_primitive::<Decimal256Type>();
        for ((&group, &sum), &count) in groups.iter().zip(sums.values()).zip(counts_of(partials, 1))
        {
            let kept = &mut self.sums[group as usize];
            kept.sum = kept.sum.wrapping_add(sum);
            kept.count += count;
        }
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        let sums: Decimal256Array = self.sums.iter().map(|exact| Some(exact.sum)).collect();
        Ok(vec![Arc::new(sums.with_data_type(kept_sum_type(self.scale))), counts(&self.sums)])
    }

    fn result(&self) -> Result<ArrayRef, AggregateError> {
        if self.is_mean {
            let means = self.sums.iter().map(|exact| self.mean(exact));
            return Ok(Arc::new(means.collect::<Float64Array>()));
        }
        let sums = self.sums.iter().map(|exact| self.sum(exact));
        let sums = sums.collect::<Result<Decimal128Array, _>>()?;
        Ok(Arc::new(sums.with_data_type(sum_type(self.scale))))
    }
}
