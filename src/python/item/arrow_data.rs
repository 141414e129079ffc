//! Arrow data on its way from Python and back.

use arrow_array::{RecordBatch, RecordBatchReader};
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3_arrow::PyRecordBatch;
use pyo3_arrow::input::AnyRecordBatch;

use crate::python::errors::type_with_article;
use crate::python::exceptions::ConfigError;

pub(crate) type Batches = Box<dyn RecordBatchReader + Send>;

pub(crate) fn batches_of(data: &Bound<'_, PyAny>) -> PyResult<Batches> {
    let kind = type_with_article(data);
    for method in ["__arrow_c_array__", "__arrow_c_stream__"] {
        if data.hasattr(method)? {
            let batches = data.extract::<AnyRecordBatch>().and_then(AnyRecordBatch::into_reader);
            return batches.map_err(|error| {
                let problem = ConfigError::new_err(format!(
                    "batch is {kind}, not a record batch or table: {error}"
                ));
                problem.set_cause(data.py(), Some(error));
                problem
            });
        }
    }
    Err(ConfigError::new_err(format!(
        "batch is {kind}; give an object with __arrow_c_array__ or __arrow_c_stream__, like a \
         record batch or a table of pyarrow, polars, DuckDB or nanoarrow"
    )))
}

/// Whether handlers can get batches of pyarrow. It is imported here and not by a drain thread.
pub(crate) fn has_pyarrow(py: Python<'_>) -> PyResult<bool> {
    match py.import("pyarrow") {
        Ok(_) => Ok(true),
        Err(error) if error.is_instance_of::<PyImportError>(py) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A `pyarrow.RecordBatch`, or without pyarrow an object with the same data behind
/// `__arrow_c_array__`.
pub(crate) fn to_pyarrow(
    py: Python<'_>,
    batch: RecordBatch,
    pyarrow: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let batch = PyRecordBatch::new(batch);
    if pyarrow { batch.into_pyarrow(py) } else { Ok(batch.into_pyobject(py)?.into_any()) }
}
