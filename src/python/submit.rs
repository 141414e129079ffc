//! `submit`: enqueues an item with a future.

use pyo3::prelude::*;

use super::interpreter::{InterpreterPause, Timeout, deadline_of};
use super::item::{PyItem, refused};
use super::life::Life;
use super::life::run_inline;
use super::queue::Queue;
use super::results::{FutureBase, Ticket, future_class};
use crate::ProduceError;

impl Queue {
    pub(super) fn submit_item<'py>(
        &self,
        item: Bound<'py, PyAny>,
        timeout: Option<Timeout>,
    ) -> PyResult<Bound<'py, FutureBase>> {
        let life = self.life()?;
        let queue = life.core()?;
        let py = item.py();
        let deadline = deadline_of(timeout)?;
        let given = self.selector.given(queue, &item)?;
        run_inline(py, queue, deadline)?;
        let (future, item) = Self::submitted(life, item)?;
        match queue.produce_with(item, given, deadline, &mut InterpreterPause(py)) {
            Ok(()) => {
                run_inline(py, queue, deadline)?;
                Ok(future)
            }
            Err(refusal) => {
                let is_interrupt = matches!(refusal, ProduceError::Interrupted(..));
                let error = refused(py, queue.name(), refusal, 0).filter(|_| is_interrupt);
                error.map_or(Ok(future), Err)
            }
        }
    }

    /// Makes the future of an item, and the item. Nothing is enqueued yet.
    pub(super) fn submitted<'py>(
        life: &Life,
        item: Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, FutureBase>, PyItem)> {
        let future = life.submissions.add(future_class(item.py())?)?;
        let ticket = Ticket::new(future.clone().unbind());
        let key = if life.registry.resolves() {
            Some(life.registry.key_of(&item.get_type())?)
        } else {
            None
        };
        Ok((future, PyItem::submitted(item, ticket, key)))
    }
}
