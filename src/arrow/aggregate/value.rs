//! A single value: an order-preserving 64-bit code, or bytes.

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

/// Reverses the order of negative numbers, whose bits count backwards. It is its own inverse.
fn flip(bits: i64) -> i64 {
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}
