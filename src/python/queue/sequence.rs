//! Lists and tuples, whose items are enqueued as they are read.

use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::flow::produce::many::Source;
use crate::flow::produce::pending::{Line, TryProduceError};
use crate::python::errors::after_some;
use crate::python::handler::HandlerRegistry;
use crate::python::interpreter::{InterpreterPause, has_gil};
use crate::python::item::{PyItem, refused};
use crate::python::queue::life::run_inline;
use crate::queue::BatchQueue;

/// Items that are enqueued before an event loop gets its next turn: about a millisecond's worth.
const TURN: usize = 16_384;

/// The number of accepted items, and the result of the last attempt, or `None` if the turn ended
/// first.
pub(crate) type Tried = (usize, Option<Result<(), TryProduceError<PyItem>>>);

/// A list or a tuple. A subclass is excluded: its methods may return other items.
pub(crate) enum Sequence<'py> {
    List(Bound<'py, PyList>),
    Tuple(Bound<'py, PyTuple>),
}

impl<'py> Sequence<'py> {
    pub(crate) fn of(items: &Bound<'py, PyAny>) -> Option<Self> {
        let Ok(list) = items.cast_exact::<PyList>() else {
            return items.cast_exact().ok().cloned().map(Self::Tuple);
        };
        // Without a GIL, a read of a list may wait for another thread, and no thread may wait
        // inside the gates.
        Some(if has_gil(items.py()) {
            Self::List(list.clone())
        } else {
            Self::Tuple(list.to_tuple())
        })
    }

    /// Enqueues the items in order, up to the first that is refused. Returns how many were
    /// accepted.
    pub(crate) fn produce(
        &self,
        py: Python<'_>,
        queue: &BatchQueue<PyItem>,
        registry: &HandlerRegistry,
        deadline: Option<Instant>,
    ) -> PyResult<usize> {
        if registry.resolves() {
            return self.copy().produce_resolved(py, queue, registry, deadline);
        }
        let mut items = self.items(0, usize::MAX);
        let result = queue.flow.produce_many(&mut items, deadline, &mut InterpreterPause(py));
        let accepted = items.read - usize::from(result.is_err());
        result
            .err()
            .and_then(|refusal| refused(py, queue.name(), refusal, accepted))
            .map_or(Ok(accepted), Err)
    }

    /// Does what `produce` does where classes may have the handlers of others: their keys are
    /// looked up before the gates are locked, for thousands of items at a time.
    fn produce_resolved(
        &self,
        py: Python<'_>,
        queue: &BatchQueue<PyItem>,
        registry: &HandlerRegistry,
        deadline: Option<Instant>,
    ) -> PyResult<usize> {
        let mut start = 0;
        while start < self.len() {
            // This many may fill a partition; the callers of an inline queue then empty it.
            let room = if queue.is_inline() { queue.buffer_size() } else { TURN };
            let mut items = self.resolved_items(start, room, registry)?;
            let end = start + items.len();
            let result = queue.flow.produce_many(&mut items, deadline, &mut InterpreterPause(py));
            let accepted = end - items.len() - usize::from(result.is_err());
            run_inline(py, queue, deadline).map_err(|error| after_some(py, error, accepted))?;
            if let Err(refusal) = result {
                return refused(py, queue.name(), refusal, accepted).map_or(Ok(accepted), Err);
            }
            start = accepted;
        }
        Ok(start)
    }

    /// Enqueues the items from `start` on without waiting, up to the first that finds no room.
    /// Returns how many items are accepted, those before `start` included, and the result of the
    /// last attempt; `None` if the turn ended before the items did.
    pub(crate) fn try_produce(
        &self,
        queue: &BatchQueue<PyItem>,
        registry: &HandlerRegistry,
        start: usize,
        is_awaited: &dyn Fn(Line) -> bool,
        awaits_any: bool,
    ) -> PyResult<Tried> {
        let (read, result) = if registry.resolves() {
            let mut items = self.resolved_items(start, TURN, registry)?;
            let end = start + items.len();
            let result = try_put(queue, &mut items, is_awaited, awaits_any);
            (end - items.len(), result)
        } else {
            let mut items = self.items(start, start.saturating_add(TURN));
            let result = try_put(queue, &mut items, is_awaited, awaits_any);
            (items.read, result)
        };
        let accepted = read - usize::from(result.is_err());
        let turn_ended = result.is_ok() && accepted < self.len();
        Ok((accepted, (!turn_ended).then_some(result)))
    }

    /// Returns the same items as a sequence that no other thread changes.
    fn copy(&self) -> Self {
        match self {
            Self::List(list) => Self::Tuple(list.to_tuple()),
            Self::Tuple(tuple) => Self::Tuple(tuple.clone()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Tuple(tuple) => tuple.len(),
        }
    }

    fn items(&self, start: usize, end: usize) -> Items<'_, 'py> {
        let end = end.min(self.len());
        Items { from: self, read: start, end }
    }

    /// Returns some items from `start` on, with the keys of the classes whose handlers they go to.
    fn resolved_items(
        &self,
        start: usize,
        most: usize,
        registry: &HandlerRegistry,
    ) -> PyResult<std::vec::IntoIter<PyItem>> {
        let mut items = self.items(start, start.saturating_add(most));
        let mut resolved = Vec::with_capacity(items.end.saturating_sub(start));
        while let Some(object) = items.object() {
            let key = registry.key_of(&object.get_type())?;
            resolved.push(PyItem::with_key(object, key));
        }
        Ok(resolved.into_iter())
    }
}

/// Enqueues items without waiting, up to the first that finds no room.
fn try_put(
    queue: &BatchQueue<PyItem>,
    items: &mut impl Source<PyItem>,
    is_awaited: &dyn Fn(Line) -> bool,
    awaits_any: bool,
) -> Result<(), TryProduceError<PyItem>> {
    if awaits_any {
        items.try_for_each(|item| queue.try_produce(item, None, is_awaited))
    } else {
        queue.flow.try_produce_many(items)
    }
}

/// The items of a list or a tuple, by index: another thread may change a list while this one waits
/// for space.
struct Items<'a, 'py> {
    from: &'a Sequence<'py>,
    /// Index of the next item to read.
    read: usize,
    end: usize,
}

impl<'py> Items<'_, 'py> {
    #[inline]
    fn object(&mut self) -> Option<Bound<'py, PyAny>> {
        if self.read >= self.end {
            return None;
        }
        let item = match self.from {
            Sequence::List(list) => list.get_item(self.read),
            Sequence::Tuple(tuple) => tuple.get_item(self.read),
        };
        let item = item.ok()?;
        self.read += 1;
        Some(item)
    }
}

impl Iterator for Items<'_, '_> {
    type Item = PyItem;

    #[inline]
    fn next(&mut self) -> Option<PyItem> {
        self.object().map(PyItem::new)
    }
}

impl Source<PyItem> for Items<'_, '_> {
    fn left(&mut self) -> usize {
        self.end = self.end.min(self.from.len());
        self.end.saturating_sub(self.read)
    }
}
