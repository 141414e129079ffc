//! Columns as aggregation sees them: 64-bit codes with the order of the values, or bytes.

use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, GenericBinaryArray,
    LargeBinaryArray, OffsetSizeTrait, PrimitiveArray, StringArray, downcast_dictionary_array,
};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, IntervalUnit, TimeUnit};
use arrow_select::take::{TakeOptions, take};

use super::description::AggregateError;

/// The type that a column's values have in results; `None`: there is no order that is kept here.
///
/// Texts are one type however they are stored, and a dictionary has the type of its values.
pub(super) fn value_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Dictionary(_, values) => value_type(values),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(DataType::Utf8),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Some(DataType::Binary),
        DataType::Float16 | DataType::Interval(IntervalUnit::YearMonth) => None,
        DataType::Boolean => Some(DataType::Boolean),
        // All that fits into 64 bits.
        other => other.primitive_width().filter(|&width| width <= 8).map(|_| other.clone()).filter(
            |one| {
                !matches!(
                    one,
                    DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Interval(_)
                )
            },
        ),
    }
}

/// A value in 64 bits whose order as signed integers is that of the values.
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
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // it came from one
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
    /// All NaN are one, larger than any number, and -0.0 is 0.0.
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
    #[allow(clippy::cast_possible_truncation)] // it came from one
    fn from_code(code: i64) -> Self {
        f64::from_code(code) as Self
    }
}

/// The bits of negative numbers count backwards. Twice is nothing.
fn flip(bits: i64) -> i64 {
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

/// Calls a function for the primitive type of a data type that [`value_type`] knows.
macro_rules! with_type {
    ($data_type:expr, $function:ident($($argument:expr),*)) => {
        match $data_type {
            DataType::Int8 => $function::<Int8Type>($($argument),*),
            DataType::Int16 => $function::<Int16Type>($($argument),*),
            DataType::Int32 => $function::<Int32Type>($($argument),*),
            DataType::Int64 => $function::<Int64Type>($($argument),*),
            DataType::UInt8 => $function::<UInt8Type>($($argument),*),
            DataType::UInt16 => $function::<UInt16Type>($($argument),*),
            DataType::UInt32 => $function::<UInt32Type>($($argument),*),
            DataType::UInt64 => $function::<UInt64Type>($($argument),*),
            DataType::Float32 => $function::<Float32Type>($($argument),*),
            DataType::Float64 => $function::<Float64Type>($($argument),*),
            DataType::Date32 => $function::<Date32Type>($($argument),*),
            DataType::Date64 => $function::<Date64Type>($($argument),*),
            DataType::Time32(TimeUnit::Second) => $function::<Time32SecondType>($($argument),*),
            DataType::Time32(_) => $function::<Time32MillisecondType>($($argument),*),
            DataType::Time64(TimeUnit::Microsecond) => $function::<Time64MicrosecondType>($($argument),*),
            DataType::Time64(_) => $function::<Time64NanosecondType>($($argument),*),
            DataType::Timestamp(TimeUnit::Second, _) => $function::<TimestampSecondType>($($argument),*),
            DataType::Timestamp(TimeUnit::Millisecond, _) => $function::<TimestampMillisecondType>($($argument),*),
            DataType::Timestamp(TimeUnit::Microsecond, _) => $function::<TimestampMicrosecondType>($($argument),*),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => $function::<TimestampNanosecondType>($($argument),*),
            DataType::Duration(TimeUnit::Second) => $function::<DurationSecondType>($($argument),*),
            DataType::Duration(TimeUnit::Millisecond) => $function::<DurationMillisecondType>($($argument),*),
            DataType::Duration(TimeUnit::Microsecond) => $function::<DurationMicrosecondType>($($argument),*),
            DataType::Duration(TimeUnit::Nanosecond) => $function::<DurationNanosecondType>($($argument),*),
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

/// One value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value<'a> {
    Code(i64),
    Bytes(&'a [u8]),
}

/// One value that is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    Code(i64),
    Bytes(Box<[u8]>),
}

impl Kept {
    pub(super) fn as_value(&self) -> Value<'_> {
        match self {
            Self::Code(code) => Value::Code(*code),
            Self::Bytes(bytes) => Value::Bytes(bytes),
        }
    }
}

impl From<Value<'_>> for Kept {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Code(code) => Self::Code(code),
            Value::Bytes(bytes) => Self::Bytes(bytes.into()),
        }
    }
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
    /// Of a column that is no dictionary, and that [`value_type`] knows.
    fn of(column: &ArrayRef) -> Self {
        match column.data_type() {
            DataType::Utf8 => Self::Bytes(column.as_string::<i32>().clone().into()),
            DataType::LargeUtf8 => Self::LargeBytes(column.as_string::<i64>().clone().into()),
            DataType::Utf8View => Self::BytesView(column.as_string_view().clone().to_binary_view()),
            DataType::Binary => Self::Bytes(column.as_binary().clone()),
            DataType::LargeBinary => Self::LargeBytes(column.as_binary().clone()),
            DataType::BinaryView => Self::BytesView(column.as_binary_view().clone()),
            DataType::Boolean => {
                Self::Codes(column.as_boolean().values().iter().map(i64::from).collect())
            }
            other => Self::Codes(with_type!(other, codes_of(column))),
        }
    }

    /// Whether the values are texts. Nobody has looked at them before: they may be another
    /// library's.
    fn are_texts(&self, len: usize, nulls: Option<&NullBuffer>) -> bool {
        let all = match self {
            Self::Codes(_) => return true,
            Self::Bytes(bytes) => used(bytes),
            Self::LargeBytes(bytes) => used(bytes),
            // They lie here and there.
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

/// The bytes of these values: a slice has those of the whole column behind it, and without a row
/// maybe none.
fn used<O: OffsetSizeTrait>(bytes: &GenericBinaryArray<O>) -> &[u8] {
    let offsets = bytes.value_offsets();
    let (first, last) = (
        offsets.first().map_or(0, |one| one.as_usize()),
        offsets.last().map_or(0, |one| one.as_usize()),
    );
    bytes.value_data().get(first..last).unwrap_or_default()
}

/// A column: values, and where there are none.
pub(super) struct Column {
    pub(super) values: Values,
    pub(super) nulls: Option<NullBuffer>,
    /// The index of each row's value in `values`, where that is not its own number.
    pub(super) indices: Option<ScalarBuffer<u32>>,
}

impl Column {
    /// Of a column that [`value_type`] knows.
    pub(super) fn of(column: &ArrayRef) -> Result<Self, AggregateError> {
        if let DataType::Dictionary(_, values) = column.data_type() {
            return downcast_dictionary_array! {
                column => {
                    let (keys, count) = (column.keys(), column.values().len());
                    let nested = matches!(**values, DataType::Dictionary(..)) || column.values().null_count() > 0;
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
                                "index {key:?} of a dictionary with {count} values"
                            )))
                        }
                    });
                    let indices = indices.collect::<Result<_, _>>()?;
                    Self { values: Values::of(column.values()), nulls, indices: Some(indices) }.checked(column.values())
                },
                other => unreachable!("{other} is a dictionary")
            };
        }
        Self::of_kept(column).checked(column)
    }

    /// Refuses what claims to be a text and is none.
    fn checked(self, values: &ArrayRef) -> Result<Self, AggregateError> {
        let is_text = value_type(values.data_type()) == Some(DataType::Utf8);
        let nulls = self.nulls.as_ref().filter(|_| self.indices.is_none());
        if is_text && !self.values.are_texts(values.len(), nulls) {
            return Err(ArrowError::InvalidArgumentError(
                "a column of texts has one that is not UTF-8".to_owned(),
            )
            .into());
        }
        Ok(self)
    }

    /// Of a column that is no dictionary, and that [`value_type`] knows.
    pub(super) fn of_kept(column: &ArrayRef) -> Self {
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        Self { values: Values::of(column), nulls, indices: None }
    }

    /// Some of its rows.
    pub(super) fn slice(&self, start: usize, rows: usize) -> Self {
        let nulls = self.nulls.as_ref().map(|nulls| nulls.slice(start, rows));
        let indices = self.indices.as_ref().map(|indices| indices.slice(start, rows));
        let values =
            if indices.is_some() { self.values.clone() } else { self.values.slice(start, rows) };
        Self { values, nulls, indices }
    }

    /// The value of a row, if it has one.
    #[inline]
    pub(super) fn get(&self, row: usize) -> Option<Value<'_>> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        let row = self.indices.as_ref().map_or(row, |indices| indices[row] as usize);
        Some(self.values.get(row))
    }
}

/// A column of values that were kept, of a type that [`value_type`] returned.
pub(super) fn to_array<'a>(
    values: impl ExactSizeIterator<Item = Option<Value<'a>>>,
    data_type: &DataType,
) -> Result<ArrayRef, AggregateError> {
    if matches!(data_type, DataType::Utf8 | DataType::Binary) {
        let values = values.map(|value| match value {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        });
        let bytes = bytes_of(values)?;
        return Ok(match data_type {
            DataType::Utf8 => Arc::new(StringArray::try_from_binary(bytes)?),
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
        // Without a value it is 0, which is no code of these.
        other => with_type!(other, array_of(&codes, nulls, other)),
    })
}

/// Bytes of at most 2 GiB in all, which is what a column has room for.
pub(super) fn bytes_of(
    values: impl ExactSizeIterator<Item = Option<impl AsRef<[u8]>>>,
) -> Result<BinaryArray, AggregateError> {
    let (mut bytes, mut total) = (BinaryBuilder::with_capacity(values.len(), 0), 0_usize);
    for value in values {
        total += value.as_ref().map_or(0, |value| value.as_ref().len());
        if i32::try_from(total).is_err() {
            return Err(AggregateError::TooLarge);
        }
        bytes.append_option(value);
    }
    Ok(bytes.finish())
}
