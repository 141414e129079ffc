//! Put times: when the items of a partition were put.
//!
//! A clock takes longer to read than an item to put, so only the first item of an open segment, or
//! of a run of puts, is marked with the time; those behind it count as just as old. A batch mostly
//! begins with such an item.

use std::collections::VecDeque;

use crate::flow::desk::lanes::Lanes;
use crate::flow::partition::Partition;
use crate::flow::partition::gate::Gate;
use crate::observe::measures;
use crate::sync::{Duration, Instant, now};

/// More would only be needed where many batches wait for their handler.
const MOST_MARKS: usize = 64;

/// From this number on, marks that are close together are left out.
const MANY_MARKS: usize = 32;

/// Which items of so many types are settled is quickly found out.
const FEW_LANES: usize = 8;

/// Positions in the order of the partition, ascending, and when the item there was put: the items
/// up to the next position are at most as old.
#[derive(Debug, Default)]
pub(super) struct PutTimes(VecDeque<(u64, Instant)>);

impl PutTimes {
    pub(super) fn mark(&mut self, position: u64, now: Instant) {
        if self.0.len() >= MANY_MARKS && self.is_close(now) {
            return;
        }
        match self.0.back_mut() {
            Some((last, time)) if *last == position => *time = now,
            _ => self.0.push_back((position, now)),
        }
        if self.0.len() > MOST_MARKS {
            self.thin_out();
        }
    }

    /// Whether a mark would be close to the last one, as seen from the first: without it, items
    /// count as older than they are by a small part of the time that the oldest has waited.
    #[cold]
    fn is_close(&self, now: Instant) -> bool {
        let since = |mark: Option<&(u64, Instant)>| {
            mark.map_or(Duration::ZERO, |&(_, time)| now.saturating_duration_since(time))
        };
        since(self.0.back()) * 32 < since(self.0.front())
    }

    /// Forgets every second mark, but not the newest.
    #[cold]
    fn thin_out(&mut self) {
        let mut keep = self.0.len().is_multiple_of(2);
        self.0.retain(|_| {
            keep = !keep;
            keep
        });
    }

    /// Forgets what is older than all items that are not settled.
    fn forget(&mut self, settled: u64) {
        while self.0.get(1).is_some_and(|&(next, _)| next <= settled) {
            self.0.pop_front();
        }
    }

    /// When the item at a position was put, or before.
    fn time_of(&mut self, position: u64) -> Instant {
        self.known(position).unwrap_or_else(|| {
            // Put before a handler of the type lingered, in loom.
            let time = now();
            self.0.push_front((position, time));
            time
        })
    }

    /// The same, if there is a mark.
    fn known(&self, position: u64) -> Option<Instant> {
        let after = self.0.partition_point(|&(start, _)| start <= position);
        after.checked_sub(1).and_then(|at| self.0.get(at)).map(|&(_, time)| time)
    }
}

/// Whether a put of so many items began a segment. After the last item of one, the open segment is
/// empty.
#[inline]
pub(super) fn begins_segment<T>(gate: &Gate<T>, put: usize) -> bool {
    gate.open.len() <= put && (!gate.open.is_empty() || put > 1 || gate.segment_size == 1)
}

impl<T> Partition<T> {
    /// Under the gate, after a put of so many items, where items do not linger.
    #[inline]
    pub(super) fn note_time(&self, gate: &Gate<T>, put: usize) {
        if begins_segment(gate, put) && measures() {
            let now = now();
            self.linger.lock().times.mark(gate.pushed() - put as u64, now);
        }
    }

    /// When the first item of a lane's next batch was put, or before; `None` if that was tried
    /// before. For the thread inside, or one that holds the desk where the batch is posted.
    pub(in crate::flow) fn put_time(
        &self,
        lanes: &Lanes<T>,
        lane: usize,
        has_one_type: bool,
    ) -> Option<Instant> {
        let taken = self.taken();
        let position = lanes.first_untried(lane, taken, has_one_type)?;
        let mut linger = self.linger.lock();
        let times = &mut linger.times;
        if lanes.count() <= FEW_LANES || times.0.len() >= MANY_MARKS {
            times.forget(lanes.completed(taken));
        }
        Some(times.time_of(position))
    }

    /// When the oldest item was put that no call has had, or before; `None` if there is none.
    pub(crate) fn oldest_put(&self, has_one_type: bool) -> Option<Instant> {
        let lanes = self.lanes.lock();
        let (taken, pushed) = (self.taken(), self.gate.lock().pushed());
        let queued = (pushed > taken).then_some(taken);
        let held = lanes.first_untried_of_all(taken, has_one_type);
        let position = queued.into_iter().chain(held).min()?;
        self.linger.lock().times.known(position)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_item_counts_as_older_than_it_is_by_an_eighth_of_the_whole_wait_at_most(
            gaps in prop::collection::vec(1..5_u64, 1..2_000),
        ) {
            let (start, mut times) = (Instant::now(), PutTimes::default());
            let at = |second: usize| start + Duration::from_secs(second as u64);
            let mut marks = Vec::new();
            for (second, gap) in gaps.iter().enumerate() {
                let position = marks.last().map_or(0, |(position, _)| position + gap);
                times.mark(position, at(second));
                marks.push((position, second));
            }
            let error = gaps.len() / 8;
            for (position, second) in marks {
                let found = times.known(position).expect("the first mark is kept");
                prop_assert!(found <= at(second) && found >= at(second.saturating_sub(error)));
            }
            prop_assert!(times.0.len() <= MOST_MARKS);
        }
    }

    #[test]
    fn the_mark_of_the_oldest_item_is_kept() {
        let (start, mut times) = (Instant::now(), PutTimes::default());
        for second in 0..20 {
            times.mark(10 * second, start + Duration::from_secs(second));
        }
        times.forget(105);
        assert_eq!(times.0.front(), Some(&(100, start + Duration::from_secs(10))));
        assert_eq!(times.time_of(109), start + Duration::from_secs(10));
        assert_eq!(times.time_of(110), start + Duration::from_secs(11));
    }
}
