//! The class `DistinctSketch`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use super::exceptions::ConfigError;
use crate::arrow::aggregate::{self, LG_REGISTERS};

/// A sketch of distinct values: HyperLogLog, as Apache DataSketches has it.
#[pyclass(module = "batchqueue._core")]
pub(crate) struct DistinctSketch(aggregate::DistinctSketch);

#[pymethods]
impl DistinctSketch {
    /// Make an empty sketch.
    ///
    /// Args:
    ///     lg_registers: How many registers it has at most, as a power of two: 4 to 21.
    ///
    /// Raises:
    ///     ConfigError: That is another number.
    #[new]
    fn new(lg_registers: u8) -> PyResult<Self> {
        if !LG_REGISTERS.contains(&lg_registers) {
            return Err(ConfigError::new_err(format!(
                "lg_registers is {lg_registers}; give 4 to 21"
            )));
        }
        Ok(Self(aggregate::DistinctSketch::new(lg_registers)))
    }

    /// Add a value.
    ///
    /// Raises:
    ///     TypeError: It is not a str, bytes, or an int of 64 bits.
    ///     OverflowError: It is an int of more bits.
    ///     UnicodeEncodeError: It is a str that is not valid Unicode.
    fn add(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(text) = value.cast::<PyString>() {
            self.0.add_bytes(text.to_str()?.as_bytes());
        } else if let Ok(bytes) = value.cast::<PyBytes>() {
            self.0.add_bytes(bytes.as_bytes());
        } else {
            self.0.add_integer(value.extract()?);
        }
        Ok(())
    }

    /// Add the values of another sketch, which `to_bytes` returned.
    ///
    /// Raises:
    ///     ConfigError: The bytes are not those of a sketch.
    fn merge(&mut self, other: &[u8]) -> PyResult<()> {
        self.0.merge(other).map_err(|error| ConfigError::new_err(error.to_string()))
    }

    /// Return the estimated number of distinct values.
    fn estimate(&self) -> f64 {
        self.0.estimate()
    }

    /// Return the sketch as DataSketches of other languages read it.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    /// Return an equal sketch.
    fn copy(&self) -> Self {
        Self(self.0.clone())
    }
}
