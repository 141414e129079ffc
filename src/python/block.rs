//! A block of rows in a queue: a piece of a record batch, which becomes a record batch of Python
//! when a handler gets it.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_cast::display::array_value_to_string;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::call::{Held, call_handler};
use super::columnar::to_pyarrow;
use crate::TypeKey;
use crate::arrow::Tags;

/// A record batch that blocks are pieces of.
pub(super) struct Whole {
    batch: RecordBatch,
    /// The column that the tags are in.
    column: usize,
    /// There is pyarrow.
    pyarrow: bool,
    /// The method `slice` of the batch as an object of pyarrow: a slice costs much less than an
    /// import of its own. It is made for the first handler that is in Python.
    slice: PyOnceLock<Held>,
}

impl Whole {
    pub(super) fn new(batch: RecordBatch, column: usize, pyarrow: bool) -> Self {
        Self { batch, column, pyarrow, slice: PyOnceLock::new() }
    }

    fn slice(&self, py: Python<'_>) -> PyResult<&Held> {
        self.slice.get_or_try_init(py, || {
            let whole = to_pyarrow(py, self.batch.clone(), true)?;
            Ok(Held::new(whole.getattr("slice")?.unbind()))
        })
    }
}

/// Some rows of a batch, all with the same tag.
pub(super) struct Block {
    whole: Arc<Whole>,
    pub(super) rows: Range<usize>,
    pub(super) key: TypeKey,
}

impl Block {
    pub(super) fn new(whole: Arc<Whole>, rows: Range<usize>, key: TypeKey) -> Self {
        Self { whole, rows, key }
    }

    /// A `pyarrow.RecordBatch`, or without pyarrow an object with the same data behind
    /// `__arrow_c_array__`.
    pub(super) fn to_record_batch(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.whole.pyarrow {
            let args = (self.rows.start, self.rows.len()).into_pyobject(py)?;
            return Ok(call_handler(self.whole.slice(py)?.bind(py), &args)?.unbind());
        }
        Ok(to_pyarrow(py, self.batch(), false)?.unbind())
    }

    /// The rows.
    pub(super) fn batch(&self) -> RecordBatch {
        self.whole.batch.slice(self.rows.start, self.rows.len())
    }

    /// The first `rows` of them, and the others.
    pub(super) fn cut(self, rows: usize) -> (Self, Self) {
        let Self { whole, rows: Range { start, end }, key } = self;
        let at = start + rows;
        (Self { whole: whole.clone(), rows: start..at, key }, Self { whole, rows: at..end, key })
    }

    /// What to call the tag of these rows in a log line; of unknown ones, the first.
    pub(super) fn tag_name(&self) -> String {
        if self.key == Tags::NULL {
            return "no tag (null)".to_owned();
        }
        let tag =
            array_value_to_string(self.whole.batch.column(self.whole.column), self.rows.start);
        format!("tag {:?}", tag.unwrap_or_default())
    }
}
