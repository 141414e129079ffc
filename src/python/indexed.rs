//! Lists and tuples, from which items are taken in pieces.

use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::item::PyItem;
use super::pause::InterpreterPause;
use super::queue::refused;
use super::waiting::Tried;
use crate::{BatchQueue, NotIn};

/// Items that are put in with one look at the list.
const PIECE: usize = 1_024;

/// Pieces that are put in before an event loop gets its next turn: about a millisecond.
const PIECES: usize = 16;

/// A list or a tuple; not of a subclass, whose items are what its methods say.
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
        let mut accepted = 0;
        loop {
            let piece = self.piece(accepted);
            let wanted = piece.len();
            let mut items = piece.into_iter();
            let result = queue.produce_many(&mut items, deadline, &mut InterpreterPause(py));
            accepted += wanted - items.len();
            match result {
                Ok(()) if wanted == PIECE => {}
                Ok(()) => return Ok(accepted),
                Err(refusal) => return refused(py, refusal, accepted).map_or(Ok(accepted), Err),
            }
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
        let mut accepted = start;
        for _ in 0..PIECES {
            let piece = self.piece(accepted);
            let wanted = piece.len();
            let mut items = piece.into_iter();
            let result =
                if awaits_any { one_by_one(queue, &mut items, is_awaited) } else { queue.try_produce_many(&mut items) };
            accepted += wanted - items.len() - usize::from(result.is_err());
            if result.is_err() || wanted < PIECE {
                return Ok((accepted, Tried::of(py, result, accepted)?));
            }
        }
        Ok((accepted, Tried::Done(None)))
    }

    /// The items from `start` on, up to a piece of them: by index and anew for each piece, because another thread may
    /// change a list while this one waits for space.
    fn piece(&self, start: usize) -> Vec<PyItem> {
        match self {
            Self::List(list) => piece(start, list.len(), |index| list.get_item(index)),
            Self::Tuple(tuple) => piece(start, tuple.len(), |index| tuple.get_item(index)),
        }
    }
}

fn one_by_one(
    queue: &BatchQueue<PyItem>,
    items: &mut std::vec::IntoIter<PyItem>,
    is_awaited: &dyn Fn(usize) -> bool,
) -> Result<(), NotIn<PyItem>> {
    items.try_for_each(|item| queue.try_produce(item, None, is_awaited))
}

fn piece<'py>(start: usize, len: usize, item: impl Fn(usize) -> PyResult<Bound<'py, PyAny>>) -> Vec<PyItem> {
    let end = len.min(start + PIECE);
    let mut items = Vec::with_capacity(end.saturating_sub(start));
    // An error: without a GIL, another thread has made the list shorter meanwhile.
    items.extend((start..end).map_while(|index| item(index).ok()).map(PyItem::new));
    items
}
