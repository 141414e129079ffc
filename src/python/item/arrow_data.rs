//! Arrow data on its way from Python and back.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::Schema;
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;
use pyo3_arrow::{PyRecordBatch, PyRecordBatchReader};

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
    let batch = PyRecordBatch::new(batch).into_pyobject(py)?.into_any();
    // Not `into_pyarrow`, whose lazy statics cannot be filled without pyarrow.
    if pyarrow { py.import("pyarrow")?.getattr("record_batch")?.call1((batch,)) } else { Ok(batch) }
}

/// Fills the lazy statics of `pyo3_arrow` for both ways of Arrow data.
pub(crate) fn prepare_arrow_data(py: Python<'_>) -> PyResult<()> {
    let batch = RecordBatch::new_empty(Arc::new(Schema::empty()));
    let schema = batch.schema();
    let reader: Batches = Box::new(RecordBatchIterator::new([Ok(batch.clone())], schema));
    batches_of(&to_pyarrow(py, batch, false)?)?;
    batches_of(&PyRecordBatchReader::new(reader).into_pyobject(py)?.into_any())?;
    Ok(())
}
