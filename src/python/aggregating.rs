//! The part of an `Aggregator` that drain threads run without the interpreter.

use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};

use super::exceptions::BatchQueueError;
use super::interpreter::{GuardedRef, guarded_call, release};
use super::item::to_pyarrow;
use crate::arrow::aggregate::{AggregateError, Aggregator};

/// The part of an aggregator that drain threads enter without the interpreter.
///
/// No thread waits for the interpreter while it holds the lock.
pub(super) struct Aggregating {
    pub(super) kept: Mutex<KeptGroups>,
    pub(super) next_worker: Option<GuardedRef>,
    pub(super) flush_period: Duration,
    /// Whether partials are handed over as pyarrow batches.
    pub(super) pyarrow: bool,
}

pub(super) struct KeptGroups {
    pub(super) aggregator: Aggregator,
    pub(super) due_at: Instant,
    /// Groups that were lost.
    pub(super) dropped: usize,
}

impl Aggregating {
    /// Aggregates rows or partials. The thread may be attached or not.
    pub(super) fn consume(&self, batches: &[RecordBatch]) -> PyResult<()> {
        self.put(batches)?;
        if self.next_worker.is_some() && Instant::now() >= self.kept.lock().due_at {
            self.flush()?;
        }
        Ok(())
    }

    /// Emits the groups early when there would be too many of them.
    pub(super) fn put(&self, batches: &[RecordBatch]) -> PyResult<()> {
        let result = self.kept.lock().aggregator.update(batches);
        match result {
            Err(AggregateError::TooManyGroups { max_groups }) if self.next_worker.is_some() => {
                let before = self.kept.lock().aggregator.len();
                if before > 0 {
                    self.flush()?;
                    if self.kept.lock().aggregator.len() >= before {
                        return Err(BatchQueueError::new_err(format!(
                            "there would be more groups than max_groups, {max_groups}, and the \
                             next worker took none of them: raise max_groups, or let it wait for \
                             space"
                        )));
                    }
                    return self.put(batches);
                }
                if let [batch] = batches {
                    let half = batch.num_rows() / 2;
                    self.put(&[batch.slice(0, half)])?;
                    return self.put(&[batch.slice(half, batch.num_rows() - half)]);
                }
                batches.iter().try_for_each(|batch| self.put(std::slice::from_ref(batch)))
            }
            other => Ok(other?),
        }
    }

    /// Emits all groups to the next worker, if there is one, and starts a new period. Groups that
    /// the worker does not take stay.
    pub(super) fn flush(&self) -> PyResult<()> {
        let Some(next_worker) = &self.next_worker else { return Ok(()) };
        let partials = {
            let mut kept = self.kept.lock();
            kept.due_at = Instant::now() + self.flush_period;
            kept.aggregator.take_partials()?
        };
        let Some(partials) = partials else { return Ok(()) };
        let emitted = Python::try_attach(|py| self.emit(py, next_worker, &partials));
        let taken = match emitted {
            Some(Ok(taken)) => taken,
            Some(Err(error)) => {
                self.kept.lock().dropped += partials.num_rows();
                return Err(error);
            }
            // The interpreter ended, so nothing reads the groups any more.
            None => 0,
        };
        if taken < partials.num_rows() {
            self.kept
                .lock()
                .aggregator
                .take_back(partials.slice(taken, partials.num_rows() - taken))?;
        }
        Ok(())
    }

    /// Calls the next worker. Returns how many groups it took, from the front.
    fn emit(
        &self,
        py: Python<'_>,
        next_worker: &GuardedRef,
        partials: &RecordBatch,
    ) -> PyResult<usize> {
        let args = PyTuple::new(py, [to_pyarrow(py, partials.clone(), self.pyarrow)?])?;
        let result = guarded_call(next_worker.bind(py), &args);
        release(args.into_any());
        let answer = result?;
        let all = partials.num_rows();
        // A bool is an int in Python, but it is not a number of groups.
        let is_bool = answer.is_instance_of::<PyBool>();
        let taken = if answer.is_none() { Ok(all) } else { answer.extract::<usize>() };
        release(answer);
        match taken {
            Ok(taken) if taken <= all && !is_bool => Ok(taken),
            _ => Err(BatchQueueError::new_err(format!(
                "the next worker of an Aggregator must return how many of the {all} groups it \
                 took, from the front, or None for all"
            ))),
        }
    }

    /// Emits all groups for the last time. Groups that are not taken now are lost.
    pub(super) fn close(&self) -> PyResult<()> {
        self.flush()?;
        if self.next_worker.is_none() {
            return Ok(());
        }
        let mut kept = self.kept.lock();
        let refused = kept.aggregator.take_partials()?.map_or(0, |partials| partials.num_rows());
        kept.dropped += refused;
        if refused == 0 {
            return Ok(());
        }
        Err(BatchQueueError::new_err(format!(
            "the next worker of an Aggregator refused {refused} groups at close, and they are \
             lost; shut queues down from the first to the last, as BatchQueueManager.shutdown_all \
             does"
        )))
    }

    pub(super) fn emits(&self) -> bool {
        self.next_worker.is_some()
    }
}
