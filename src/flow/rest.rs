//! How long a drain thread with nothing to do rests and sleeps.

use crate::config::Config;
use crate::control::scheduler::SleepKind;
use crate::sync::Duration;

/// Doublings of the sleep; the cap keeps the shift from overflowing.
const MAX_DOUBLINGS: u32 = 20;

const MIN_SLEEP: Duration = Duration::from_millis(1);

/// What to do after the `empty_cycles`-th empty cycle in a row, counted from 0.
///
/// The first one rests `min_idle`, so that items gather and go to their handlers as one batch. Later ones sleep until
/// the first item, at most `min(max(min_idle, 1 ms) · 2^n, max_idle)`, after which `on_idle` is called again.
pub(crate) fn after_empty_cycle(config: &Config, empty_cycles: u32) -> (SleepKind, Duration) {
    if empty_cycles == 0 && !config.min_idle.is_zero() {
        return (SleepKind::Rest, config.min_idle);
    }
    let doublings = empty_cycles.min(MAX_DOUBLINGS);
    let sleep = config.min_idle.max(MIN_SLEEP).saturating_mul(1 << doublings);
    (SleepKind::Sleep, sleep.min(config.max_idle.max(MIN_SLEEP)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rests_once_then_doubles_up_to_the_cap() {
        let config = Config::default();
        let plan: Vec<_> = (0..8).map(|n| after_empty_cycle(&config, n).1.as_millis()).collect();
        assert_eq!(plan, [5, 10, 20, 40, 80, 160, 200, 200]);
        assert_eq!(after_empty_cycle(&config, 0).0, SleepKind::Rest);
        assert_eq!(after_empty_cycle(&config, 1).0, SleepKind::Sleep);
        assert_eq!(after_empty_cycle(&config, u32::MAX).1, config.max_idle);
    }

    #[test]
    fn without_min_idle_there_is_no_rest() {
        let config = Config { min_idle: Duration::ZERO, ..Config::default() };
        assert_eq!(after_empty_cycle(&config, 0), (SleepKind::Sleep, Duration::from_millis(1)));
    }
}
