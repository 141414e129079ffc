//! When lines are due about something that lasts: at a limit, then at double the distance each
//! time, and when it is over.

use crate::sync::{Duration, Instant};

/// What is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Say {
    Nothing,
    /// It has lasted for this long.
    Lasts(Duration),
}

/// What was said.
#[derive(Debug, Clone, Copy)]
struct Said {
    since: Instant,
    next: Instant,
}

/// Something that may last.
#[derive(Debug, Default)]
pub(super) struct Lasting(Option<Said>);

impl Lasting {
    /// Whether something was said about it, and its end was not.
    pub(super) fn is_reported(&self) -> bool {
        self.0.is_some()
    }

    /// Returns for how long it lasted if it was reported, and is over.
    pub(super) fn end(
        &mut self,
        now: Instant,
        is_over: impl Fn(Instant) -> bool,
    ) -> Option<Duration> {
        let said = self.0.filter(|said| is_over(said.since))?;
        self.0 = None;
        Some(now.saturating_duration_since(said.since))
    }

    /// It has lasted since then.
    pub(super) fn note(&mut self, since: Instant, limit: Duration, now: Instant) -> Say {
        let lasts = now.saturating_duration_since(since);
        let begun = self.0.map_or(since, |said| said.since);
        let is_due = self.0.map_or(lasts >= limit, |said| now >= said.next);
        if !is_due {
            return Say::Nothing;
        }
        // Whatever the time of this look: at the limit, twice the limit, four times the limit, ...
        let mut distance = limit;
        while begun + distance <= now {
            distance *= 2;
        }
        self.0 = Some(Said { since: begun, next: begun + distance });
        Say::Lasts(lasts)
    }

    /// When it must be checked again, if it lasts since then.
    pub(super) fn next(&self, since: Instant, limit: Duration) -> Instant {
        self.0.map_or(since + limit, |said| said.next)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn lines_come_at_the_limit_and_then_at_double_the_distance() {
        let (start, mut lasting) = (Instant::now(), Lasting::default());
        let mut said = Vec::new();
        for second in 0..=200 {
            if lasting.note(start, LIMIT, start + seconds(second)) != Say::Nothing {
                said.push(second);
            }
        }
        assert_eq!(said, [10, 20, 40, 80, 160]);
        assert_eq!(lasting.next(start, LIMIT), start + seconds(320));
    }

    #[test]
    fn a_late_look_says_how_long_it_has_lasted_by_then() {
        let (start, mut lasting) = (Instant::now(), Lasting::default());
        assert_eq!(lasting.note(start, LIMIT, start + seconds(9)), Say::Nothing);
        assert_eq!(lasting.next(start, LIMIT), start + LIMIT);
        assert_eq!(lasting.note(start, LIMIT, start + seconds(13)), Say::Lasts(seconds(13)));
        assert_eq!(lasting.note(start, LIMIT, start + seconds(19)), Say::Nothing);
        assert_eq!(lasting.note(start, LIMIT, start + seconds(26)), Say::Lasts(seconds(26)));
        assert_eq!(lasting.next(start, LIMIT), start + seconds(40));
    }

    #[test]
    fn only_the_end_of_what_was_reported_is_reported() {
        let (start, mut lasting) = (Instant::now(), Lasting::default());
        lasting.note(start, LIMIT, start + seconds(9));
        assert_eq!(lasting.end(start + seconds(10), |_| true), None);
        lasting.note(start, LIMIT, start + seconds(11));
        assert_eq!(lasting.end(start + seconds(12), |since| since != start), None);
        assert_eq!(lasting.end(start + seconds(12), |_| true), Some(seconds(12)));
        assert_eq!(lasting.end(start + seconds(13), |_| true), None);
    }
}
