//! The argument of a handler call: a batch, or dead letters.

use std::any::Any;
use std::fmt;
use std::mem::needs_drop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::flow::segments::{KEPT_CAPACITY, Segments};
use crate::item::{Item, weight_of};
use crate::sync::{Arc, panicking};

/// Items of one type from one partition, in order, in the segments that carried them.
#[derive(Debug)]
pub struct Batch<T> {
    segments: Segments<T>,
    len: usize,
    last_attempt: bool,
    /// Whether a failure of this call only leads to halving.
    before_halves: bool,
    /// Whether items that fail for good go to a handler of dead letters.
    has_dead_letter: bool,
    /// Items that producers took back during this call, by weight. A batch never has more than fit.
    withdrawn: u32,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self {
            segments: Segments::new(),
            len: 0,
            last_attempt: true,
            before_halves: false,
            has_dead_letter: false,
            withdrawn: 0,
        }
    }
}

impl<T> Batch<T> {
    /// Returns the number of items in the batch, by weight.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether all items have been taken out.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a failure of this call is final. Otherwise a handler that fails and leaves all items
    /// in the batch is called again.
    pub fn is_last_attempt(&self) -> bool {
        self.last_attempt
    }

    /// Whether a partial failure is final: either this [is the last
    /// attempt](Self::is_last_attempt), or the next step would only halve the batch, to find out
    /// what the handler already reports.
    pub fn is_last_for_a_part(&self) -> bool {
        self.last_attempt || self.before_halves
    }

    /// Whether items that fail for good go to a handler of dead letters, if they are left in the
    /// batch.
    pub fn has_dead_letter(&self) -> bool {
        self.has_dead_letter
    }

    pub(crate) fn set_attempt(&mut self, last: bool, before_halves: bool, has_dead_letter: bool) {
        (self.last_attempt, self.before_halves) = (last, before_halves);
        (self.has_dead_letter, self.withdrawn) = (has_dead_letter, 0);
    }

    /// Drops all items except those at `positions`, as [`keep`](Self::keep) does. The producers of
    /// the dropped items took them back: they count as consumed, whatever happens to the rest.
    #[cfg(feature = "python")]
    pub(crate) fn withdraw_others(&mut self, positions: &[usize])
    where
        T: Item,
    {
        self.withdrawn += u32::try_from(self.len - positions.len()).unwrap_or(u32::MAX);
        self.keep(positions);
    }

    pub(crate) fn withdrawn(&self) -> usize {
        self.withdrawn as usize
    }

    /// Returns an iterator over the items, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments.iter().flatten()
    }

    /// Takes all items out, in order. Items left in the iterator when it is dropped are dropped
    /// too.
    pub fn drain(&mut self) -> Drain<'_, T> {
        self.len = 0;
        let left = self.segments.iter().map(Vec::len).sum();
        Drain { segments: self.segments.iter_mut(), current: None, left }
    }

    /// Drops all items except those at `positions`, which are ascending and counted by weight from
    /// 0. An item that keeps only some of its positions is [cut](Item::cut).
    ///
    /// # Panics
    /// If a position is not less than [`len`](Self::len), or not greater than the one before it.
    pub fn keep(&mut self, positions: &[usize])
    where
        T: Item,
    {
        let is_sorted = positions.is_sorted_by(|first, second| first < second);
        assert!(is_sorted, "the positions are not in ascending order: {positions:?}");
        if let Some(last) = positions.last() {
            assert!(*last < self.len, "the batch has {} items, and none at {last}", self.len);
        }
        self.len = 0;
        let (mut kept, mut at, mut wanted) = (Vec::new(), 0, positions);
        let mut panics = DropPanics::default();
        for item in self.segments.iter_mut().flat_map(|segment| segment.drain(..)) {
            let weight = item.weight();
            let here = wanted.partition_point(|&position| position < at + weight);
            let (inside, after) = wanted.split_at(here);
            wanted = after;
            if inside.len() == weight {
                kept.push(item);
            } else if inside.is_empty() {
                panics.drop_all(std::iter::once(item));
            } else {
                keep_parts(item, inside.iter().map(|position| position - at), &mut kept);
            }
            at += weight;
        }
        self.segments = Segments::new();
        self.push_segment(kept, positions.len());
        panics.resume();
    }

    /// Like [`drain`](Self::drain), but by segment, for loops that cannot afford a segment check
    /// per item.
    #[cfg(feature = "python")]
    pub(crate) fn drain_segments(&mut self) -> impl Iterator<Item = std::vec::Drain<'_, T>> {
        self.len = 0;
        self.segments.iter_mut().map(|segment| segment.drain(..))
    }

    /// Returns the segments, for reuse by a later take.
    pub(crate) fn into_segments(self) -> Segments<T> {
        self.segments
    }

    pub(crate) fn push_segment(&mut self, segment: Vec<T>, weight: usize) {
        self.len += weight;
        self.segments.push(segment);
    }

    /// Adds an item. Starts a new segment from `room` when the last one reaches the size that a
    /// split should have to copy at most.
    pub(crate) fn push(&mut self, item: T, weight: usize, room: impl FnOnce() -> Vec<T>) {
        self.len += weight;
        match self.segments.last_mut() {
            Some(segment) if segment.len() < KEPT_CAPACITY => segment.push(item),
            _ => {
                let mut segment = room();
                segment.push(item);
                self.segments.push(segment);
            }
        }
    }

    /// Takes `most` items off the front, or all if there are fewer or if reading a weight panics.
    /// The last item may exceed the limit: its excess weight is returned, and counts as left
    /// behind.
    pub(crate) fn split_front(&mut self, most: usize) -> (Self, usize)
    where
        T: Item,
    {
        if self.len <= most {
            return (std::mem::take(self), 0);
        }
        let Ok((whole, last, len)) = catch_unwind(AssertUnwindSafe(|| self.find_end(most))) else {
            return (std::mem::take(self), 0);
        };
        let mut segments: Segments<T> = self.segments.drain(..whole).collect();
        if let (Some(last), Some(segment)) = (last, self.segments.first_mut()) {
            let rest = segment.split_off(last + 1);
            if rest.is_empty() {
                segments.push(self.segments.remove(0));
            } else {
                segments.push(std::mem::replace(segment, rest));
            }
        }
        self.len -= most;
        (Self { segments, len: most, ..Self::default() }, len - most)
    }

    /// Returns where the first `most` items end: the number of whole segments, the index of the
    /// last item in the next segment if some of it belongs to them, and their weight.
    fn find_end(&self, most: usize) -> (usize, Option<usize>, usize)
    where
        T: Item,
    {
        let (mut len, mut whole) = (0, 0);
        for weight in self.segments.iter().map(|segment| weight_of(segment)) {
            if len + weight > most {
                break;
            }
            len += weight;
            whole += 1;
        }
        let next = self.segments.get(whole).filter(|_| len < most);
        let last = next.map(|segment| {
            let is_last = |item: &T| {
                len += item.weight();
                len >= most
            };
            segment.iter().position(is_last).unwrap_or(segment.len() - 1)
        });
        (whole, last, len)
    }

    /// Removes the last item. Its weight still counts.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.segments.last_mut()?.pop()
    }

    /// Puts back an item that [`pop`](Self::pop) removed, or the first part of it.
    pub(crate) fn push_back(&mut self, item: T) {
        if let Some(segment) = self.segments.last_mut() {
            segment.push(item);
        }
    }

    /// Puts an item whose weight is already counted at the front.
    pub(crate) fn push_front(&mut self, item: T) {
        self.segments.insert(0, vec![item]);
    }

    /// Subtracts the weight of a lost item.
    pub(crate) fn forget(&mut self, weight: usize) {
        self.len -= weight;
    }

    /// Moves the first half of a batch of 2 items or more into `first`: the largest power of two
    /// below its length, because the bound in `flow/call.rs` would not hold for exact halves. If
    /// this panics, one item is lost, and the others are in either batch.
    pub(crate) fn halve_into(&mut self, first: &mut Self)
    where
        T: Item,
    {
        let excess;
        (*first, excess) = self.split_front(1 << (self.len - 1).ilog2());
        if excess > 0
            && let Some(last) = first.pop()
        {
            let weight = last.weight() - excess;
            let (end, rest) = last.cut(weight);
            first.push_back(end);
            self.push_front(rest);
        }
    }

    /// Appends the items of another batch.
    pub(crate) fn append(&mut self, other: Self) {
        self.len += other.len;
        self.segments.extend(other.segments);
    }
}

/// Cuts the parts at `positions` out of an item that has other positions, too.
fn keep_parts<T: Item>(item: T, positions: impl Iterator<Item = usize>, kept: &mut Vec<T>) {
    let (mut rest, mut cut_off) = (Some(item), 0);
    let mut positions = positions.peekable();
    while let Some(first) = positions.next() {
        let mut end = first + 1;
        while positions.next_if_eq(&end).is_some() {
            end += 1;
        }
        for (until, is_kept) in [(first, false), (end, true)] {
            let Some(item) = rest.take() else { return };
            let weight = until - cut_off;
            let part = if weight == item.weight() {
                Some(item)
            } else if weight == 0 {
                rest = Some(item);
                None
            } else {
                let (part, others) = item.cut(weight);
                rest = Some(others);
                Some(part)
            };
            if is_kept {
                kept.extend(part);
            }
            cut_off = until;
        }
    }
}

/// The items of a batch, in order. The exact length is known.
#[derive(Debug)]
pub struct Drain<'a, T> {
    segments: std::slice::IterMut<'a, Vec<T>>,
    current: Option<std::vec::Drain<'a, T>>,
    left: usize,
}

impl<T> Iterator for Drain<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        loop {
            if let Some(item) = self.current.as_mut().and_then(Iterator::next) {
                self.left -= 1;
                return Some(item);
            }
            self.current = Some(self.segments.next()?.drain(..));
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> Drop for Drain<'_, T> {
    fn drop(&mut self) {
        let mut panics = DropPanics::default();
        self.current.take().into_iter().for_each(|current| panics.drop_all(current));
        for segment in &mut self.segments {
            panics.clear(segment);
        }
        panics.resume();
    }
}

impl<T> ExactSizeIterator for Drain<'_, T> {}

// Dropping items, some of which may panic: the drop of an item is user code.
//
// A panic that unwinds through a segment drops its remaining items, and a second panic among them
// aborts the process. So the panic of each item is caught here, and the rest is dropped afterwards.
// Items without drop glue cost nothing.

/// The payload of a panic.
pub(crate) type PanicCause = Box<dyn Any + Send>;

/// The panics of dropped items.
#[derive(Debug, Default)]
pub(crate) struct DropPanics {
    items: u64,
    first: Option<PanicCause>,
}

impl DropPanics {
    pub(crate) fn drop_all<T>(&mut self, mut items: impl Iterator<Item = T>) {
        if !needs_drop::<T>() {
            return items.for_each(drop);
        }
        while let Err(cause) = catch_unwind(AssertUnwindSafe(|| items.by_ref().for_each(drop))) {
            self.items += 1;
            self.first.get_or_insert(cause);
        }
    }

    /// Empties a segment, which keeps its capacity.
    #[inline]
    pub(crate) fn clear<T>(&mut self, segment: &mut Vec<T>) {
        if needs_drop::<T>() {
            self.drop_all(segment.drain(..));
        } else {
            segment.clear();
        }
    }

    pub(crate) fn drop_batch<T>(&mut self, batch: Batch<T>) {
        for mut segment in batch.into_segments() {
            self.clear(&mut segment);
        }
    }

    /// Returns the number of items that panicked and the message of the first, or `None` if none
    /// did.
    pub(crate) fn report(self) -> Option<(u64, String)> {
        self.first.map(|cause| (self.items, message(&cause)))
    }

    /// Resumes the panic of the first item, unless the thread is already unwinding.
    fn resume(self) {
        if let Some(cause) = self.first
            && !panicking()
        {
            resume_unwind(cause);
        }
    }
}

/// Returns the message of a panic.
pub(crate) fn message(cause: &PanicCause) -> String {
    let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| cause.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

// Failures of calls, and the items that failed for good.

/// Why a handler failed to handle a batch or part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The message for the log.
    pub message: String,
    /// Whether the failure has already been reported; if not, the queue logs it.
    pub reported: bool,
    /// Whether a retry may help. A batch that lost items is never retried.
    pub retry: bool,
    /// Whether only the items still in the batch failed, and those taken out were handled.
    /// Otherwise all of them failed.
    pub in_part: bool,
    /// The error itself, for a handler of dead letters.
    pub cause: Option<Cause>,
}

impl Failure {
    /// Creates a failure that the queue logs and may retry.
    pub fn new(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { message, reported: false, retry: true, in_part: false, cause: None }
    }

    /// Creates a failure of the items that are still in the batch. Those that the handler took out,
    /// with [`Batch::drain`] or [`Batch::keep`], count as consumed. The queue logs the failure, and
    /// may retry the failed items, but does not halve them.
    pub fn of_rest(message: impl Into<String>) -> Self {
        Self { in_part: true, ..Self::new(message) }
    }

    /// Creates a failure that the queue logs and does not retry.
    pub fn last(message: impl Into<String>) -> Self {
        Self { retry: false, ..Self::new(message) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The error that made items fail, for the handler that gets them as [`DeadLetters`].
#[derive(Clone)]
pub struct Cause(Arc<dyn Any + Send + Sync>);

impl Cause {
    /// Wraps an error.
    pub fn new(error: impl Any + Send + Sync) -> Self {
        Self(Arc::new(error))
    }

    /// Returns the error if it is of type `E`.
    pub fn downcast_ref<E: Any>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cause").finish_non_exhaustive()
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Cause {}

/// Items that failed for good in one call; of one type, unless the queue has a consumer.
#[derive(Debug)]
pub struct DeadLetters<T> {
    /// The items, in order.
    pub items: Batch<T>,
    /// Why the last attempt failed.
    pub failure: Failure,
    /// The number of attempts, including the first.
    pub attempts: u32,
}

#[cfg(all(test, not(loom)))]
mod drop_items_tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// Counts drops. Some of them panic, without the panic hook's message.
    struct Fragile(Rc<Cell<usize>>, bool);

    impl Drop for Fragile {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            if self.1 {
                resume_unwind(Box::new("fragile"));
            }
        }
    }

    fn fragile(dropped: &Rc<Cell<usize>>) -> Vec<Fragile> {
        (0..10).map(|number| Fragile(dropped.clone(), number % 3 == 0)).collect()
    }

    #[test]
    fn each_item_is_dropped_once_whatever_others_do() {
        let (dropped, mut panics) = (Rc::default(), DropPanics::default());
        let mut segment = fragile(&dropped);
        let capacity = segment.capacity();
        panics.clear(&mut segment);
        assert_eq!((segment.len(), segment.capacity(), dropped.get()), (0, capacity, 10));
        let mut batch = Batch::default();
        batch.push_segment(fragile(&dropped), 10);
        batch.push_segment(fragile(&dropped), 10);
        panics.drop_batch(batch);
        assert_eq!(dropped.get(), 30);
        assert_eq!(panics.report(), Some((12, "fragile".to_owned())));
    }

    #[test]
    fn a_drain_of_a_batch_drops_every_item_before_it_panics() {
        let dropped = Rc::default();
        let mut batch = Batch::default();
        batch.push_segment(fragile(&dropped), 10);
        batch.push_segment(fragile(&dropped), 10);
        let drops = AssertUnwindSafe(|| drop(batch.drain()));
        assert_eq!(message(&catch_unwind(drops).unwrap_err()), "fragile");
        assert_eq!(dropped.get(), 20);
    }

    #[test]
    fn nothing_is_reported_where_no_item_panics() {
        let mut panics = DropPanics::default();
        panics.drop_all(["item".to_owned()].into_iter());
        panics.clear(&mut vec![1, 2]);
        assert_eq!(panics.report(), None);
    }
}
