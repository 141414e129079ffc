//! Retries: how often a failed batch is tried again, and when.

use super::LONGEST;
use crate::error::ConfigError;
use crate::sync::Duration;

/// How often a failed batch is tried, and how long it waits between two tries.
///
/// Later items of its type in its partition wait meanwhile, so the order is kept. The batch counts
/// once, as consumed or as failed.
///
/// A shutdown does not shorten the waits while it has time. Shortly before its deadline each batch
/// that waits is tried once more; what fails then has failed. For that, each batch that waits in
/// the partition has 50 ms and twice the time that a call, and one of its handler of dead letters,
/// are expected to take, and the last one 50 ms more; all of them have half of the time of the
/// shutdown at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    /// All tries, the first included. `None`: until one succeeds, the handler is removed, or the
    /// deadline of a shutdown is near. A shutdown without a deadline may then last for ever.
    pub attempts: Option<u32>,
    /// The wait before the second try.
    pub backoff: Duration,
    /// Each wait is the previous one times this factor.
    pub factor: f64,
    /// The longest wait.
    pub max_backoff: Duration,
    /// The share of each wait, 0 to 1, that chance may cut off, so that batches which failed
    /// together are not tried together.
    pub jitter: f64,
    /// Whether a batch whose tries are used up is halved, each half tried once, and so on, until
    /// what fails stands alone. Order is kept. Of *n* items *k* bad ones take at most
    /// 2*k*(1 + log2(*n*/*k*)) further tries. Not while a shutdown has less than a tenth of its
    /// time left.
    pub bisect: bool,
}

impl Default for RetryPolicy {
    /// Three tries, 100 ms and 200 ms apart.
    fn default() -> Self {
        Self {
            attempts: Some(3),
            backoff: Duration::from_millis(100),
            factor: 2.0,
            max_backoff: Duration::from_secs(5),
            jitter: 0.0,
            bisect: false,
        }
    }
}

impl RetryPolicy {
    /// The wait after the `attempt`-th try, counted from 1. `random`: a number from 0 to 1; not
    /// called without jitter.
    pub fn delay(&self, attempt: u32, random: impl FnOnce() -> f64) -> Duration {
        if self.backoff.is_zero() {
            return Duration::ZERO;
        }
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.backoff.as_secs_f64() * self.factor.powi(exponent);
        let longest =
            Duration::try_from_secs_f64(seconds).unwrap_or(self.max_backoff).min(self.max_backoff);
        if self.jitter > 0.0 { longest.mul_f64(1.0 - self.jitter * random()) } else { longest }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if self.attempts == Some(0) {
            return Err(ConfigError(
                "retry: attempts is 0; give at least 1, for a single try without a retry"
                    .to_owned(),
            ));
        }
        if self.attempts.is_none() && self.bisect {
            return Err(ConfigError(
                "retry: attempts is None, so that a batch is never halved; give a number of tries, \
                 or leave bisect out"
                    .to_owned(),
            ));
        }
        if !(self.factor.is_finite() && self.factor >= 1.0) {
            return Err(ConfigError(format!(
                "retry: factor is {}; give a finite number from 1 up",
                self.factor
            )));
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(ConfigError(format!(
                "retry: jitter is {}; give 0 to 1, the share of a wait that chance may cut off",
                self.jitter
            )));
        }
        Ok(())
    }

    /// The same policy, with times that can be added to any instant.
    pub(crate) fn with_bounded_times(self) -> Self {
        Self {
            backoff: self.backoff.min(LONGEST),
            max_backoff: self.max_backoff.min(LONGEST),
            ..self
        }
    }
}
