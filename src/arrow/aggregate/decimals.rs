//! Decimals of 128 bits: as bytes in their order, and their sums.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Decimal256Type, DecimalType};
use arrow_array::{
    ArrayRef, BinaryArray, Decimal128Array, Decimal256Array, Float64Array, Int64Array, StructArray,
};
use arrow_buffer::i256;
use arrow_schema::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType};

use super::description::AggregateError;
use super::state::{Input, State};
use super::sums::{counts_of, each};

/// The type of a sum of decimals: with as many digits as there can be.
pub(super) fn sum_type(scale: i8) -> DataType {
    DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale)
}

/// The type of such a sum in partials: wide enough for 2^63 of the largest.
pub(super) fn kept_sum_type(scale: i8) -> DataType {
    DataType::Decimal256(DECIMAL256_MAX_PRECISION, scale)
}

const SIGN: i128 = i128::MIN;

/// Decimals of one scale as bytes, which compare as the decimals do.
pub(super) fn to_ordered(decimals: &Decimal128Array) -> BinaryArray {
    let ordered = |value: i128| (value ^ SIGN).to_be_bytes();
    decimals.iter().map(|value| value.map(ordered)).collect()
}

/// Decimals of a type from what [`to_ordered`] returned.
pub(super) fn from_ordered(ordered: &BinaryArray, data_type: &DataType) -> ArrayRef {
    let value =
        |bytes: &[u8]| bytes.try_into().map_or(0, |bytes| i128::from_be_bytes(bytes) ^ SIGN);
    let values: Decimal128Array = ordered.iter().map(|bytes| bytes.map(value)).collect();
    Arc::new(values.with_data_type(data_type.clone()))
}

/// The values of decimals, rounded.
pub(super) fn to_floats(decimals: &Decimal128Array) -> impl Iterator<Item = Option<f64>> {
    let unit = 10_f64.powi(i32::from(decimals.scale()));
    #[allow(clippy::cast_precision_loss)] // rounded
    decimals.iter().map(move |value| value.map(|value| value as f64 / unit))
}

#[derive(Clone, Copy, Default)]
struct ExactDecimal {
    sum: i256,
    count: i64,
}

/// Exact sums of decimals of one scale.
#[derive(Clone)]
pub(super) struct DecimalSums {
    name: String,
    is_mean: bool,
    scale: i8,
    sums: Vec<ExactDecimal>,
}

impl DecimalSums {
    pub(super) fn new(name: &str, is_mean: bool, scale: i8) -> Self {
        Self { name: name.to_owned(), is_mean, scale, sums: Vec::new() }
    }

    fn text(&self, sum: i256) -> String {
        Decimal256Type::format_decimal(sum, DECIMAL256_MAX_PRECISION, self.scale)
    }

    /// The mean; its sum and count are each rounded once.
    fn mean(&self, exact: &ExactDecimal) -> Option<f64> {
        #[allow(clippy::cast_precision_loss)]
        let count = exact.count as f64;
        let sum = self.text(exact.sum).parse::<f64>().unwrap_or(f64::NAN);
        (exact.count > 0).then(|| sum / count)
    }

    fn sum(&self, exact: &ExactDecimal) -> Result<Option<i128>, AggregateError> {
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
    fn copied(&self) -> Option<Box<dyn State>> {
        Some(Box::new(self.clone()))
    }

    fn grow(&mut self, groups: usize) {
        self.sums.resize(groups, ExactDecimal::default());
    }

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
        Ok([Arc::new(sums.with_data_type(kept_sum_type(self.scale))) as ArrayRef]
            .into_iter()
            .chain(self.counts())
            .collect())
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

    fn counts(&self) -> Option<ArrayRef> {
        Some(Arc::new(Int64Array::from_iter_values(self.sums.iter().map(|sum| sum.count))))
    }

    fn clear(&mut self) {
        self.sums.clear();
    }
}
