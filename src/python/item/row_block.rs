//! A block of rows in a queue: a piece of a record batch, which becomes a Python object when a
//! handler gets it.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_cast::display::array_value_to_string;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::arrow_data::to_pyarrow;
use crate::TypeKey;
use crate::arrow::Tags;
use crate::python::interpreter::{GuardedRef, guarded_call};

/// The record batch that blocks are pieces of.
pub(crate) struct SourceBatch {
    batch: RecordBatch,
    /// The column that the tags are in.
    column: usize,
    /// Whether pyarrow is installed.
    pyarrow: bool,
    /// The method `slice` of the batch as a pyarrow object, because a slice costs much less than an
    /// export to pyarrow. Made for the first handler that is written in Python.
    slice: PyOnceLock<GuardedRef>,
}

impl SourceBatch {
    pub(crate) fn new(batch: RecordBatch, column: usize, pyarrow: bool) -> Self {
        Self { batch, column, pyarrow, slice: PyOnceLock::new() }
    }

    fn slice(&self, py: Python<'_>) -> PyResult<&GuardedRef> {
        self.slice.get_or_try_init(py, || {
            let source = to_pyarrow(py, self.batch.clone(), true)?;
            Ok(GuardedRef::new(source.getattr("slice")?.unbind()))
        })
    }
}

/// Some rows of a batch, all with the same tag.
pub(crate) struct RowBlock {
    source: Arc<SourceBatch>,
    pub(crate) rows: Range<usize>,
    pub(crate) key: TypeKey,
}

impl RowBlock {
    pub(crate) fn new(source: Arc<SourceBatch>, rows: Range<usize>, key: TypeKey) -> Self {
        Self { source, rows, key }
    }

    /// A `pyarrow.RecordBatch`, or without pyarrow an object with the same data behind
    /// `__arrow_c_array__`.
    pub(crate) fn to_record_batch(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.source.pyarrow {
            let args = (self.rows.start, self.rows.len()).into_pyobject(py)?;
            return Ok(guarded_call(self.source.slice(py)?.bind(py), &args)?.unbind());
        }
        Ok(to_pyarrow(py, self.batch(), false)?.unbind())
    }

    /// The rows as a record batch.
    pub(crate) fn batch(&self) -> RecordBatch {
        self.source.batch.slice(self.rows.start, self.rows.len())
    }

    /// Splits the block after its first `rows` rows.
    pub(crate) fn cut(self, rows: usize) -> (Self, Self) {
        let Self { source, rows: Range { start, end }, key } = self;
        let at = start + rows;
        (Self { source: source.clone(), rows: start..at, key }, Self { source, rows: at..end, key })
    }

    /// The tag of these rows, empty if they have none. Rows of unknown tags share a block; the
    /// first tag stands for them.
    pub(crate) fn tag(&self) -> String {
        let tags = self.source.batch.column(self.source.column);
        array_value_to_string(tags, self.rows.start).unwrap_or_default()
    }

    /// The same for a log line.
    pub(crate) fn tag_name(&self) -> String {
        if self.key == Tags::NULL {
            return "no tag (null)".to_owned();
        }
        format!("tag {:?}", self.tag())
    }
}
