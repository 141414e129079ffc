//! `submit`: enqueues an item with a future.

use pyo3::prelude::*;

use super::interpreter::{InterpreterPause, deadline_of};
use super::item::{PyItem, refused};
use super::queue::Queue;
use super::results::{FutureBase, Ticket, future_class};
use crate::ProduceError;

impl Queue {
    pub(super) fn submit_item<'py>(
        &self,
        item: Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, FutureBase>> {
        let queue = self.core()?;
        let py = item.py();
        let deadline = deadline_of(timeout)?;
        let given = self.selector.given(queue, &item)?;
        let (future, item) = self.submitted(item)?;
        match queue.produce_with(item, given, deadline, &mut InterpreterPause(py)) {
            Ok(()) => Ok(future),
            Err(refusal) => {
                let is_interrupt = matches!(refusal, ProduceError::Interrupted(..));
                let error = refused(py, refusal, 0).filter(|_| is_interrupt);
                error.map_or(Ok(future), Err)
            }
        }
    }

    /// Makes the future of an item, and the item. Nothing is enqueued yet.
    pub(super) fn submitted<'py>(
        &self,
        item: Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, FutureBase>, PyItem)> {
        let future = self.submissions.add(future_class(item.py())?)?;
        let ticket = Ticket::new(future.clone().unbind());
        Ok((future, PyItem::submitted(item, ticket)))
    }
}
