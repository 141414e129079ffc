//! How long a drain thread with nothing to do rests and sleeps.

use crate::config::Config;
use crate::sync::{Duration, Instant};
use crate::threads::park::SleepKind;

/// Caps the doublings of the sleep, so that the shift cannot overflow.
const MAX_DOUBLINGS: u32 = 20;

const MIN_SLEEP: Duration = Duration::from_millis(1);

/// Returns what to do after the `empty_cycles`-th consecutive empty cycle, counted from 0.
///
/// After the first one, the thread rests for `min_idle`, so that items gather and reach their
/// handlers as one batch. After later ones it sleeps until the first item, for at most
/// `min(max(min_idle, 1 ms) · 2^n, max_idle)`, and then calls `on_idle` again.
pub(crate) fn after_empty_cycle(config: &Config, empty_cycles: u32) -> (SleepKind, Duration) {
    if empty_cycles == 0 && !config.min_idle.is_zero() {
        return (SleepKind::Rest, config.min_idle);
    }
    let doublings = empty_cycles.min(MAX_DOUBLINGS);
    let sleep = config.min_idle.max(MIN_SLEEP).saturating_mul(1 << doublings);
    (SleepKind::Sleep, sleep.min(config.max_idle.max(MIN_SLEEP)))
}

/// The number of consecutive lone cycles after which a thread stops resting.
const LONE_CYCLES: u32 = 4;

/// Counts consecutive cycles whose items arrived only after the preceding rest would have ended, so
/// that nothing gathered during it.
///
/// With a trickle of items, a rest costs one more wake-up per item: the thread wakes up from the
/// rest, finds nothing, and sleeps. So it sleeps immediately, until items arrive at shorter
/// intervals again.
#[derive(Debug, Default)]
pub(crate) struct LoneCycles {
    count: u32,
    /// The end of the last cycle with work, and the length of the rest after it.
    last: Option<(Instant, Duration)>,
}

impl LoneCycles {
    /// Notes a cycle with work that began at `began` and took `took`, after `empty_cycles` empty
    /// ones. If the thread rests after it, it does so for `rest`.
    pub(crate) fn note(
        &mut self,
        empty_cycles: u32,
        began: Instant,
        took: Duration,
        rest: Duration,
    ) {
        // The first empty cycle stands for the rest; the second one found nothing.
        let is_lone = empty_cycles > 1
            && self.last.is_some_and(|(ended, rest)| {
                !rest.is_zero() && began.saturating_duration_since(ended) > rest
            });
        self.count = if is_lone { self.count.saturating_add(1) } else { 0 };
        self.last = Some((began + took, rest));
    }

    /// Whether a rest would gather nothing. Not in loom, which has no clock.
    pub(crate) fn make_rests_futile(&self) -> bool {
        !cfg!(loom) && self.count >= LONE_CYCLES
    }
}

/// The longest sleep where no handler has `on_idle`.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Returns how long to sleep after the `empty_cycles`-th consecutive empty cycle of a queue in
/// which no handler has `on_idle`: `max_idle · 2^n`, up to a second.
///
/// Such a thread has no reason to wake up without an item, except for the first handler with
/// `on_idle`, which may be added at any time and whose first call may be late by that second.
pub(crate) fn without_idle_handlers(config: &Config, empty_cycles: u32) -> Duration {
    let doublings = empty_cycles.saturating_sub(1).min(MAX_DOUBLINGS);
    let max_idle = config.max_idle.max(MIN_SLEEP);
    max_idle.saturating_mul(1 << doublings).min(max_idle.max(LONGEST_SLEEP))
}

/// Dispatching a batch smaller than this costs more than queueing its items.
const THIN_BATCH_ITEMS: usize = 256;

/// A handler that takes longer than this for a batch determines the pace.
const QUICK_BATCH: Duration = Duration::from_micros(50);

/// Returns the rest after a cycle that took `items` in `batches` within `took`, or `None` if the
/// next cycle follows immediately. `before` is the rest after the previous thin cycle, or zero.
///
/// Many types with a steady trickle of items keep a drain thread in cycles of tiny batches, each at
/// the full price of a batch, and take processor time and cache lines from the producers. After a
/// rest the batches are larger. The rest starts at `min_idle` and doubles, up to `max_idle`, while
/// such cycles would take more than a third of the cores' time, with `threads_per_core` drain
/// threads per core. Longer rests do not pay off: waiting items have left the caches by the time
/// they are taken. Handlers that are slow despite few items get no rest, which would only add
/// latency.
pub(crate) fn after_thin_cycle(
    config: &Config,
    threads_per_core: u32,
    items: usize,
    batches: usize,
    took: Duration,
    before: Duration,
) -> Option<Duration> {
    let quick = QUICK_BATCH.saturating_mul(u32::try_from(batches).unwrap_or(u32::MAX));
    if config.min_idle.is_zero() || items >= batches * THIN_BATCH_ITEMS || took >= quick {
        return None;
    }
    let rest =
        if took.saturating_mul(2 * threads_per_core) > before { before * 2 } else { before / 2 };
    Some(rest.clamp(config.min_idle, config.max_idle))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rests_once_then_sleeps_double_up_to_the_cap() {
        let config = Config::default();
        let plan: Vec<_> = (0..8).map(|n| after_empty_cycle(&config, n).1.as_millis()).collect();
        assert_eq!(plan, [5, 10, 20, 40, 80, 160, 200, 200]);
        assert_eq!(after_empty_cycle(&config, 0).0, SleepKind::Rest);
        assert_eq!(after_empty_cycle(&config, 1).0, SleepKind::Sleep);
        assert_eq!(after_empty_cycle(&config, u32::MAX).1, config.max_idle);
    }

    #[test]
    fn sleeps_grow_beyond_max_idle_where_no_handler_has_on_idle() {
        let plan = |max_idle| {
            let config = Config { max_idle, ..Config::default() };
            [0, 1, 2, 3, 4, 5, 6, u32::MAX].map(|n| without_idle_handlers(&config, n).as_millis())
        };
        let sleeps = [200, 200, 400, 800, 1_000, 1_000, 1_000, 1_000];
        assert_eq!(plan(Duration::from_millis(200)), sleeps);
        assert_eq!(plan(Duration::from_secs(60)), [60_000; 8]);
        assert_eq!(plan(Duration::ZERO)[0], 1);
    }

    #[test]
    fn rests_are_futile_after_lone_cycles_in_a_row() {
        let [rest, took] = [5, 1].map(Duration::from_millis);
        let (mut cycles, mut ended) = (LoneCycles::default(), Instant::now());
        let mut futile_after = |empty_cycles, gap, rest| {
            let began = ended + gap;
            ended = began + took;
            cycles.note(empty_cycles, began, took, rest);
            cycles.make_rests_futile()
        };
        assert!(!futile_after(2, 2 * rest, rest), "the first one");
        for gap in [rest, Duration::ZERO] {
            let futile: Vec<_> =
                (0..=LONE_CYCLES).map(|_| futile_after(2, 2 * rest, rest)).collect();
            assert_eq!(futile, [false, false, false, true, true]);
            assert!(!futile_after(2, gap, rest), "the item came within a rest");
        }
        for (empty_cycles, rest) in [(1, rest), (0, rest), (2, Duration::ZERO), (2, 2 * rest)] {
            futile_after(0, Duration::ZERO, rest);
            let gap = Duration::from_millis(10);
            assert!((0..LONE_CYCLES).all(|_| !futile_after(empty_cycles, gap, rest)));
        }
    }

    #[test]
    fn small_quick_cycles_rest_and_slow_or_full_ones_do_not() {
        let (config, quick) = (Config::default(), Duration::from_micros(49));
        let rest = |items, batches, took| {
            after_thin_cycle(&config, 1, items, batches, took, Duration::ZERO)
        };
        let fat = THIN_BATCH_ITEMS;
        assert_eq!(rest(fat - 1, 1, quick), Some(config.min_idle));
        assert_eq!(rest(fat * 10, 11, quick * 11), Some(config.min_idle));
        assert_eq!(rest(fat, 1, quick), None);
        assert_eq!(rest(fat - 1, 1, quick * 2), None);
        let no_rest = Config { min_idle: Duration::ZERO, ..Config::default() };
        assert_eq!(after_thin_cycle(&no_rest, 1, 1, 1, Duration::ZERO, Duration::ZERO), None);
    }

    #[test]
    fn rests_grow_while_thin_cycles_take_the_threads_time() {
        let config = Config::default();
        let after = |took: u64, before| {
            after_thin_cycle(&config, 1, 1_000, 500, Duration::from_millis(took), before).unwrap()
        };
        let mut rest = Duration::ZERO;
        let grown: Vec<_> = (0..7)
            .map(|_| {
                rest = after(20, rest);
                rest.as_millis()
            })
            .collect();
        assert_eq!(
            grown,
            [5, 10, 20, 40, 20, 40, 20],
            "at a rest of 40 ms, cycles of 20 ms take a third of the time"
        );
        assert_eq!(after(0, config.min_idle), config.min_idle);
        let crowded = after_thin_cycle(
            &config,
            4,
            1_000,
            500,
            Duration::from_millis(20),
            Duration::from_millis(100),
        );
        assert_eq!(crowded.unwrap(), config.max_idle);
        assert_eq!(after(20, config.max_idle), config.max_idle / 2);
    }

    #[test]
    fn without_min_idle_there_is_no_rest() {
        let config = Config { min_idle: Duration::ZERO, ..Config::default() };
        assert_eq!(after_empty_cycle(&config, 0), (SleepKind::Sleep, Duration::from_millis(1)));
    }
}
