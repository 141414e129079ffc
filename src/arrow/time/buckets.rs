//! Buckets of time: equal spans on the clock of a zone, or of UTC.
//!
//! A bucket starts when the clock comes to a multiple of the width, or jumps past it, for the first
//! time. So a local day has 23 or 25 hours where the clock is changed, and every instant between
//! the starts of two neighbours is in the first of them. There is one exception: a change by a
//! whole number of buckets leaves them alone, so that the hour that a clock shows twice in autumn
//! is two hours.

use std::borrow::Borrow;
use std::ops::Range;

use super::zone::Zone;

/// Buckets of equal width, in the unit of a column of times.
#[derive(Debug, Clone)]
pub struct Buckets {
    width: i64,
    /// Where a bucket starts, counted from the epoch on the clock.
    offset: i64,
    /// The zone whose clock counts, and how many units a second has.
    zone: Option<(Zone, i64)>,
}

/// The multiples of a width on a clock whose UTC offset stays the same.
#[derive(Debug, Clone, Copy)]
pub(in crate::arrow) struct Grid {
    width: i64,
    /// What to add to a time before it is taken modulo the width.
    phase: i64,
}

/// Times with one UTC offset.
#[derive(Debug, Clone)]
struct Span {
    times: Range<i64>,
    grid: Grid,
    /// The bucket of every multiple from here on starts at that multiple.
    regular_from: i64,
    /// Where the buckets of the times before start; `None` where that is still to be found.
    carried: Option<i64>,
}

impl Buckets {
    /// Creates buckets of UTC.
    ///
    /// `width` is above 0, and `offset` from 0 up and below `width`.
    pub fn of_utc(width: i64, offset: i64) -> Self {
        Self { width, offset, zone: None }
    }

    /// Creates buckets on the clock of a zone.
    ///
    /// `width` is above 0, and `offset` from 0 up and below `width`.
    pub fn of_zone(width: i64, offset: i64, zone: Zone, per_second: i64) -> Self {
        Self { width, offset, zone: Some((zone, per_second)) }
    }

    /// The start of the bucket that a time is in.
    pub fn start(&self, time: i64) -> i64 {
        self.span_at(time).start(self, time)
    }

    /// The multiples of the width, if buckets always start there.
    pub(in crate::arrow) fn grid(&self) -> Option<Grid> {
        self.zone.is_none().then(|| self.grid_ahead(0))
    }

    /// The multiples of the width on a clock that is ahead of UTC.
    fn grid_ahead(&self, units: i64) -> Grid {
        Grid { width: self.width, phase: (units - self.offset).rem_euclid(self.width) }
    }

    fn span_at(&self, time: i64) -> Span {
        let Some((zone, per_second)) = &self.zone else {
            let (times, grid) = (i64::MIN..i64::MAX, self.grid_ahead(0));
            return Span { times, grid, regular_from: i64::MIN, carried: None };
        };
        let span = zone.span_at(time.div_euclid(*per_second));
        let units = |seconds: i64| seconds.saturating_mul(*per_second);
        let times = span.from.map_or(i64::MIN, units)..span.until.map_or(i64::MAX, units);
        let grid = self.grid_ahead(units(span.offset));
        if span.from.is_none() {
            return Span { times, grid, regular_from: i64::MIN, carried: None };
        }
        let (from, before) = (times.start, times.start.saturating_sub(1));
        let set_back = units(span.offset_before - span.offset);
        if set_back % self.width == 0 {
            return Span { times, grid, regular_from: from, carried: None };
        }
        // What the clock showed before it was set back has had its start.
        let regular_from = from.saturating_add(set_back.max(0));
        let multiple = |time: i64, offset| {
            time.saturating_add(units(offset)).saturating_sub(self.offset).div_euclid(self.width)
        };
        let jumps = multiple(from, span.offset) > multiple(before, span.offset_before);
        Span { times, grid, regular_from, carried: jumps.then_some(from) }
    }
}

impl Grid {
    /// From the last multiple up to a time to the next one.
    #[inline]
    pub(in crate::arrow) fn around(&self, time: i64) -> Range<i64> {
        if self.phase == 0 {
            let start = time.div_euclid(self.width).saturating_mul(self.width);
            return start..start.saturating_add(self.width);
        }
        let (rest, left) = (time.rem_euclid(self.width), self.width - self.phase);
        let behind = if rest >= left { rest - left } else { rest + self.phase };
        time.saturating_sub(behind)..time.saturating_add(self.width - behind)
    }
}

impl Span {
    fn start(&mut self, buckets: &Buckets, time: i64) -> i64 {
        let multiple = self.grid.around(time).start;
        if multiple >= self.regular_from {
            return multiple;
        }
        // The bucket began before the clock was changed.
        let before = self.times.start.saturating_sub(1);
        *self.carried.get_or_insert_with(|| buckets.start(before))
    }

    /// Times around this one whose buckets have the same start.
    fn cell(&self, time: i64) -> Range<i64> {
        let around = self.grid.around(time);
        around.start.max(self.times.start)..around.end.min(self.times.end)
    }
}

/// Finds the buckets of one time after the other.
#[derive(Debug)]
pub struct BucketFinder<B> {
    buckets: B,
    /// Those found last; the next takes the place of the oldest.
    spans: Vec<Span>,
    oldest: usize,
    /// Times around the last one whose buckets have the same start.
    cell: Range<i64>,
    start: i64,
}

/// Times in any order are mostly in the same few years, which have two spans each.
const SPANS: usize = 8;

impl<B: Borrow<Buckets>> BucketFinder<B> {
    /// Creates a finder that has found nothing yet.
    pub fn new(buckets: B) -> Self {
        Self { buckets, spans: Vec::new(), oldest: 0, cell: 0..0, start: 0 }
    }

    /// The start of the bucket that a time is in.
    #[inline]
    pub fn start(&mut self, time: i64) -> i64 {
        // Neighbouring times are mostly in the same bucket: a division per row would cost more than
        // everything else.
        if !self.cell.contains(&time) {
            self.find(time);
        }
        self.start
    }

    fn find(&mut self, time: i64) {
        let buckets = self.buckets.borrow();
        let known = self.spans.iter().position(|span| span.times.contains(&time));
        let index = known.unwrap_or_else(|| {
            let span = buckets.span_at(time);
            if self.spans.len() < SPANS {
                self.spans.push(span);
                self.spans.len() - 1
            } else {
                let index = self.oldest;
                self.oldest = (index + 1) % SPANS;
                self.spans[index] = span;
                index
            }
        });
        let span = &mut self.spans[index];
        self.cell = span.cell(time);
        self.start = span.start(buckets, time);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: i64 = 86_400;

    proptest! {
        /// What is remembered from other times changes nothing.
        #[test]
        fn a_finder_finds_what_the_buckets_say(
            name in prop::sample::select(vec!["America/New_York", "Australia/Lord_Howe", "+05:30"]),
            width in prop::sample::select(vec![1, 7_200, DAY, 7 * DAY, 300 * DAY]),
            times in prop::collection::vec(
                prop_oneof![
                    i64::MIN / 2..i64::MAX,
                    -DAY..DAY,
                    1_700_000_000..1_760_000_000_i64,
                ],
                1..60,
            ),
        ) {
            let zone = Zone::named(name).unwrap();
            let in_zone = Buckets::of_zone(width, width / 3, zone, 1);
            for buckets in [in_zone, Buckets::of_utc(width, 0)] {
                let mut finder = BucketFinder::new(&buckets);
                for &time in &times {
                    let start = finder.start(time);
                    prop_assert_eq!(start, buckets.start(time));
                    prop_assert!(start <= time);
                    prop_assert_eq!(buckets.start(start), start);
                }
            }
        }
    }
}
