//! The settings of a queue, and pure functions that turn policies into numbers.

use std::fmt;

use crate::error::ConfigError;
use crate::sync::{Arc, Duration};

/// The most drain threads, partitions and items per partition that a queue may ask for. The limits
/// are far beyond any use, so that a typo fails with a message instead of exhausting the machine.
pub(crate) const MAX_THREADS: usize = 1_024;

pub(crate) const MAX_PARTITIONS: usize = 65_536;

pub(crate) const MAX_BUFFER_SIZE: usize = 100_000_000;

/// The shortest interval between the supervisor's visits.
const SHORTEST_TAKEOVER: Duration = Duration::from_millis(1);

/// The shortest limit of the watchdog, which visits at half of it.
const SHORTEST_WARNING: Duration = Duration::from_millis(1);

/// The most spare threads that a queue gets without asking.
const MOST_DEFAULT_SPARES: usize = 8;

/// The cap on all times, which is safe to add to an instant.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The number of drain threads of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ThreadPolicy {
    /// A fixed number, on any machine.
    Fixed(usize),
    /// `base + multiplier × cores`, rounded half up.
    Cores {
        /// Threads in addition to those per core.
        base: usize,
        /// Threads per core.
        multiplier: f64,
    },
}

impl ThreadPolicy {
    /// Returns a policy of `count` drain threads.
    ///
    /// # Errors
    /// `count` is 0.
    pub fn fixed(count: usize) -> Result<Self, ConfigError> {
        within("ThreadPolicy.fixed", count, MAX_THREADS).map(Self::Fixed)
    }

    /// Returns a policy of `base + multiplier × cores` drain threads, rounded half up, at least 1.
    ///
    /// # Errors
    /// `multiplier` is not a finite number above 0.
    pub fn cores(base: usize, multiplier: f64) -> Result<Self, ConfigError> {
        if !(multiplier.is_finite() && multiplier > 0.0) {
            return Err(ConfigError(format!(
                "threads: the multiplier of cores is {multiplier}; give a finite number above 0, \
                 for instance 1.0"
            )));
        }
        Ok(Self::Cores { base, multiplier })
    }

    /// Returns the number of drain threads on a machine with `cores` cores, at least 1.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn resolve(self, cores: usize) -> usize {
        match self {
            Self::Fixed(count) => count,
            Self::Cores { base, multiplier } => base
                .saturating_add((multiplier * cores as f64 + 0.5).floor() as usize)
                .clamp(1, MAX_THREADS),
        }
    }
}

/// Returns the number of cores that this process may use, by its affinity and cgroup.
pub fn available_cores() -> usize {
    // Two under loom: interleavings must not depend on the machine, and a system call in each would
    // take longer than the rest of the execution.
    if cfg!(loom) { 2 } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// The number of partitions of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartitionPolicy {
    /// A fixed number.
    Fixed(usize),
    /// A fixed number per drain thread.
    ThreadMultiply(usize),
    /// One per handler up to `multiplier` per drain thread, then one for every two handlers.
    Adaptive {
        /// The number of handlers per drain thread that get a partition each.
        multiplier: usize,
    },
}

impl PartitionPolicy {
    /// Returns a policy of `count` partitions.
    ///
    /// # Errors
    /// `count` is 0.
    pub fn fixed(count: usize) -> Result<Self, ConfigError> {
        within("PartitionPolicy.fixed", count, MAX_PARTITIONS).map(Self::Fixed)
    }

    /// Returns a policy of `multiplier` partitions per drain thread.
    ///
    /// # Errors
    /// `multiplier` is 0.
    pub fn thread_multiply(multiplier: usize) -> Result<Self, ConfigError> {
        within("PartitionPolicy.thread_multiply", multiplier, MAX_PARTITIONS)
            .map(Self::ThreadMultiply)
    }

    /// Returns a policy under which partitions grow with the handlers.
    ///
    /// # Errors
    /// `multiplier` is 0.
    pub fn adaptive(multiplier: usize) -> Result<Self, ConfigError> {
        within("PartitionPolicy.adaptive", multiplier, MAX_PARTITIONS)
            .map(|multiplier| Self::Adaptive { multiplier })
    }

    /// Returns the number of partitions for `threads` drain threads and handlers with a total
    /// weight of `handlers`.
    ///
    /// With 8 threads and the multiplier 25: 0 handlers → 8, 100 → 100, 500 → 200 + 300 / 2 = 350.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn resolve(self, threads: usize, handlers: f64) -> usize {
        // Weights like 0.1 do not add up exactly; with the tolerance, thirty of them count as 3.
        const WEIGHT_TOLERANCE: f64 = 1e-9;
        match self {
            Self::Fixed(count) => count,
            Self::ThreadMultiply(multiplier) => {
                threads.saturating_mul(multiplier).min(MAX_PARTITIONS)
            }
            Self::Adaptive { multiplier } => {
                let handlers = (handlers - WEIGHT_TOLERANCE).ceil().max(0.0) as usize;
                let one_to_one = threads.saturating_mul(multiplier);
                match handlers {
                    0 => threads,
                    few if few <= one_to_one => few.min(MAX_PARTITIONS),
                    many => (one_to_one + (many - one_to_one) / 2).min(MAX_PARTITIONS),
                }
            }
        }
    }
}

pub(crate) fn within(name: &str, value: usize, limit: usize) -> Result<usize, ConfigError> {
    if (1..=limit).contains(&value) {
        Ok(value)
    } else {
        Err(ConfigError(format!("{name} is {value}; give 1 to {limit}")))
    }
}

/// The behaviour of producers when a partition is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BufferStrategy {
    /// Producers wait, so no item is lost.
    #[default]
    Blocking,
    /// Producers never wait; refused items are counted.
    IfPossible,
}

/// The choice of an item's partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Selector {
    /// The partition of its type: order per type and producer.
    #[default]
    ByType,
    /// The partitions in turn: evenly spread, with order per partition only.
    RoundRobin,
    /// The caller names the partition with each item.
    Given,
}

/// All settings of one queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The number of drain threads. Default: one per core.
    pub threads: ThreadPolicy,
    /// The number of partitions. Default: 1.
    pub partitions: PartitionPolicy,
    /// The choice of an item's partition. Default: that of its type.
    pub selector: Selector,
    /// The exact capacity of a partition, in items. Default: 10,000.
    pub buffer_size: usize,
    /// The behaviour of producers when a partition is full. Default: they wait.
    pub strategy: BufferStrategy,
    /// How long a drain thread rests after its first empty cycle, and between cycles of quick, tiny
    /// batches, so that larger batches form. It does not rest while items arrive too far apart to
    /// form a batch. Zero: it never rests. Default: 5 ms.
    pub min_idle: Duration,
    /// The longest sleep of an idle drain thread between two calls of `on_idle`. Rests between
    /// cycles of tiny batches grow up to this while such cycles would take more than a third of the
    /// cores. Default: 200 ms.
    pub max_idle: Duration,
    /// The exact limit on the items of one handler call, and on those that a drain thread takes
    /// from a partition in one cycle. A type may have [its
    /// own](crate::item::HandledType::max_batch_items). Default: 10,000.
    pub max_batch_items: usize,
    /// How long an item may wait for its batch to become full. A batch is delivered when it has
    /// `max_batch_items` or its oldest item has waited this long; earlier if the partition is full,
    /// a producer or a flush waits, or the queue closes. A type may have [its
    /// own](crate::item::HandledType::max_delay). Default: `None`, batches do not wait.
    pub max_delay: Option<Duration>,
    /// How a failed batch is retried. A type may have [its own
    /// policy](crate::item::HandledType::retry). Default: not at all.
    pub retry: Option<RetryPolicy>,
    /// The balancer that spreads partitions over drain threads by measured load. It has no effect
    /// with one drain thread. Default: `None`, partitions stay where they are.
    pub balancer: Option<DrainBalancer>,
    /// The time between two runs of the balancer. Zero: it runs only on
    /// [`rebalance`](crate::queue::BatchQueue::rebalance). Default: 1 s.
    pub rebalance_interval: Duration,
    /// How long a drain thread may be in one call before it counts as held up and others take over
    /// its partitions, which happens after one to two times this long. Default: 20 ms.
    pub takeover_after: Duration,
    /// The most extra drain threads, which start while all others are held up and end after ten
    /// seconds without work; on a shared pool, they are in addition to its threads. `None`: one per
    /// drain thread, at most 8, but none with a single drain thread, on a shared pool, or with one
    /// consumer per thread. Default: `None`.
    pub spare_threads: Option<usize>,
    /// How long a handler call, a producer's wait, or an item's wait for its call may last before
    /// it is logged: once, then at double the distance each time, and when it is over. `None`:
    /// never logged. Default: 10 s.
    pub warn_after: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: ThreadPolicy::Cores { base: 0, multiplier: 1.0 },
            partitions: PartitionPolicy::Fixed(1),
            selector: Selector::default(),
            buffer_size: 10_000,
            strategy: BufferStrategy::default(),
            min_idle: Duration::from_millis(5),
            max_idle: Duration::from_millis(200),
            max_batch_items: 10_000,
            max_delay: None,
            retry: None,
            balancer: None,
            rebalance_interval: Duration::from_secs(1),
            takeover_after: Duration::from_millis(20),
            spare_threads: None,
            warn_after: Some(Duration::from_secs(10)),
        }
    }
}

impl Config {
    /// Checks what the types cannot express.
    ///
    /// # Errors
    /// `buffer_size`, `max_batch_items`, `takeover_after` or `warn_after` is 0 or out of range, the
    /// retry policy is invalid, batches of one item are to wait, `max_idle` is below `min_idle`, or
    /// there are too many spare threads.
    pub fn validate(&self) -> Result<(), ConfigError> {
        within("buffer_size", self.buffer_size, MAX_BUFFER_SIZE)?;
        within("max_batch_items", self.max_batch_items, MAX_BUFFER_SIZE)?;
        check_delay("", self.max_delay, self.max_batch_items)?;
        self.retry.as_ref().map_or(Ok(()), RetryPolicy::validate)?;
        if self.takeover_after < SHORTEST_TAKEOVER {
            return Err(ConfigError(format!(
                "takeover_after_ms is {}; give at least {}",
                millis(self.takeover_after),
                millis(SHORTEST_TAKEOVER)
            )));
        }
        if let Some(after) = self.warn_after.filter(|&after| after < SHORTEST_WARNING) {
            return Err(ConfigError(format!(
                "warn_after is {}; give at least {} seconds, or None",
                after.as_secs_f64(),
                SHORTEST_WARNING.as_secs_f64()
            )));
        }
        if let Some(spares) = self.spare_threads.filter(|&spares| spares > MAX_THREADS) {
            return Err(ConfigError(format!(
                "spare_threads is {spares}; give at most {MAX_THREADS}"
            )));
        }
        if self.max_idle < self.min_idle {
            return Err(ConfigError(format!(
                "max_idle_ms ({}) is below min_idle_ms ({}); raise max_idle_ms or lower \
                 min_idle_ms",
                millis(self.max_idle),
                millis(self.min_idle)
            )));
        }
        Ok(())
    }

    /// Caps the times, so that they can be added to any instant.
    pub(crate) fn with_bounded_times(mut self) -> Self {
        let times = [
            &mut self.min_idle,
            &mut self.max_idle,
            &mut self.rebalance_interval,
            &mut self.takeover_after,
        ];
        for time in times.into_iter().chain(&mut self.max_delay).chain(&mut self.warn_after) {
            *time = (*time).min(LONGEST);
        }
        self.retry = self.retry.map(RetryPolicy::with_bounded_times);
        self
    }

    /// Adapts the settings to a queue that its callers drain.
    pub(crate) fn inline(self) -> Self {
        Self { spare_threads: Some(0), warn_after: None, ..self.on_shared_pool() }
    }

    /// Adapts the settings to a queue whose single drain task runs on a shared pool.
    pub(crate) fn on_shared_pool(self) -> Self {
        Self { threads: ThreadPolicy::Fixed(1), balancer: None, ..self }
    }

    /// Returns the most spare threads of a queue with `threads` drain threads. `can_share`: whether
    /// any thread can call any handler.
    ///
    /// # Errors
    /// Spare threads are asked for, but would have no consumer.
    pub(crate) fn spares(&self, threads: usize, can_share: bool) -> Result<usize, ConfigError> {
        match self.spare_threads {
            Some(spares) if spares > 0 && !can_share => Err(ConfigError(format!(
                "spare_threads is {spares} with a consumer for each drain thread, and a spare \
                 thread has none; leave it out, or give 0"
            ))),
            Some(spares) => Ok(spares),
            None if threads == 1 || !can_share || cfg!(loom) => Ok(0),
            None => Ok(threads.min(MOST_DEFAULT_SPARES)),
        }
    }

    /// Returns the number of drain threads and of partitions on a machine with `cores` cores,
    /// before any handler is added.
    ///
    /// A thread without a partition would have nothing to do, so threads are reduced to the number
    /// of partitions; the third value is then a warning.
    pub fn resolve(&self, cores: usize) -> (usize, usize, Option<String>) {
        let threads = self.threads.resolve(cores);
        let partitions = self.partitions.resolve(threads, 0.0);
        if partitions < threads {
            let warning = format!(
                "partitions({partitions}) < threads({threads}), reducing threads to {partitions}"
            );
            return (partitions, partitions, Some(warning));
        }
        (threads, partitions, None)
    }
}

/// Checks that batches may wait to become full, which those of one item may not. `of` prefixes the
/// message.
pub(crate) fn check_delay(
    of: &str,
    max_delay: Option<Duration>,
    max_batch_items: usize,
) -> Result<(), ConfigError> {
    match max_delay {
        Some(delay) if !delay.is_zero() && max_batch_items == 1 => Err(ConfigError(format!(
            "{of}max_delay_ms is {} with max_batch_items 1, and a batch of one item is full; raise \
             max_batch_items, or give max_delay_ms 0",
            millis(delay)
        ))),
        _ => Ok(()),
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

// The choice of a balancer. The plans are made in `balance`.

/// The default skip ratio.
pub(crate) const SKIP_RATIO: f64 = 1.15;

/// A custom assignment of partitions to drain threads, for [`DrainBalancer::custom`].
pub trait Assign: Send + Sync {
    /// Returns the wanted thread of each partition, or `None` to leave all where they are.
    ///
    /// `load` and `owner` have one entry per partition; threads are 0 to `threads − 1`. Called on
    /// the control thread, or on the thread that requested a run; never on a drain thread.
    ///
    /// # Errors
    /// A reason, which is logged. Nothing moves.
    fn assign(
        &self,
        load: &[f64],
        owner: &[usize],
        threads: usize,
    ) -> Result<Option<Vec<usize>>, String>;
}

impl fmt::Debug for dyn Assign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl PartialEq for dyn Assign {
    /// Assignments are equal when they are the same object.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

/// A strategy that spreads partitions over drain threads.
///
/// The two weighted balancers give all threads about the same load and move few partitions: none
/// while the largest thread load is below `skip_ratio` times the smallest, and none if moving would
/// not bring the two much closer.
#[derive(Debug, Clone, PartialEq)]
pub enum DrainBalancer {
    /// Weights a partition by the time that its handlers were busy in the interval. Suits any load,
    /// above all items of unequal cost.
    LoadWeighted {
        /// The ratio of the largest thread load to the smallest below which nothing moves.
        skip_ratio: f64,
    },
    /// Weights a partition by the items that its producers tried to enqueue, where refused items
    /// count at most as often as accepted ones. Suits items of about the same cost.
    ThroughputWeighted {
        /// The ratio of the largest thread load to the smallest below which nothing moves.
        skip_ratio: f64,
    },
    /// Weights partitions as `ThroughputWeighted` does, and lets your code assign them.
    Custom(Arc<dyn Assign>),
}

impl DrainBalancer {
    /// Returns a balancer by busy time, which skips below a ratio of 1.15.
    pub fn load_weighted() -> Self {
        Self::LoadWeighted { skip_ratio: SKIP_RATIO }
    }

    /// Returns a balancer by throughput, which skips below a ratio of 1.15.
    pub fn throughput_weighted() -> Self {
        Self::ThroughputWeighted { skip_ratio: SKIP_RATIO }
    }

    /// Returns a balancer with a custom assignment, which is validated before anything moves.
    pub fn custom(assign: Arc<dyn Assign>) -> Self {
        Self::Custom(assign)
    }

    /// Sets the skip ratio; at 1 the balancer never skips.
    ///
    /// # Errors
    /// `skip_ratio` is not a finite number of at least 1, or the balancer is custom.
    pub fn with_skip_ratio(self, skip_ratio: f64) -> Result<Self, ConfigError> {
        if !(skip_ratio.is_finite() && skip_ratio >= 1.0) {
            return Err(ConfigError(format!(
                "DrainBalancer: skip_ratio is {skip_ratio}; give a finite number of at least 1, \
                 for instance {SKIP_RATIO}"
            )));
        }
        match self {
            Self::ThroughputWeighted { .. } => Ok(Self::ThroughputWeighted { skip_ratio }),
            Self::LoadWeighted { .. } => Ok(Self::LoadWeighted { skip_ratio }),
            Self::Custom(_) => Err(ConfigError(format!(
                "DrainBalancer.custom has no skip_ratio (given: {skip_ratio}); return None from \
                 assign to skip"
            ))),
        }
    }

    /// Whether partitions are weighted by the time that their handlers were busy.
    pub fn is_load_weighted(&self) -> bool {
        matches!(self, Self::LoadWeighted { .. })
    }

    /// Whether the assignment is custom.
    pub fn is_custom(&self) -> bool {
        matches!(self, Self::Custom(_))
    }
}

// Retries of failed batches.

/// How often a failed batch is tried, and how long it waits between tries.
///
/// Later items of the type in the same partition wait until the batch is settled, so order is kept.
/// The batch counts once, as consumed or as failed.
///
/// A shutdown does not shorten the waits while it has time. Shortly before its deadline, each
/// waiting batch is tried once more; if that fails, the batch has failed. For this, the shutdown
/// reserves, per waiting batch of the partition, 50 ms plus twice the expected time of its call and
/// of one to its handler of dead letters, and 50 ms more for the last batch, but at most half of
/// the shutdown's time in all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    /// The number of tries, including the first. `None`: until one succeeds, the handler is
    /// removed, or the deadline of a shutdown is near. A shutdown without a deadline may then never
    /// end.
    pub attempts: Option<u32>,
    /// The wait before the second try.
    pub backoff: Duration,
    /// The factor by which each wait exceeds the previous one.
    pub factor: f64,
    /// The longest wait.
    pub max_backoff: Duration,
    /// The share of each wait, 0 to 1, that is randomly cut off at most, so that batches that
    /// failed together are not retried together.
    pub jitter: f64,
    /// Whether a batch whose tries are used up is halved, each half tried once, and so on, until
    /// failing items stand alone. Order is kept. *k* bad items among *n* take at most 2*k*(1 +
    /// log2(*n*/*k*)) further tries. Disabled while a shutdown has less than a tenth of its time
    /// left.
    pub bisect: bool,
}

impl Default for RetryPolicy {
    /// Returns a policy of three tries, 100 ms and 200 ms apart.
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
    /// Returns the wait after the `attempt`-th try, counted from 1. `random` returns a number from
    /// 0 to 1; it is not called without jitter.
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

    /// Caps the times of the policy, so that they can be added to any instant.
    pub(crate) fn with_bounded_times(self) -> Self {
        Self {
            backoff: self.backoff.min(LONGEST),
            max_backoff: self.max_backoff.min(LONGEST),
            ..self
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // Policies as numbers, and invalid settings.

    #[test]
    fn adaptive_grows_with_the_handlers() {
        let adaptive = PartitionPolicy::adaptive(25).unwrap();
        for (handlers, partitions) in
            [(0.0, 8), (1.0, 1), (100.0, 100), (200.0, 200), (460.0, 330), (500.0, 350)]
        {
            assert_eq!(adaptive.resolve(8, handlers), partitions, "{handlers} handlers");
        }
    }

    #[test]
    fn weights_count_fractionally_and_add_up() {
        let adaptive = PartitionPolicy::adaptive(25).unwrap();
        let thirty_tenths: f64 = std::iter::repeat_n(0.1, 30).sum();
        assert_eq!(adaptive.resolve(8, thirty_tenths), 3);
        assert_eq!(adaptive.resolve(8, 3.05), 4);
    }

    #[test]
    fn cores_round_half_up() {
        for (multiplier, cores, threads) in
            [(0.5, 5, 3), (0.25, 2, 1), (0.5, 1, 1), (0.1, 2, 1), (1.0, 8, 8)]
        {
            assert_eq!(ThreadPolicy::cores(0, multiplier).unwrap().resolve(cores), threads);
        }
        assert_eq!(ThreadPolicy::cores(1, 0.25).unwrap().resolve(8), 3);
    }

    #[test]
    fn fewer_partitions_than_threads_reduce_the_threads() {
        let config = Config { threads: ThreadPolicy::Fixed(4), ..Config::default() };
        let (threads, partitions, warning) = config.resolve(2);
        assert_eq!((threads, partitions), (1, 1));
        assert_eq!(warning.unwrap(), "partitions(1) < threads(4), reducing threads to 1");
    }

    #[test]
    fn waits_between_tries_grow_up_to_the_limit() {
        let never = || unreachable!("there is no jitter");
        let policy =
            RetryPolicy { max_backoff: Duration::from_millis(700), ..RetryPolicy::default() };
        let waits: Vec<_> =
            (1..6).map(|attempt| policy.delay(attempt, never).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 700, 700]);
        assert_eq!(policy.delay(u32::MAX, never), policy.max_backoff);
        let none = RetryPolicy { backoff: Duration::ZERO, ..policy };
        assert_eq!([9, u32::MAX].map(|attempt| none.delay(attempt, never)), [Duration::ZERO; 2]);
    }

    #[test]
    fn jitter_takes_up_to_its_share_off_a_wait() {
        let policy = RetryPolicy { jitter: 0.3, ..RetryPolicy::default() };
        let millis = |random| policy.delay(1, || random).as_millis();
        assert_eq!([millis(0.0), millis(0.5), millis(1.0)], [100, 85, 70]);
        for jitter in [-0.1, 1.1, f64::NAN] {
            let retry = Some(RetryPolicy { jitter, ..policy });
            let problem = Config { retry, ..Config::default() }.validate().unwrap_err().to_string();
            assert!(problem.starts_with(&format!("retry: jitter is {jitter}; give 0 to 1")));
        }
    }

    #[test]
    fn invalid_settings_are_refused_with_value_and_remedy() {
        let bad = |config: Config| config.validate().unwrap_err().to_string();
        assert_eq!(
            bad(Config { buffer_size: 0, ..Config::default() }),
            "buffer_size is 0; give 1 to 100000000"
        );
        let idle = Config { max_idle: Duration::from_millis(1), ..Config::default() };
        assert!(bad(idle).contains("max_idle_ms (1) is below min_idle_ms (5)"));
        assert!(ThreadPolicy::cores(0, f64::NAN).is_err() && ThreadPolicy::fixed(0).is_err());
        assert!(PartitionPolicy::adaptive(0).is_err());
    }
}
