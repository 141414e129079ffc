//! The settings of a run: which queue it uses and how it ends.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use batchqueue::{
    Assign, BufferStrategy, Config, DrainBalancer, PartitionPolicy, RetryPolicy, Selector,
    ThreadPolicy,
};

use super::random::Random;

/// The number of actors. Each is a thread.
pub const ACTORS: usize = 3;
/// The number of types, per actor, that only this actor registers and removes.
const PRIVATE_KINDS: usize = 3;
/// The number of types that every actor and every handler registers and removes. They follow the
/// private types.
const COMMON_KINDS: usize = 4;
/// The number of types that factories handle too. They follow the common types.
const SPREAD_KINDS: usize = 2;

pub const KINDS: usize = ACTORS * PRIVATE_KINDS + COMMON_KINDS + SPREAD_KINDS;

pub fn private_kind(actor: usize, random: &mut Random) -> usize {
    actor * PRIVATE_KINDS + random.below(PRIVATE_KINDS)
}

pub fn common_kind(random: &mut Random) -> usize {
    ACTORS * PRIVATE_KINDS + random.below(COMMON_KINDS + SPREAD_KINDS)
}

pub fn spread_kind(random: &mut Random) -> usize {
    KINDS - 1 - random.below(SPREAD_KINDS)
}

/// The most items that a handler of a type gets in one call, if actors register it.
pub fn own_limit(kind: usize) -> Option<usize> {
    [None, Some(2), Some(40)][kind % 3]
}

pub fn is_spread(kind: usize) -> bool {
    kind >= KINDS - SPREAD_KINDS
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Handlers,
    OneConsumer,
    ConsumerPerThread,
}

/// How the queue is shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// When all actors have finished, by several threads concurrently.
    After,
    /// By an actor, while the others continue.
    MidRun,
    /// By a handler.
    FromHandler,
    /// When all actors have finished, without enough time to deliver.
    OutOfTime,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub config: Config,
    pub mode: Mode,
    pub end: End,
    /// The number of threads of a shared pool; `None` if the queue has dedicated drain threads.
    pub pool: Option<usize>,
    /// Whether some calls take so long that other threads take over, and handlers count as slow.
    pub has_slow_calls: bool,
    /// Whether the queue has a handler of dead letters.
    pub has_keeper: bool,
}

/// Moves partitions at random; some of its plans are missing, failed or invalid.
#[derive(Debug)]
struct Restless(Mutex<Random>);

impl Assign for Restless {
    fn assign(
        &self,
        _load: &[f64],
        owner: &[usize],
        threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        let mut random = self.0.lock().unwrap();
        match random.below(20) {
            0 => Ok(None),
            1 => Err("no plan today".to_owned()),
            2 => Ok(Some(vec![threads; owner.len()])),
            _ => Ok(Some(owner.iter().map(|_| random.below(threads)).collect())),
        }
    }
}

impl Settings {
    pub fn of(random: &mut Random) -> Self {
        let threads = random.within(1..5);
        let selector = random.pick(&[
            Selector::ByType,
            Selector::ByType,
            Selector::RoundRobin,
            Selector::Given,
        ]);
        let partitions = match random.below(3) {
            0 => PartitionPolicy::Fixed(random.within(1..7)),
            1 => PartitionPolicy::ThreadMultiply(random.within(1..4)),
            _ => PartitionPolicy::Adaptive { multiplier: random.within(1..8) },
        };
        let size = |random: &mut Random| match random.below(3) {
            0 => random.within(1..9),
            1 => random.within(1..300),
            _ => 10_000,
        };
        let balancer = match random.below(6) {
            0 => None,
            1 => Some(DrainBalancer::throughput_weighted().with_skip_ratio(1.0).unwrap()),
            2 => Some(DrainBalancer::load_weighted()),
            _ => Some(DrainBalancer::custom(Arc::new(Restless(Mutex::new(Random::new(
                random.next(),
            )))))),
        };
        let retry = random.once_in(2).then(|| RetryPolicy {
            attempts: Some(u32::try_from(random.within(2..5)).unwrap()),
            backoff: Duration::from_micros(random.pick(&[0, 50, 300, 20_000])),
            jitter: random.pick(&[0.0, 0.5]),
            bisect: random.once_in(2),
            ..RetryPolicy::default()
        });
        let mut config = Config {
            threads: ThreadPolicy::Fixed(threads),
            partitions,
            selector,
            buffer_size: size(random),
            strategy: random.pick(&[BufferStrategy::Blocking, BufferStrategy::IfPossible]),
            min_idle: Duration::from_micros(random.pick(&[0, 0, 200, 1_000])),
            // Mostly endless, so that a lost wake-up is a failure rather than a delay.
            max_idle: Duration::from_millis(random.pick(&[60_000, 60_000, 2])),
            max_batch_items: size(random),
            max_delay: None,
            retry,
            balancer,
            rebalance_interval: Duration::from_millis(random.pick(&[0, 1])),
            takeover_after: Duration::from_millis(random.pick(&[1, 2, 20])),
            spare_threads: None,
            // Short, so that the watchdog's visits race with everything else.
            warn_after: Some(Duration::from_millis(1)),
        };
        if config.max_batch_items > 1 && random.once_in(3) {
            let micros = random.pick(&[100, 2_000, 50_000]);
            config.max_delay = Some(Duration::from_micros(micros));
        }
        let mode = match random.below(6) {
            0 => Mode::OneConsumer,
            1 => Mode::ConsumerPerThread,
            _ => Mode::Handlers,
        };
        if mode != Mode::ConsumerPerThread {
            config.spare_threads = random.pick(&[None, None, Some(0), Some(2)]);
        }
        let end = random.pick(&[
            End::After,
            End::After,
            End::After,
            End::MidRun,
            End::FromHandler,
            End::OutOfTime,
        ]);
        let pool = random.once_in(4).then(|| random.within(1..4));
        let (has_slow_calls, has_keeper) = (random.once_in(8), random.once_in(2));
        Self { config, mode, end, pool, has_slow_calls, has_keeper }
    }
}
