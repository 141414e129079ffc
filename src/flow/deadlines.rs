//! Deadlines of shutdowns, and the time of a failing batch's last try before them.
//!
//! During a shutdown, a failed batch backs off as before, while there is time. Shortly before the
//! deadline it is tried once more. What fails then has failed for good, early enough for its dead
//! letter to be kept.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `times` | shutdowns, and threads that announce one | drain threads that have seen news |
//! | `news` | the same, and a close, after the change | drain threads: a cycle, before sleep |

use crate::sync::{AtomicUsize, Deadline, Duration, Instant, Mutex, Ordering, now};

/// The time reserved for a last try in addition to two calls.
const SPARE: Duration = Duration::from_millis(50);

/// Returns how long before a deadline the first of several waiting batches gets its last try. Those
/// behind it may fail as well, one after the other. `each` is the expected time of one call.
pub(crate) fn reserve(batches: usize, each: Duration) -> Duration {
    let batches = u32::try_from(batches).unwrap_or(u32::MAX).max(1);
    SPARE.saturating_add((2 * each + SPARE).saturating_mul(batches))
}

#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    times: Mutex<Times>,
    news: AtomicUsize,
}

#[derive(Debug, Default)]
struct Times {
    /// The times of the shutdowns that wait.
    waiting: Vec<Time>,
    /// The time of a future shutdown.
    announced: Option<Time>,
}

/// The begin and end of a shutdown's wait.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Time {
    began: Instant,
    deadline: Instant,
}

impl Time {
    fn until(deadline: Instant) -> Self {
        Self { began: now(), deadline }
    }

    fn whole(self) -> Duration {
        self.deadline.saturating_duration_since(self.began)
    }

    fn last_try(self, reserve: Duration) -> LastTry {
        let whole = self.whole();
        LastTry(Deadline::since(self.began, whole.saturating_sub(reserve).max(whole / 2)))
    }
}

/// The time of a failing batch's last try before a shutdown ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LastTry(Deadline);

impl LastTry {
    /// Whether the last try is due within `time`. In loom, which has no clock, it is due.
    pub(crate) fn comes_within(self, time: Duration) -> bool {
        cfg!(loom) || self.0.time_left().is_none_or(|left| left <= time)
    }

    /// Returns the end of a wait: `due`, or the last try if that is earlier.
    pub(crate) fn or_sooner(self, due: Deadline) -> Deadline {
        due.min(self.0)
    }
}

/// A shutdown that waits, until it is dropped.
#[must_use = "the deadline counts until this is dropped"]
pub(crate) struct HasTime<'a> {
    times: &'a Mutex<Times>,
    time: Time,
}

impl Drop for HasTime<'_> {
    fn drop(&mut self) {
        let waiting = &mut self.times.lock().waiting;
        if let Some(at) = waiting.iter().position(|time| *time == self.time) {
            waiting.swap_remove(at);
        }
    }
}

impl Deadlines {
    /// Begins a shutdown, which waits until `deadline` while the result lives. It replaces the
    /// announced one. The caller publishes the news.
    pub(crate) fn begin(&self, deadline: Option<Instant>) -> Option<HasTime<'_>> {
        let mut times = self.times.lock();
        times.announced = None;
        let time = Time::until(deadline?);
        times.waiting.push(time);
        Some(HasTime { times: &self.times, time })
    }

    /// Announces a future shutdown with the same deadline. The caller publishes the news.
    pub(crate) fn announce(&self, deadline: Option<Instant>) {
        self.times.lock().announced = deadline.map(Time::until);
    }

    /// Publishes that what drain threads have read may have changed. The caller wakes them all.
    pub(crate) fn publish_news(&self) {
        // Release: pairs with the Acquire in `news`.
        self.news.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of the last news. A drain thread reads it before anything else here.
    pub(crate) fn news(&self) -> usize {
        // Acquire: pairs with the Release in `publish_news`.
        self.news.load(Ordering::Acquire)
    }

    /// Like [`news`](Self::news), for a caller that has fenced.
    pub(crate) fn news_after_fence(&self) -> usize {
        // Relaxed: ordered by the caller's fence.
        self.news.load(Ordering::Relaxed)
    }

    /// Returns when a batch gets its last try: `reserve` before the nearest deadline, but not in
    /// the first half of that shutdown's time; or `None` while no shutdown has a deadline.
    pub(crate) fn last_try(&self, reserve: impl FnOnce() -> Duration) -> Option<LastTry> {
        if self.news() == 0 {
            return None;
        }
        let times = self.times.lock();
        let mut times = times.waiting.iter().chain(&times.announced).peekable();
        times.peek()?;
        let reserve = reserve();
        times.map(|time| time.last_try(reserve)).min()
    }

    /// Whether a shutdown has less than a tenth of its time left.
    pub(crate) fn is_short_of_time(&self) -> bool {
        let times = self.times.lock();
        times.waiting.iter().chain(&times.announced).any(|time| {
            let left = time.deadline.saturating_duration_since(now());
            left <= time.whole() / 10
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::observe::CallTime;
    use crate::testing::clock::StoppedClock;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns how long before the end of a minute the last try is made.
    fn before_the_end(reserve: Duration) -> Duration {
        let deadlines = Deadlines::default();
        let _minute = deadlines.begin(Some(now() + MINUTE));
        deadlines.publish_news();
        MINUTE.saturating_sub(deadlines.last_try(|| reserve).unwrap().0.time_left().unwrap())
    }

    #[test]
    fn each_batch_that_waits_has_the_time_of_two_calls_but_all_not_more_than_half() {
        let _clock = StoppedClock::stop();
        assert_eq!(before_the_end(reserve(0, Duration::ZERO)), 2 * SPARE);
        assert_eq!(before_the_end(reserve(1, SECOND)), 2 * SECOND + 2 * SPARE);
        assert_eq!(before_the_end(reserve(10, SECOND)), 20 * SECOND + 11 * SPARE);
        assert_eq!(before_the_end(reserve(1, MINUTE)), MINUTE / 2);
        assert_eq!(before_the_end(reserve(usize::MAX, MINUTE)), MINUTE / 2);
    }

    #[test]
    fn quick_failures_after_long_calls_leave_the_time_of_a_long_call() {
        let mut calls = CallTime::default();
        assert_eq!(calls.expected(), Duration::ZERO);
        (0..100).for_each(|_| calls.add(SECOND));
        (0..100).for_each(|_| calls.add(SECOND / 1_000));
        assert!((SECOND * 99 / 100..=SECOND).contains(&calls.expected()), "{calls:?}");
        calls.add(MINUTE);
        assert_eq!(calls.expected(), MINUTE);
    }

    #[test]
    fn the_nearest_deadline_counts_and_an_announced_one_only_until_a_shutdown_begins() {
        let clock = StoppedClock::stop();
        let deadlines = Deadlines::default();
        let left = || deadlines.last_try(|| SPARE).map(|last| last.0.time_left().unwrap() + SPARE);
        deadlines.announce(Some(now() + SECOND));
        deadlines.publish_news();
        assert_eq!(left(), Some(SECOND));
        let long = deadlines.begin(Some(now() + 60 * SECOND));
        assert_eq!(left(), Some(60 * SECOND));
        let short = deadlines.begin(Some(now() + 10 * SECOND));
        assert_eq!(left(), Some(10 * SECOND));
        clock.advance(8 * SECOND);
        assert!(!deadlines.is_short_of_time());
        clock.advance(SECOND);
        assert!(deadlines.is_short_of_time());
        drop(short);
        assert_eq!(left(), Some(51 * SECOND));
        drop(long);
        assert_eq!(left(), None);
    }
}
