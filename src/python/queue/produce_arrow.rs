//! `produce_arrow`: splits Arrow data into blocks of rows, and enqueues them.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::RecordBatch;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::arrow::split::split;
use crate::arrow::{CHUNK_ROWS, Piece};
use crate::config::Selector;
use crate::error::ProduceError;
use crate::item::Item;
use crate::python::errors::{BatchQueueError, ConfigError};
use crate::python::interpreter::{InterpreterPause, StoppablePause, Timeout, deadline_of};
use crate::python::item::{
    Batches, PyItem, RowBlock, SourceBatch, batches_of, has_pyarrow, refused,
};
use crate::python::queue::Queue;
use crate::python::queue::life::{Life, run_inline};
use crate::queue::BatchQueue;

/// One call of `produce_arrow`.
struct ArrowProduce<'a, 'py> {
    life: &'a Life,
    queue: &'a BatchQueue<PyItem>,
    type_column: &'a str,
    deadline: Option<Instant>,
    /// A `threading.Event` that ends the call when it is set.
    stop: Option<&'a Bound<'py, PyAny>>,
    /// Rows accepted so far.
    accepted: usize,
    /// Whether the queue was shut down during the call.
    is_closed: bool,
}

impl Queue {
    /// Runs `produce_arrow`. Ends early when the event `stop` is set, if there is one.
    pub(crate) fn produce_rows(
        &self,
        batch: &Bound<'_, PyAny>,
        type_column: &Bound<'_, PyAny>,
        timeout: Option<Timeout>,
        stop: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let Ok(type_column) = type_column.cast::<PyString>() else {
            return Err(ConfigError::new_err(format!(
                "type_column is {}; give the name of a column, a str",
                type_column.repr()?
            )));
        };
        let type_column = &*type_column.to_cow()?;
        let life = self.life()?;
        let (queue, deadline) = (life.core()?, deadline_of(timeout)?);
        let (accepted, is_closed) = (0, false);
        ArrowProduce { life, queue, type_column, deadline, stop, accepted, is_closed }
            .produce(batch)
    }
}

impl ArrowProduce<'_, '_> {
    fn produce(mut self, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = data.py();
        if self.queue.selector() == Selector::Given {
            return Err(ConfigError::new_err(
                "a by_key or custom selector cannot choose the partition of rows in \
                 produce_arrow; use by_type or round_robin",
            ));
        }
        let mut batches = batches_of(data)?;
        let produced = self.all(py, &mut batches);
        // Detached, like the stream's work: ending a stream early may wait for threads that need
        // the interpreter.
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
        run_inline(py, self.queue, self.deadline)?;
        let pyarrow = has_pyarrow(py)?;
        // Detached: a lazy stream works now, perhaps with threads that need the interpreter.
        while let Some(batch) = py.detach(|| batches.next()) {
            let batch = batch.map_err(|error| {
                BatchQueueError::new_err(format!("the stream of batches failed: {error}"))
            })?;
            // A caller that drains the queue must not wait for room.
            let is_inline = self.queue.is_inline();
            let most =
                if is_inline { self.queue.buffer_size().min(CHUNK_ROWS) } else { CHUNK_ROWS };
            for start in (0..batch.num_rows()).step_by(most) {
                let rows = most.min(batch.num_rows() - start);
                self.chunk(py, &batch.slice(start, rows), column, pyarrow)?;
                if self.is_closed {
                    return Ok(());
                }
                // While there is room, no wait checks for signals or the event.
                py.check_signals()?;
                if let Some(stop) = self.stop {
                    StoppablePause(stop).check()?;
                }
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
        // Read for each chunk: a stream may take long, and types may be registered meanwhile.
        let tags = self.life.registry.entries.lock().tags.clone();
        let pieces =
            py.detach(|| split(batch, column, &tags, &self.life.buffers)).map_err(|problem| {
                ConfigError::new_err(format!("type_column {:?} {problem}", self.type_column))
            })?;
        let source = Arc::new(SourceBatch::new(pieces.batch, column, pyarrow));
        for piece in pieces.pieces {
            let Piece { key, rows } = piece;
            let count = rows.len();
            let item = PyItem::rows(RowBlock { source: source.clone(), rows, key });
            let produced = match self.stop {
                Some(stop) => {
                    self.queue.produce_weighted(item, self.deadline, &mut StoppablePause(stop))
                }
                None => self.queue.produce_weighted(item, self.deadline, &mut InterpreterPause(py)),
            };
            match produced {
                Ok(()) => self.accepted += count,
                Err(refusal) => self.refuse(py, count, refusal)?,
            }
            run_inline(py, self.queue, self.deadline)?;
        }
        Ok(())
    }

    /// Counts the rows of a piece that was refused in part. A full partition or a closed queue
    /// raises no error here: the other pieces of the chunk are still tried.
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
        refused(py, self.queue.name(), refusal, self.accepted).map_or(Ok(()), Err)
    }
}
