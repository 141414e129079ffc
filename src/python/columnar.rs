//! `produce_arrow`: from an Arrow object to blocks of rows in the queue.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::{RecordBatch, RecordBatchReader};
use parking_lot::Mutex;
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3_arrow::PyRecordBatch;
use pyo3_arrow::input::AnyRecordBatch;

use super::block::{Block, Whole};
use super::item::PyItem;
use super::pause::InterpreterPause;
use super::refusal::refused;
use super::registered::Registered;
use super::{BatchQueueError, ConfigError};
use crate::arrow::{Buffers, CHUNK_ROWS, split};
use crate::{BatchQueue, Item, ProduceError, Selector};

/// One call of `produce_arrow`.
pub(super) struct Columnar<'a> {
    pub(super) queue: &'a BatchQueue<PyItem>,
    pub(super) buffers: &'a Buffers,
    pub(super) type_column: &'a str,
    pub(super) registered: &'a Mutex<Registered>,
    pub(super) deadline: Option<Instant>,
    /// Rows accepted so far.
    pub(super) accepted: usize,
    /// The queue was shut down meanwhile.
    pub(super) is_closed: bool,
}

pub(super) type Batches = Box<dyn RecordBatchReader + Send>;

impl Columnar<'_> {
    pub(super) fn produce(mut self, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = data.py();
        if self.queue.selector() == Selector::Given {
            return Err(ConfigError::new_err(
                "produce_arrow cannot ask a by_key or custom selector about rows; use by_type or round_robin",
            ));
        }
        let mut batches = batches_of(data)?;
        let produced = self.all(py, &mut batches);
        // Detached, as its work is: an early end may wait for threads that need the interpreter.
        py.detach(|| drop(batches));
        match produced {
            Ok(()) => Ok(self.accepted),
            Err(error) => {
                // An exception that refuses attributes is still the one to raise.
                let _ = error.value(py).setattr("accepted", self.accepted);
                Err(error)
            }
        }
    }

    fn all(&mut self, py: Python<'_>, batches: &mut Batches) -> PyResult<()> {
        let schema = batches.schema();
        let Ok(column) = schema.index_of(self.type_column) else {
            let names: Vec<&str> =
                schema.fields().iter().map(|field| field.name().as_str()).collect();
            return Err(ConfigError::new_err(format!(
                "type_column is {:?}; the data has the columns {names:?}",
                self.type_column
            )));
        };
        let pyarrow = has_pyarrow(py)?;
        // Detached: a stream may do its work only now, with threads that need the interpreter.
        while let Some(batch) = py.detach(|| batches.next()) {
            let batch = batch.map_err(|error| {
                BatchQueueError::new_err(format!("the stream of batches failed: {error}"))
            })?;
            for start in (0..batch.num_rows()).step_by(CHUNK_ROWS) {
                let rows = CHUNK_ROWS.min(batch.num_rows() - start);
                self.chunk(py, &batch.slice(start, rows), column, pyarrow)?;
                if self.is_closed {
                    return Ok(());
                }
                // Nothing else looks for them while there is room.
                py.check_signals()?;
            }
        }
        Ok(())
    }

    fn chunk(
        &mut self,
        py: Python<'_>,
        batch: &RecordBatch,
        column: usize,
        pyarrow: bool,
    ) -> PyResult<()> {
        // Anew for each chunk: a stream may last.
        let tags = self.registered.lock().tags.clone();
        let pieces =
            py.detach(|| split(batch, column, &tags, self.buffers)).map_err(|problem| {
                ConfigError::new_err(format!("type_column {:?} {problem}", self.type_column))
            })?;
        let whole = Arc::new(Whole::new(pieces.batch, column, pyarrow));
        for piece in pieces.pieces {
            let rows = piece.rows.len();
            let item = PyItem::rows(Block::new(whole.clone(), piece.rows, piece.key));
            match self.queue.produce_heavy(item, self.deadline, &mut InterpreterPause(py)) {
                Ok(()) => self.accepted += rows,
                Err(refusal) => self.refuse(py, rows, refusal)?,
            }
        }
        Ok(())
    }

    /// A full partition or a closed queue refuses rows, and the others of the chunk are still
    /// tried.
    fn refuse(
        &mut self,
        py: Python<'_>,
        rows: usize,
        refusal: ProduceError<PyItem, PyErr>,
    ) -> PyResult<()> {
        let left = match &refusal {
            ProduceError::Full(item)
            | ProduceError::Closed(item)
            | ProduceError::TimedOut { item, .. }
            | ProduceError::Reentrant { item, .. }
            | ProduceError::Interrupted(item, _) => item.weight(),
        };
        self.accepted += rows - left;
        self.is_closed |= matches!(refusal, ProduceError::Closed(_));
        refused(py, refusal, self.accepted).map_or(Ok(()), Err)
    }
}

pub(super) fn batches_of(data: &Bound<'_, PyAny>) -> PyResult<Batches> {
    let kind = data.get_type().name()?;
    for method in ["__arrow_c_array__", "__arrow_c_stream__"] {
        if data.hasattr(method)? {
            let batches = data.extract::<AnyRecordBatch>().and_then(AnyRecordBatch::into_reader);
            return batches.map_err(|error| {
                let problem = ConfigError::new_err(format!(
                    "batch is a {kind} that is no record batch or table: {error}"
                ));
                problem.set_cause(data.py(), Some(error));
                problem
            });
        }
    }
    Err(ConfigError::new_err(format!(
        "batch is a {kind}; give an object with __arrow_c_array__ or __arrow_c_stream__, like a record batch or a table of \
         pyarrow, polars, DuckDB or nanoarrow"
    )))
}

/// Whether handlers can get batches of pyarrow. It is imported here and not by a drain thread.
pub(super) fn has_pyarrow(py: Python<'_>) -> PyResult<bool> {
    match py.import("pyarrow") {
        Ok(_) => Ok(true),
        Err(error) if error.is_instance_of::<PyImportError>(py) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A `pyarrow.RecordBatch`, or without pyarrow an object with the same data behind
/// `__arrow_c_array__`.
pub(super) fn to_pyarrow(
    py: Python<'_>,
    batch: RecordBatch,
    pyarrow: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let batch = PyRecordBatch::new(batch);
    if pyarrow { batch.into_pyarrow(py) } else { Ok(batch.into_pyobject(py)?.into_any()) }
}
