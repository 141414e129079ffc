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

/// Finds the buckets of one time after the other.
#[derive(Debug)]
pub struct BucketFinder<B> {
    buckets: B,
    span: Span,
    /// Times around the last one whose buckets have the same start.
    cell: Range<i64>,
    start: i64,
}

impl<B: Borrow<Buckets>> BucketFinder<B> {
    /// Creates a finder that has found nothing yet.
    pub fn new(buckets: B) -> Self {
        let span = buckets.borrow().span_at(0);
        Self { buckets, span, cell: 0..0, start: 0 }
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
        if !self.span.times.contains(&time) {
            self.span = buckets.span_at(time);
        }
        self.cell = self.span.cell(buckets, time);
        self.start = self.span.start(buckets, time);
    }
}

/// Times with one UTC offset.
#[derive(Debug, Clone)]
struct Span {
    times: Range<i64>,
    /// Times behind a multiple of the width, added to the time and taken modulo the width.
    phase: i64,
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

    fn span_at(&self, time: i64) -> Span {
        let Some((zone, per_second)) = &self.zone else {
            return Span {
                times: i64::MIN..i64::MAX,
                phase: (-self.offset).rem_euclid(self.width),
                regular_from: i64::MIN,
                carried: None,
            };
        };
        let span = zone.span_at(time.div_euclid(*per_second));
        let units = |seconds: i64| seconds.saturating_mul(*per_second);
        let phase = |offset| (units(offset) - self.offset).rem_euclid(self.width);
        let mut found = Span {
            times: span.from.map_or(i64::MIN, units)..span.until.map_or(i64::MAX, units),
            phase: phase(span.offset),
            regular_from: i64::MIN,
            carried: None,
        };
        if span.from.is_some() {
            let from = found.times.start;
            found.regular_from = from;
            let set_back = units(span.offset_before - span.offset);
            if set_back % self.width != 0 {
                let before = from.saturating_sub(1);
                // What the clock showed before it was set back has had its start.
                found.regular_from = from.saturating_add(set_back.max(0));
                let multiple = |time: i64, offset| {
                    (time.saturating_add(units(offset)).saturating_sub(self.offset))
                        .div_euclid(self.width)
                };
                if multiple(from, span.offset) > multiple(before, span.offset_before) {
                    // The clock jumped past a start.
                    found.carried = Some(from);
                }
            }
        }
        found
    }
}

impl Span {
    fn start(&mut self, buckets: &Buckets, time: i64) -> i64 {
        let multiple = time.saturating_sub(self.behind(buckets, time));
        if multiple >= self.regular_from {
            return multiple;
        }
        // The bucket began before the clock was changed.
        let before = self.times.start.saturating_sub(1);
        *self.carried.get_or_insert_with(|| buckets.start(before))
    }

    /// Times around this one whose buckets have the same start.
    fn cell(&self, buckets: &Buckets, time: i64) -> Range<i64> {
        let behind = self.behind(buckets, time);
        let start = time.saturating_sub(behind).max(self.times.start);
        let end = time.saturating_add(buckets.width - behind).min(self.times.end);
        start..end
    }

    /// How far a time is behind a multiple of the width on the clock.
    #[inline]
    fn behind(&self, buckets: &Buckets, time: i64) -> i64 {
        let rest = time.rem_euclid(buckets.width);
        let more = buckets.width - self.phase;
        if rest >= more { rest - more } else { rest + self.phase }
    }
}
