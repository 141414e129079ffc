//! Policies: what a queue is asked for, and the pure functions that turn them into numbers.

use crate::error::ConfigError;
use crate::sync::Duration;

pub(crate) mod drain_balancer;
mod retry_policy;

pub use drain_balancer::{Assign, DrainBalancer};
pub use retry_policy::RetryPolicy;

/// The most drain threads, partitions and items per partition that a queue may ask for. They are
/// far beyond any use: a typing error fails with a message and does not exhaust the machine.
pub(crate) const MAX_THREADS: usize = 1_024;
pub(crate) const MAX_PARTITIONS: usize = 65_536;
pub(crate) const MAX_BUFFER_SIZE: usize = 100_000_000;

/// The supervisor visits a queue that often.
const SHORTEST_TAKEOVER: Duration = Duration::from_millis(1);

/// The watchdog visits a queue that often at most.
const SHORTEST_WARNING: Duration = Duration::from_millis(1);

/// More spare threads must be asked for.
const MOST_DEFAULT_SPARES: usize = 8;

/// Longer times are capped to this one, which is safe to add to an instant.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3_600);

/// How many drain threads a queue has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ThreadPolicy {
    /// This many, whatever the machine.
    Fixed(usize),
    /// `base + multiplier × cores`, rounded half up.
    Cores {
        /// Threads beside those that follow the cores.
        base: usize,
        /// Threads per core.
        multiplier: f64,
    },
}

impl ThreadPolicy {
    /// `count` drain threads.
    ///
    /// # Errors
    /// `count` is 0.
    pub fn fixed(count: usize) -> Result<Self, ConfigError> {
        within("ThreadPolicy.fixed", count, MAX_THREADS).map(Self::Fixed)
    }

    /// `base + multiplier × cores` drain threads, rounded half up, at least 1.
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

    /// The number of drain threads on a machine with `cores` cores; at least 1.
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

/// The cores that this process may use: its affinity and its cgroup, not what the host has.
pub fn available_cores() -> usize {
    // Two in the model: its interleavings must not depend on the machine, and asking the system in
    // each of them takes more time than the rest of the execution.
    if cfg!(loom) { 2 } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// How many partitions a queue has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartitionPolicy {
    /// This many.
    Fixed(usize),
    /// This many per drain thread.
    ThreadMultiply(usize),
    /// Grows with the handlers: one each up to `multiplier` per thread, then one for every two.
    Adaptive {
        /// Handlers per drain thread that still get a partition each.
        multiplier: usize,
    },
}

impl PartitionPolicy {
    /// `count` partitions.
    ///
    /// # Errors
    /// `count` is 0.
    pub fn fixed(count: usize) -> Result<Self, ConfigError> {
        within("PartitionPolicy.fixed", count, MAX_PARTITIONS).map(Self::Fixed)
    }

    /// `multiplier` partitions per drain thread.
    ///
    /// # Errors
    /// `multiplier` is 0.
    pub fn thread_multiply(multiplier: usize) -> Result<Self, ConfigError> {
        within("PartitionPolicy.thread_multiply", multiplier, MAX_PARTITIONS)
            .map(Self::ThreadMultiply)
    }

    /// Partitions that grow with the handlers.
    ///
    /// # Errors
    /// `multiplier` is 0.
    pub fn adaptive(multiplier: usize) -> Result<Self, ConfigError> {
        within("PartitionPolicy.adaptive", multiplier, MAX_PARTITIONS)
            .map(|multiplier| Self::Adaptive { multiplier })
    }

    /// The number of partitions for `threads` drain threads and handlers with a total weight of
    /// `handlers`.
    ///
    /// With 8 threads and the multiplier 25: 0 handlers → 8, 100 → 100, 500 → 200 + 300 / 2 = 350.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn resolve(self, threads: usize, handlers: f64) -> usize {
        // Weights like 0.1 do not add up exactly; with the tolerance, thirty of them still count as
        // 3.
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

/// What a full partition does to its producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BufferStrategy {
    /// Producers wait, so no item is lost.
    #[default]
    Blocking,
    /// Producers never wait; items are refused, and counted.
    IfPossible,
}

/// Which partition an item goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Selector {
    /// The partition of its type: order per type and producer.
    #[default]
    ByType,
    /// Partitions in turn: an even spread, order per partition only.
    RoundRobin,
    /// The caller names the partition with each item.
    Given,
}

/// All settings of one queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Drain threads. Default: one per core.
    pub threads: ThreadPolicy,
    /// Partitions. Default: 1.
    pub partitions: PartitionPolicy,
    /// Which partition an item goes to. Default: that of its type.
    pub selector: Selector,
    /// Items per partition, exactly. Default: 10,000.
    pub buffer_size: usize,
    /// What a full partition does. Default: the producer waits.
    pub strategy: BufferStrategy,
    /// How long a drain thread rests after its first empty cycle, so that batches form; also
    /// between cycles of quick, tiny batches. It does not rest while items arrive too far apart for
    /// a batch to form. Zero: it never rests. Default: 5 ms.
    pub min_idle: Duration,
    /// The longest sleep of an idle drain thread between two calls of `on_idle`. Rests between
    /// cycles of tiny batches grow up to it while those would take more than a third of the cores.
    /// Default: 200 ms.
    pub max_idle: Duration,
    /// The most items that one call of a handler gets, exactly, and that a drain thread takes from
    /// a partition in one cycle. A type may have
    /// [its own](crate::HandledType::max_batch_items). Default: 10,000.
    pub max_batch_items: usize,
    /// How long an item may wait for its batch to become full. A batch is called when it has
    /// `max_batch_items` or when its oldest item has waited for so long; earlier if the partition
    /// is full, producers wait, a flush waits, or the queue closes. A type may have
    /// [its own](crate::HandledType::max_delay). Default: `None`, a batch does not wait.
    pub max_delay: Option<Duration>,
    /// How a failed batch is retried. A type may have [its own policy](crate::HandledType::retry).
    /// Default: not at all.
    pub retry: Option<RetryPolicy>,
    /// What spreads partitions over drain threads by measured load. It has no effect with one drain
    /// thread. Default: `None`, partitions stay where they are.
    pub balancer: Option<DrainBalancer>,
    /// Time between two runs of the balancer; zero: only on
    /// [`rebalance`](crate::BatchQueue::rebalance). Default: 1 s.
    pub rebalance_interval: Duration,
    /// A drain thread that has been in one call for this long is held up: others take over its
    /// partitions, after this time to twice this time. Default: 20 ms.
    pub takeover_after: Duration,
    /// Drain threads that are started while all others are held up, and end when they have had
    /// nothing to do for ten seconds; on a shared pool, in addition to its threads. `None`: as many
    /// as threads, at most 8, and none with one drain thread, on a shared pool, or with one
    /// consumer for each. Default: `None`.
    pub spare_threads: Option<usize>,
    /// After this time in one call of a handler, in a producer's wait, or of an item that waits for
    /// its call, the log says so: once, then at double the distance each time, and when it is over.
    /// `None`: never. Default: 10 s.
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
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// `buffer_size`, `max_batch_items`, `takeover_after` or `warn_after` is 0, a batch of one item
    /// is to wait, `max_idle` is below `min_idle`, or there are too many spare threads.
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

    /// The same settings, with times that can be added to any instant.
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

    /// The same settings for a queue that its callers drain.
    pub(crate) fn inline(self) -> Self {
        Self { spare_threads: Some(0), warn_after: None, ..self.on_shared_pool() }
    }

    /// The same settings for a queue whose one drain task runs on a shared pool.
    pub(crate) fn on_shared_pool(self) -> Self {
        Self { threads: ThreadPolicy::Fixed(1), balancer: None, ..self }
    }

    /// The most spare threads of a queue with so many drain threads. `can_share`: whether any
    /// thread can call any handler.
    ///
    /// # Errors
    /// Spare threads are asked for, and have no consumer.
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

    /// Drain threads and partitions on a machine with `cores` cores, before any handler.
    ///
    /// A thread without a partition would have nothing to do: the threads are reduced to the number
    /// of partitions, and the third value is a warning that says so.
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

/// Whether batches may wait to become full: not those of one item. `of`: what the settings are of.
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

#[cfg(all(test, not(loom)))]
mod tests;
