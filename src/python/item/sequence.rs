//! Lists and tuples, from which items are put in as they are read.

use std::time::Instant;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};

use super::py_item::PyItem;
use crate::flow::bulk::Source;
use crate::python::errors::refused;
use crate::python::interpreter::InterpreterPause;
use crate::{BatchQueue, TryProduceError};

/// Items that are put in before an event loop gets its next turn: for about a millisecond.
const TURN: usize = 16_384;

/// A list or a tuple; not of a subclass, whose items are what its methods say.
pub(crate) enum Sequence<'py> {
    List(Bound<'py, PyList>),
    Tuple(Bound<'py, PyTuple>),
}

impl<'py> Sequence<'py> {
    pub(crate) fn of(items: &Bound<'py, PyAny>) -> Option<Self> {
        let Ok(list) = items.cast_exact::<PyList>() else {
            return items.cast_exact().ok().cloned().map(Self::Tuple);
        };
        // Without a GIL, whoever reads a list may wait for another thread, and inside the gates
        // nobody may wait.
        Some(if has_gil(items.py()) {
            Self::List(list.clone())
        } else {
            Self::Tuple(list.to_tuple())
        })
    }

    /// Puts all items in, up to the first that is refused; how many.
    pub(crate) fn produce(
        &self,
        py: Python<'_>,
        queue: &BatchQueue<PyItem>,
        deadline: Option<Instant>,
    ) -> PyResult<usize> {
        let mut items = self.items(0, usize::MAX);
        let result = queue.shared.produce_many(&mut items, deadline, &mut InterpreterPause(py));
        let accepted = items.read - usize::from(result.is_err());
        result.err().and_then(|refusal| refused(py, refusal, accepted)).map_or(Ok(accepted), Err)
    }

    /// Puts the items from `start` on in without waiting, up to the first that is not in
    /// immediately. Returns how many of all items are in then, and the result of the last try:
    /// `None` if the loop's turn ended before the items did.
    pub(crate) fn try_produce(
        &self,
        queue: &BatchQueue<PyItem>,
        start: usize,
        is_awaited: &dyn Fn(usize) -> bool,
        awaits_any: bool,
    ) -> (usize, Option<Result<(), TryProduceError<PyItem>>>) {
        let mut items = self.items(start, start.saturating_add(TURN));
        let result = if awaits_any {
            items.try_for_each(|item| queue.try_produce(item, None, is_awaited))
        } else {
            queue.shared.try_produce_many(&mut items)
        };
        let accepted = items.read - usize::from(result.is_err());
        let turn_ended = result.is_ok() && accepted < self.len();
        (accepted, (!turn_ended).then_some(result))
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
}

/// Whether threads with the interpreter take turns.
fn has_gil(py: Python<'_>) -> bool {
    static HAS_GIL: PyOnceLock<bool> = PyOnceLock::new();
    let ask =
        || py.import("sys").and_then(|sys| sys.getattr("_is_gil_enabled")?.call0()?.extract());
    // A Python that cannot be asked always has one.
    *HAS_GIL.get_or_init(py, || ask().unwrap_or(true))
}

/// The items of a list or a tuple, by index: another thread may change a list while this one waits
/// for space.
struct Items<'a, 'py> {
    from: &'a Sequence<'py>,
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
            Sequence::List(list) => list.get_item(self.read),
            Sequence::Tuple(tuple) => tuple.get_item(self.read),
        };
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
