//! Lists and tuples, from which items are put in as they are read.

use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::item::PyItem;
use super::pause::InterpreterPause;
use super::queue::refused;
use super::waiting::Tried;
use crate::BatchQueue;
use crate::flow::bulk::Source;

/// Items that are put in before an event loop gets its next turn: for about a millisecond.
const TURN: usize = 16_384;

/// A list or a tuple; not of a subclass, whose items are what its methods say.
#[derive(Clone, Copy)]
pub(super) enum Indexed<'a, 'py> {
    List(&'a Bound<'py, PyList>),
    Tuple(&'a Bound<'py, PyTuple>),
}

impl<'a, 'py> Indexed<'a, 'py> {
    pub(super) fn of(items: &'a Bound<'py, PyAny>) -> Option<Self> {
        let list = items.cast_exact().map(Self::List);
        list.or_else(|_| items.cast_exact().map(Self::Tuple)).ok()
    }

    /// Puts all items in, up to the first that is refused; how many.
    pub(super) fn produce(
        &self,
        py: Python<'_>,
        queue: &BatchQueue<PyItem>,
        deadline: Option<Instant>,
    ) -> PyResult<usize> {
        let mut items = self.items(0, usize::MAX);
        match queue.produce_from(&mut items, deadline, &mut InterpreterPause(py)) {
            Ok(()) => Ok(items.read),
            Err(refusal) => refused(py, refusal, items.read - 1).map_or(Ok(items.read - 1), Err),
        }
    }

    /// Puts the items from `start` on in without waiting, up to the first that is not in at once; how many of all are in then.
    pub(super) fn try_produce(
        &self,
        py: Python<'_>,
        queue: &BatchQueue<PyItem>,
        start: usize,
        is_awaited: &dyn Fn(usize) -> bool,
        awaits_any: bool,
    ) -> PyResult<(usize, Tried)> {
        let mut items = self.items(start, start.saturating_add(TURN));
        let result = if awaits_any {
            items.try_for_each(|item| queue.try_produce(item, None, is_awaited))
        } else {
            queue.try_produce_from(&mut items)
        };
        let accepted = items.read - usize::from(result.is_err());
        if result.is_ok() && accepted < self.len() {
            return Ok((accepted, Tried::Done(None)));
        }
        Ok((accepted, Tried::of(py, result, accepted)?))
    }

    fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Tuple(tuple) => tuple.len(),
        }
    }

    fn items(self, start: usize, end: usize) -> Items<'a, 'py> {
        let end = end.min(self.len());
        Items { from: self, read: start, end }
    }
}

/// The items of a list or a tuple, by index: another thread may change a list while this one waits for space.
struct Items<'a, 'py> {
    from: Indexed<'a, 'py>,
    /// Items read so far, with those before the first.
    read: usize,
    end: usize,
}

impl Iterator for Items<'_, '_> {
    type Item = PyItem;

    #[inline]
    fn next(&mut self) -> Option<PyItem> {
        if self.read >= self.end {
            return None;
        }
        let item = match self.from {
            Indexed::List(list) => list.get_item(self.read),
            Indexed::Tuple(tuple) => tuple.get_item(self.read),
        };
        // An error: without a GIL, another thread has made the list shorter meanwhile.
        let item = item.ok()?;
        self.read += 1;
        Some(PyItem::new(item))
    }
}

impl Source<PyItem> for Items<'_, '_> {
    fn left(&mut self) -> usize {
        self.end = self.end.min(self.from.len());
        self.end.saturating_sub(self.read)
    }
}
