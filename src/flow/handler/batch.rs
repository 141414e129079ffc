//! What one call of a handler gets.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::flow::handler::drop_items::DropPanics;
use crate::flow::partition::segment::Segments;
use crate::flow::partition::segment_pool::KEPT_CAPACITY;
use crate::item::{Item, weight_of};

/// Items of one type from one partition, in order, in the segments that carried them.
#[derive(Debug)]
pub struct Batch<T> {
    segments: Segments<T>,
    len: usize,
    last_attempt: bool,
    /// Whether a failure of this call leads to halves only.
    before_halves: bool,
    /// Whether a handler of dead letters gets what fails for good.
    has_dead_letter: bool,
    /// What was taken back in this call, by weight. A batch has no more items than fit.
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
    /// The number of items in the batch, by weight.
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

    /// Whether a failure in part is final: as [`is_last_attempt`](Self::is_last_attempt), or
    /// because a batch would only be halved after this call, to find what the handler has found.
    pub fn is_last_for_a_part(&self) -> bool {
        self.last_attempt || self.before_halves
    }

    /// Whether a handler of dead letters gets what fails for good, if the handler leaves it in the
    /// batch.
    pub fn has_dead_letter(&self) -> bool {
        self.has_dead_letter
    }

    pub(crate) fn set_attempt(&mut self, last: bool, before_halves: bool, has_dead_letter: bool) {
        (self.last_attempt, self.before_halves) = (last, before_halves);
        (self.has_dead_letter, self.withdrawn) = (has_dead_letter, 0);
    }

    /// Drops all items but those at `positions`, which is as for [`keep`](Self::keep): their
    /// producers took them back. They count as consumed, whatever happens to the rest.
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

    /// The items, in order.
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

    /// Drops all items but those at `positions`, in ascending order and counted by weight from 0.
    /// An item of which only some positions are kept is [cut](Item::cut).
    ///
    /// # Panics
    /// A position is not below [`len`](Self::len), or not above the one before it.
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

    /// Like [`drain`](Self::drain), but by segment, for loops that a check of the segment for each
    /// item would slow down.
    #[cfg(feature = "python")]
    pub(crate) fn drain_segments(&mut self) -> impl Iterator<Item = std::vec::Drain<'_, T>> {
        self.len = 0;
        self.segments.iter_mut().map(|segment| segment.drain(..))
    }

    /// The segments, for reuse by a later take.
    pub(crate) fn into_segments(self) -> Segments<T> {
        self.segments
    }

    pub(crate) fn push_segment(&mut self, segment: Vec<T>, weight: usize) {
        self.len += weight;
        self.segments.push(segment);
    }

    /// Adds an item. A new segment comes from `room`, once the last one is so large that a split of
    /// it should not copy more.
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

    /// Takes `most` items off the front, or all if there are fewer, or if the weight of one panics.
    /// The last one may be heavier than that: its excess weight is returned, and counts as left
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

    /// Where the first `most` items end: the number of whole segments, the index of the last item
    /// in the next one if it belongs to them, and their weight.
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

    /// Takes the last item out of the segments. Its weight still counts.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.segments.last_mut()?.pop()
    }

    /// Puts an item back that [`pop`](Self::pop) took out, or the first part of it.
    pub(crate) fn push_back(&mut self, item: T) {
        if let Some(segment) = self.segments.last_mut() {
            segment.push(item);
        }
    }

    /// Puts an item at the front whose weight counts already.
    pub(crate) fn push_front(&mut self, item: T) {
        self.segments.insert(0, vec![item]);
    }

    /// Counts so much less weight: an item was lost.
    pub(crate) fn forget(&mut self, weight: usize) {
        self.len -= weight;
    }

    /// Moves the first half of a batch of 2 items or more into `first`, up to the largest power of
    /// two below its length. Of an exact half the bound in `desk/tries.rs` would not hold. If that
    /// panics, an item is lost, and the others are in either of the two.
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

    /// Adds the items of another batch behind these.
    pub(crate) fn append(&mut self, other: Self) {
        self.len += other.len;
        self.segments.extend(other.segments);
    }
}

/// Cuts the parts at `positions` out of an item, which has others too.
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
