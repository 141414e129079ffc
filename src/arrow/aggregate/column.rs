//! Columns as aggregation reads them, either order-preserving 64-bit codes or bytes, and the trait
//! for the state of a measure.

use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal128Type, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, Float32Type, Float64Type,
    Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Decimal128Array,
    GenericBinaryArray, LargeBinaryArray, OffsetSizeTrait, PrimitiveArray, StringArray,
    StructArray, downcast_dictionary_array,
};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, TimeUnit};
use arrow_select::take::{TakeOptions, take};

use crate::arrow::aggregate::description::AggregateError;

/// Returns the type of a column's values in results, or `None` if the column's type is unsupported.
///
/// All string layouts map to one type, and a dictionary to the type of its values. Decimals are
/// kept as bytes.
pub(super) fn value_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Dictionary(_, values) => value_type(values),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(DataType::Utf8),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Some(DataType::Binary),
        DataType::Float16
        | DataType::Interval(_)
        | DataType::Decimal32(..)
        | DataType::Decimal64(..) => None,
        DataType::Boolean | DataType::Decimal128(..) => Some(data_type.clone()),
        // Everything that fits into 64 bits.
        other => (other.primitive_width()? <= 8).then(|| other.clone()),
    }
}

/// Calls a function with the primitive type of a data type that [`value_type`] supports.
macro_rules! with_type {
    ($data_type:expr, $function:ident($($arg:expr),*)) => {
        match $data_type {
            DataType::Int8 => $function::<Int8Type>($($arg),*),
            DataType::Int16 => $function::<Int16Type>($($arg),*),
            DataType::Int32 => $function::<Int32Type>($($arg),*),
            DataType::Int64 => $function::<Int64Type>($($arg),*),
            DataType::UInt8 => $function::<UInt8Type>($($arg),*),
            DataType::UInt16 => $function::<UInt16Type>($($arg),*),
            DataType::UInt32 => $function::<UInt32Type>($($arg),*),
            DataType::UInt64 => $function::<UInt64Type>($($arg),*),
            DataType::Float32 => $function::<Float32Type>($($arg),*),
            DataType::Float64 => $function::<Float64Type>($($arg),*),
            DataType::Date32 => $function::<Date32Type>($($arg),*),
            DataType::Date64 => $function::<Date64Type>($($arg),*),
            DataType::Time32(TimeUnit::Second) => $function::<Time32SecondType>($($arg),*),
            DataType::Time32(_) => $function::<Time32MillisecondType>($($arg),*),
            DataType::Time64(TimeUnit::Nanosecond) => $function::<Time64NanosecondType>($($arg),*),
            DataType::Time64(_) => $function::<Time64MicrosecondType>($($arg),*),
            DataType::Timestamp(unit, _) => match unit {
                TimeUnit::Second => $function::<TimestampSecondType>($($arg),*),
                TimeUnit::Millisecond => $function::<TimestampMillisecondType>($($arg),*),
                TimeUnit::Microsecond => $function::<TimestampMicrosecondType>($($arg),*),
                TimeUnit::Nanosecond => $function::<TimestampNanosecondType>($($arg),*),
            },
            DataType::Duration(unit) => match unit {
                TimeUnit::Second => $function::<DurationSecondType>($($arg),*),
                TimeUnit::Millisecond => $function::<DurationMillisecondType>($($arg),*),
                TimeUnit::Microsecond => $function::<DurationMicrosecondType>($($arg),*),
                TimeUnit::Nanosecond => $function::<DurationNanosecondType>($($arg),*),
            },
            other => unreachable!("{other} is not kept in 64 bits"),
        }
    };
}

fn codes_of<T: ArrowPrimitiveType<Native: Code>>(column: &ArrayRef) -> ScalarBuffer<i64> {
    let values = column.as_primitive::<T>().values();
    if T::DATA_TYPE.primitive_width() == Some(8)
        && !T::DATA_TYPE.is_floating()
        && T::DATA_TYPE != DataType::UInt64
    {
        return ScalarBuffer::new(values.inner().clone(), 0, values.len());
    }
    values.iter().map(|value| value.to_code()).collect()
}

fn array_of<T: ArrowPrimitiveType<Native: Code>>(
    codes: &[i64],
    nulls: Option<NullBuffer>,
    data_type: &DataType,
) -> ArrayRef {
    let values = codes.iter().map(|&code| T::Native::from_code(code)).collect();
    Arc::new(PrimitiveArray::<T>::new(values, nulls).with_data_type(data_type.clone()))
}

/// A column's values.
#[derive(Clone)]
pub(super) enum Values {
    Codes(ScalarBuffer<i64>),
    Bytes(BinaryArray),
    LargeBytes(LargeBinaryArray),
    BytesView(BinaryViewArray),
}

impl Values {
    /// Reads the values of a column that is not a dictionary and that [`value_type`] supports.
    fn of(column: &ArrayRef) -> Self {
        match column.data_type() {
            DataType::Utf8 => Self::Bytes(column.as_string::<i32>().clone().into()),
            DataType::LargeUtf8 => Self::LargeBytes(column.as_string::<i64>().clone().into()),
            DataType::Utf8View => Self::BytesView(column.as_string_view().clone().to_binary_view()),
            DataType::Binary => Self::Bytes(column.as_binary().clone()),
            DataType::LargeBinary => Self::LargeBytes(column.as_binary().clone()),
            DataType::BinaryView => Self::BytesView(column.as_binary_view().clone()),
            DataType::Decimal128(..) => {
                Self::Bytes(to_ordered(column.as_primitive::<Decimal128Type>()))
            }
            DataType::Boolean => {
                Self::Codes(column.as_boolean().values().iter().map(i64::from).collect())
            }
            other => Self::Codes(with_type!(other, codes_of(column))),
        }
    }

    /// Whether the values are valid UTF-8. They may come from another library and were not
    /// validated before.
    fn are_texts(&self, len: usize, nulls: Option<&NullBuffer>) -> bool {
        let all = match self {
            Self::Codes(_) => return true,
            Self::Bytes(bytes) => used(bytes),
            Self::LargeBytes(bytes) => used(bytes),
            // The bytes are scattered: check each value instead.
            Self::BytesView(_) => &[0x80],
        };
        let is_text = |row| match self.get(row) {
            Value::Bytes(bytes) => bytes.is_ascii() || std::str::from_utf8(bytes).is_ok(),
            Value::Code(_) => true,
        };
        all.is_ascii()
            || (0..len).all(|row| nulls.is_some_and(|nulls| nulls.is_null(row)) || is_text(row))
    }

    fn slice(&self, start: usize, rows: usize) -> Self {
        match self {
            Self::Codes(codes) => Self::Codes(codes.slice(start, rows)),
            Self::Bytes(bytes) => Self::Bytes(bytes.slice(start, rows)),
            Self::LargeBytes(bytes) => Self::LargeBytes(bytes.slice(start, rows)),
            Self::BytesView(bytes) => Self::BytesView(bytes.slice(start, rows)),
        }
    }

    #[inline]
    pub(super) fn get(&self, row: usize) -> Value<'_> {
        match self {
            Self::Codes(codes) => Value::Code(codes[row]),
            Self::Bytes(bytes) => Value::Bytes(bytes.value(row)),
            Self::LargeBytes(bytes) => Value::Bytes(bytes.value(row)),
            Self::BytesView(bytes) => Value::Bytes(bytes.value(row)),
        }
    }
}

/// Returns the bytes that the values reference. The buffer of a slice holds those of the whole
/// column, and the buffer of an empty column may hold none.
fn used<O: OffsetSizeTrait>(bytes: &GenericBinaryArray<O>) -> &[u8] {
    let offsets = bytes.value_offsets();
    let (first, last) = (
        offsets.first().map_or(0, |offset| offset.as_usize()),
        offsets.last().map_or(0, |offset| offset.as_usize()),
    );
    bytes.value_data().get(first..last).unwrap_or_default()
}

/// A column: its values and which of its rows are null.
pub(super) struct Column {
    pub(super) values: Values,
    pub(super) nulls: Option<NullBuffer>,
    /// For a dictionary, the index of each row's value in `values`.
    pub(super) indices: Option<ScalarBuffer<u32>>,
}

impl Column {
    /// Reads a column that [`value_type`] supports.
    pub(super) fn of(column: &ArrayRef) -> Result<Self, AggregateError> {
        if let DataType::Dictionary(_, values) = column.data_type() {
            return downcast_dictionary_array! {
                column => {
                    let (keys, count) = (column.keys(), column.values().len());
                    let nested = matches!(**values, DataType::Dictionary(..))
                        || column.values().null_count() > 0;
                    if nested || count > column.len() {
                        let options = TakeOptions { check_bounds: true };
                        return Self::of(&take(column.values(), keys, Some(options))?);
                    }
                    let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
                    let indices = keys.values().iter().enumerate().map(|(row, &key)| {
                        let index = key.as_usize();
                        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                            Ok(0)
                        } else if index < count {
                            Ok(u32::try_from(index).unwrap_or(u32::MAX))
                        } else {
                            Err(ArrowError::InvalidArgumentError(format!(
                                "index {key:?} is outside a dictionary of {count} values"
                            )))
                        }
                    });
                    let indices = indices.collect::<Result<_, _>>()?;
                    let values = Values::of(column.values());
                    Self { values, nulls, indices: Some(indices) }.checked(column.values())
                },
                other => unreachable!("{other} is a dictionary")
            };
        }
        Self::of_plain(column).checked(column)
    }

    /// Rejects strings that are not valid UTF-8.
    fn checked(self, values: &ArrayRef) -> Result<Self, AggregateError> {
        let is_text = value_type(values.data_type()) == Some(DataType::Utf8);
        let nulls = self.nulls.as_ref().filter(|_| self.indices.is_none());
        if is_text && !self.values.are_texts(values.len(), nulls) {
            return Err(ArrowError::InvalidArgumentError(
                "a column of strings has a value that is not UTF-8".to_owned(),
            )
            .into());
        }
        Ok(self)
    }

    /// Reads a column that is not a dictionary and that [`value_type`] supports.
    pub(super) fn of_plain(column: &ArrayRef) -> Self {
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        Self { values: Values::of(column), nulls, indices: None }
    }

    /// Returns a range of the rows.
    pub(super) fn slice(&self, start: usize, rows: usize) -> Self {
        let nulls = self.nulls.as_ref().map(|nulls| nulls.slice(start, rows));
        let indices = self.indices.as_ref().map(|indices| indices.slice(start, rows));
        let values =
            if indices.is_some() { self.values.clone() } else { self.values.slice(start, rows) };
        Self { values, nulls, indices }
    }

    /// Returns the value of a row, or `None` for null.
    #[inline]
    pub(super) fn get(&self, row: usize) -> Option<Value<'_>> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        let row = self.indices.as_ref().map_or(row, |indices| indices[row] as usize);
        Some(self.values.get(row))
    }
}

/// Builds a column of a type that [`value_type`] returned.
pub(super) fn to_array<'a>(
    values: impl ExactSizeIterator<Item = Option<Value<'a>>>,
    data_type: &DataType,
) -> Result<ArrayRef, AggregateError> {
    if matches!(data_type, DataType::Utf8 | DataType::Binary | DataType::Decimal128(..)) {
        let values = values.map(|value| match value {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        });
        let bytes = bytes_of(values)?;
        return Ok(match data_type {
            DataType::Utf8 => Arc::new(StringArray::try_from_binary(bytes)?),
            DataType::Decimal128(..) => from_ordered(&bytes, data_type),
            _ => Arc::new(bytes),
        });
    }
    let mut codes = Vec::with_capacity(values.len());
    let valid: BooleanBuffer = values
        .map(|value| {
            let code = match value {
                Some(Value::Code(code)) => Some(code),
                _ => None,
            };
            codes.push(code.unwrap_or_default());
            code.is_some()
        })
        .collect();
    let nulls = Some(NullBuffer::new(valid)).filter(|nulls| nulls.null_count() > 0);
    Ok(match data_type {
        DataType::Boolean => {
            Arc::new(BooleanArray::new(codes.iter().map(|&code| code != 0).collect(), nulls))
        }
        // The code of a null row is 0, which need not be a code of this type.
        other => with_type!(other, array_of(&codes, nulls, other)),
    })
}

/// Fails if a column cannot hold this many bytes, or this many values in lists.
pub(super) fn check_size(size: usize) -> Result<(), AggregateError> {
    i32::try_from(size).map(drop).map_err(|_| AggregateError::TooLarge)
}

/// Builds a column of bytes. Fails above 2 GiB in total, the most that a column can hold.
pub(super) fn bytes_of(
    values: impl ExactSizeIterator<Item = Option<impl AsRef<[u8]>>>,
) -> Result<BinaryArray, AggregateError> {
    let (mut bytes, mut total) = (BinaryBuilder::with_capacity(values.len(), 0), 0_usize);
    for value in values {
        total += value.as_ref().map_or(0, |value| value.as_ref().len());
        check_size(total)?;
        bytes.append_option(value);
    }
    Ok(bytes.finish())
}

// The input of a measure, and the trait for its state.

/// The columns that a measure reads, for a range of rows.
pub(super) struct Input {
    /// The values of a count, sum, mean or quantile.
    pub(super) array: Option<ArrayRef>,
    /// The values of every other measure.
    pub(super) value: Option<Column>,
    /// The order, or the label.
    pub(super) second: Option<Column>,
}

impl Input {
    /// Returns a range of the rows.
    pub(super) fn slice(&self, start: usize, rows: usize) -> Self {
        let column =
            |column: &Option<Column>| column.as_ref().map(|column| column.slice(start, rows));
        Self {
            array: self.array.as_ref().map(|array| array.slice(start, rows)),
            value: column(&self.value),
            second: column(&self.second),
        }
    }
}

/// The state of one measure for all groups. Group numbers are below the last argument of
/// [`resize`](Self::resize).
pub(super) trait State: Send {
    /// Makes room for this many groups; 0 clears the state.
    fn resize(&mut self, groups: usize);

    /// Adds rows; `groups` holds the group of each.
    fn update(&mut self, groups: &[u32], input: &Input);

    /// Checks partials for anything that [`merge`](Self::merge) could not handle.
    fn check(&self, _partials: &StructArray) -> Result<(), AggregateError> {
        Ok(())
    }

    /// Merges partials that [`check`](Self::check) has accepted.
    fn merge(&mut self, groups: &[u32], partials: &StructArray);

    /// Returns a copy to roll back to if the state is plain numbers: copying those costs less per
    /// group than looking up a few rows.
    fn copied(&self) -> Option<Box<dyn State>> {
        None
    }

    /// Returns the state as columns, with the fields of
    /// [`kept_fields`](crate::arrow::aggregate::partials::kept_fields).
    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError>;

    /// Returns the result of each group.
    fn result(&self) -> Result<ArrayRef, AggregateError>;

    /// Returns the number of values in each group, if the state counts them anyway.
    fn counts(&self) -> Option<ArrayRef> {
        None
    }
}

// A single value: an order-preserving 64-bit code, or bytes.

/// A borrowed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value<'a> {
    Code(i64),
    Bytes(&'a [u8]),
}

/// An owned value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OwnedValue {
    Code(i64),
    Bytes(Box<[u8]>),
}

impl OwnedValue {
    pub(super) fn as_value(&self) -> Value<'_> {
        match self {
            Self::Code(code) => Value::Code(*code),
            Self::Bytes(bytes) => Value::Bytes(bytes),
        }
    }
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Code(code) => Self::Code(code),
            Value::Bytes(bytes) => Self::Bytes(bytes.into()),
        }
    }
}

/// Encodes a value in 64 bits. Codes, compared as signed integers, have the order of the values.
pub(super) trait Code: Copy {
    fn to_code(self) -> i64;
    fn from_code(code: i64) -> Self;
}

macro_rules! integer_code {
    ($($native:ty),*) => {$(
        impl Code for $native {
            #[inline]
            fn to_code(self) -> i64 {
                i64::from(self)
            }
            // The code was made from `Self`.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            fn from_code(code: i64) -> Self {
                code as Self
            }
        }
    )*};
}

integer_code!(i8, i16, i32, i64, u8, u16, u32);

impl Code for u64 {
    fn to_code(self) -> i64 {
        (self ^ (1 << 63)).cast_signed()
    }
    fn from_code(code: i64) -> Self {
        code.cast_unsigned() ^ (1 << 63)
    }
}

impl Code for f64 {
    /// All NaNs share one code, above that of every number. -0.0 equals 0.0.
    #[inline]
    fn to_code(self) -> i64 {
        let canonical = if self.is_nan() { f64::NAN } else { self + 0.0 };
        flip(canonical.to_bits().cast_signed())
    }
    fn from_code(code: i64) -> Self {
        Self::from_bits(flip(code).cast_unsigned())
    }
}

impl Code for f32 {
    fn to_code(self) -> i64 {
        f64::from(self).to_code()
    }
    #[allow(clippy::cast_possible_truncation)] // the code was made from an `f32`
    fn from_code(code: i64) -> Self {
        f64::from_code(code) as Self
    }
}

/// Reverses the order of negative numbers, whose bits count backwards. Its own inverse.
fn flip(bits: i64) -> i64 {
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

const SIGN: i128 = i128::MIN;

/// Converts decimals of one scale to bytes that compare as the decimals do.
fn to_ordered(decimals: &Decimal128Array) -> BinaryArray {
    let ordered = |value: i128| (value ^ SIGN).to_be_bytes();
    decimals.iter().map(|value| value.map(ordered)).collect()
}

/// Converts the result of [`to_ordered`] back to decimals of a type.
fn from_ordered(ordered: &BinaryArray, data_type: &DataType) -> ArrayRef {
    let value =
        |bytes: &[u8]| bytes.try_into().map_or(0, |bytes| i128::from_be_bytes(bytes) ^ SIGN);
    let values: Decimal128Array = ordered.iter().map(|bytes| bytes.map(value)).collect();
    Arc::new(values.with_data_type(data_type.clone()))
}
