//! `produce_many`: a sequence in large pieces, and any other iterable item by item.

use std::time::Instant;

use pyo3::prelude::*;

use super::errors::{after_some, not_iterable};
use super::interpreter::InterpreterPause;
use super::item::{Sequence, refused};
use super::life::run_inline;
use super::queue::Queue;

impl Queue {
    pub(super) fn produce_items(
        &self,
        py: Python<'_>,
        items: &Bound<'_, PyAny>,
        deadline: Option<Instant>,
    ) -> PyResult<usize> {
        let life = self.life()?;
        let queue = life.core()?;
        run_inline(py, queue, deadline).map_err(|error| after_some(py, error, 0))?;
        if let Some(items) = Sequence::of(items).filter(|_| !self.selector.is_by_caller()) {
            return items.produce(py, queue, &life.registry, deadline);
        }
        // Item by item: an item that was taken from an iterator and then refused would be lost.
        let mut accepted = 0;
        for item in items.try_iter().map_err(|error| not_iterable(items, error))? {
            let item = item.map_err(|error| after_some(py, error, accepted))?;
            let given = self.selector.given(queue, &item);
            let given = given.map_err(|error| after_some(py, error, accepted))?;
            let item = life.item(item)?;
            match queue.produce_with(item, given, deadline, &mut InterpreterPause(py)) {
                Ok(()) => {
                    accepted += 1;
                    run_inline(py, queue, deadline)
                        .map_err(|error| after_some(py, error, accepted))?;
                }
                Err(refusal) => {
                    return refused(py, queue.name(), refusal, accepted).map_or(Ok(accepted), Err);
                }
            }
        }
        Ok(accepted)
    }
}
