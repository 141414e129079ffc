//! The partition of a key, the same in every process and version.
//!
//! The bytes of a str, of an int, and of bytes are hashed as they are. A bool, and each part of a
//! tuple, has its kind in front, and what has no fixed length its length: `1`, `True` and `"1"` are
//! different parts.

use std::num::NonZeroUsize;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString, PyTuple};

use crate::python::exceptions::ConfigError;

/// Return the partition of a key, the same in every process and version.
///
/// Args:
///     key: A str, bytes, int or bool, or a tuple of these and None.
///     partitions: The number of partitions, 1 or more.
///
/// Raises:
///     ConfigError: The key is of another type.
#[pyfunction]
pub(crate) fn partition_of_key(
    key: &Bound<'_, PyAny>,
    partitions: NonZeroUsize,
) -> PyResult<usize> {
    partition_of(key, partitions.get())
}

pub(super) fn partition_of(key: &Bound<'_, PyAny>, count: usize) -> PyResult<usize> {
    let bytes = if let Ok(parts) = key.cast::<PyTuple>() {
        bytes_of_parts(key, parts)?
    } else {
        match Part::of(key)? {
            Some(Part::Bool(value)) => vec![Part::BOOL, u8::from(value)],
            Some(Part::Text(bytes) | Part::Bytes(bytes) | Part::Int(bytes)) => bytes,
            Some(Part::Missing) | None => return Err(unstable(key, key)),
        }
    };
    Ok(usize::try_from(fnv1a(&bytes) % count as u64).unwrap_or(0))
}

/// A key, or a part of one.
enum Part {
    Text(Vec<u8>),
    Bytes(Vec<u8>),
    Int(Vec<u8>),
    Bool(bool),
    Missing,
}

impl Part {
    /// The kind of a bool, which is an int to Python.
    const BOOL: u8 = b'?';

    /// `None` for another type.
    fn of(value: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        Ok(Some(if value.is_none() {
            Self::Missing
        } else if let Ok(flag) = value.cast::<PyBool>() {
            Self::Bool(flag.is_true())
        } else if let Ok(text) = value.cast::<PyString>() {
            Self::Text(text_of(text)?)
        } else if let Ok(bytes) = value.cast::<PyBytes>() {
            Self::Bytes(bytes.as_bytes().to_vec())
        } else if let Ok(number) = value.extract::<i128>() {
            Self::Int(number.to_le_bytes().to_vec())
        } else if let Ok(number) = value.cast::<PyInt>() {
            Self::Int(large_int(number)?)
        } else {
            return Ok(None);
        }))
    }

    fn append_to(self, all: &mut Vec<u8>) {
        let (kind, bytes) = match self {
            Self::Text(bytes) => (b's', bytes),
            Self::Bytes(bytes) => (b'b', bytes),
            Self::Int(bytes) => (b'i', bytes),
            Self::Bool(value) => (Self::BOOL, vec![u8::from(value)]),
            Self::Missing => (b'-', Vec::new()),
        };
        all.push(kind);
        all.extend((bytes.len() as u64).to_le_bytes());
        all.extend(bytes);
    }
}

fn bytes_of_parts(key: &Bound<'_, PyAny>, parts: &Bound<'_, PyTuple>) -> PyResult<Vec<u8>> {
    let mut all = Vec::with_capacity(32 * parts.len());
    for part in parts {
        Part::of(&part)?.ok_or_else(|| unstable(key, &part))?.append_to(&mut all);
    }
    Ok(all)
}

/// UTF-8, which a lone surrogate has as well.
fn text_of(text: &Bound<'_, PyString>) -> PyResult<Vec<u8>> {
    if let Ok(text) = text.to_cow() {
        return Ok(text.as_bytes().to_vec());
    }
    text.call_method1("encode", ("utf-8", "surrogatepass"))?.extract()
}

/// More than 128 bits.
fn large_int(number: &Bound<'_, PyInt>) -> PyResult<Vec<u8>> {
    let bits: usize = number.call_method0("bit_length")?.extract()?;
    let kwargs = pyo3::types::PyDict::new(number.py());
    kwargs.set_item("signed", true)?;
    number.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&kwargs))?.extract()
}

fn unstable(key: &Bound<'_, PyAny>, part: &Bound<'_, PyAny>) -> PyErr {
    if key.is_none() {
        return ConfigError::new_err(
            "the key of an item is None: have the function return a str, bytes, int or bool, or a \
             tuple of these and None, like (None,)",
        );
    }
    if part.is_instance_of::<PyTuple>() {
        return match key.repr() {
            Ok(key) => ConfigError::new_err(format!(
                "the key {key} has a tuple inside a tuple; return one tuple of str, bytes, int, \
                 bool and None"
            )),
            Err(error) => error,
        };
    }
    let text = || Ok::<_, PyErr>((key.repr()?, part.get_type().qualname()?));
    let (key, kind) = match text() {
        Ok(text) => text,
        Err(error) => return error,
    };
    ConfigError::new_err(format!(
        "the key {key} has a value of type {kind}, which cannot be hashed the same way in every \
         process; return a str, bytes, int or bool, or a tuple of these and None"
    ))
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo). Unlike Python's `hash`, it is the same in every process and
/// version.
fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.iter().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}
