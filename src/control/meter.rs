//! The meter: measures the load of each partition, as demand or as busy time.
//!
//! It reads counts that producers and drain threads maintain anyway. Nothing is reset: a load is
//! the difference between two readings, and the first reading counts from the queue's start.

use crate::balance::plan::{extremes, thread_loads};
use crate::flow::partition::Partition;
use crate::flow::route::Route;
use crate::item::Item;
use crate::observe::Calling;
use crate::sync::{Duration, Instant};

/// After this many consecutive runs without enough evidence, the baseline moves anyway. Until then
/// slow traffic can add up to evidence; after that, readings would be outdated.
const MAX_KEPT_RUNS: u32 = 10;

/// The share of time that the busiest thread must spend busy before any partition moves.
const LEAST_BUSY: f64 = 0.05;

/// The measure of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Attempts to put items: demand. Refused attempts count up to the number of accepted ones,
    /// since a producer that retries asks for nothing more. A partition that only waits for its
    /// next try has no demand that another thread could serve.
    Attempts,
    /// The time in handlers, up to now.
    Busy,
}

/// The counts of a partition at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) attempts: u64,
    pub(crate) accepted: u64,
    pub(crate) settled: u64,
    /// The time in handlers, in seconds, and the sum of its squares over the calls. A call that is
    /// running counts with its time so far.
    pub(crate) busy: f64,
    pub(crate) squares: f64,
    pub(crate) backs_off: bool,
}

impl Sample {
    fn of<T>(partition: &Partition<T>) -> Self {
        let counts = partition.counts();
        Self {
            attempts: counts.attempts,
            accepted: counts.pushed,
            settled: counts.settled,
            busy: counts.calls.total.as_secs_f64(),
            squares: counts.calls.squares,
            backs_off: counts.backs_off,
        }
    }

    pub(crate) fn add_call(&mut self, took: Duration) {
        self.busy += took.as_secs_f64();
        self.squares += took.as_secs_f64() * took.as_secs_f64();
    }

    #[allow(clippy::cast_precision_loss)] // beyond 2^53 attempts in one interval
    fn demand_since(&self, before: &Self) -> f64 {
        if self.backs_off && self.settled == before.settled {
            return 0.0;
        }
        let attempts = self.attempts - before.attempts;
        attempts.min(2 * (self.accepted - before.accepted)) as f64
    }

    /// Returns load and variance, at least 0: a call that ended between two reads may be missing
    /// from one.
    fn busy_since(&self, before: &Self) -> (f64, f64) {
        ((self.busy - before.busy).max(0.0), (self.squares - before.squares).max(0.0))
    }
}

/// The load of each partition since the baseline.
#[derive(Debug)]
pub(crate) struct Reading {
    samples: Vec<Sample>,
    load: Vec<f64>,
    /// The variance of each load under pure chance.
    variance: Vec<f64>,
    /// The load below which a thread has nothing worth moving.
    least: f64,
    at: Instant,
}

impl Reading {
    pub(crate) fn load(&self) -> &[f64] {
        &self.load
    }

    /// Tests whether the threads' loads differ by more than chance. Without this test, a queue with
    /// little traffic would move partitions on every run.
    ///
    /// Attempts are counts, whose variance is about their number (Poisson). Busy time is a sum over
    /// calls at random times (compound Poisson), whose variance is about the sum of their squares:
    /// evidence takes many long calls but few quick ones.
    fn evidence(&self, owner: &[usize], threads: usize) -> Evidence {
        const DEVIATIONS: f64 = 3.0;
        /// If chance explains at most this share of the largest load, it cannot hide a difference
        /// worth a move.
        const CLOSE_ENOUGH: f64 = 0.1;
        let (smallest, largest) = extremes(&thread_loads(&self.load, owner, threads));
        let (less, more) = extremes(&thread_loads(&self.variance, owner, threads));
        let by_chance = DEVIATIONS * (less + more).sqrt();
        if largest < self.least {
            Evidence::Even
        } else if largest - smallest >= by_chance && largest > 0.0 {
            Evidence::Uneven
        } else if by_chance <= CLOSE_ENOUGH * largest {
            Evidence::Even
        } else {
            Evidence::TooLittle
        }
    }
}

/// The evidence in a reading about the threads' loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// The threads differ by more than chance explains.
    Uneven,
    Even,
    /// Chance alone could explain the difference, and it could hide one worth a move.
    TooLittle,
}

/// The baseline: the counts of an earlier reading.
#[derive(Debug)]
pub(crate) struct Meter {
    baseline: Vec<Sample>,
    baseline_at: Instant,
    kept_runs: u32,
    /// The time that each thread had spent in calls as of `busy_at`.
    busy: Vec<Duration>,
    busy_at: Option<Instant>,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            baseline: Vec::new(),
            baseline_at: Instant::now(),
            kept_runs: 0,
            busy: Vec::new(),
            busy_at: None,
        }
    }

    /// Reads the load of each partition since the baseline. `calls` returns the running calls.
    pub(crate) fn read<T: Item>(
        &mut self,
        route: &Route<T>,
        measure: Measure,
        calls: impl FnOnce() -> Vec<(Calling, Instant)>,
    ) -> Reading {
        let mut samples: Vec<Sample> = route.partitions().map(Sample::of).collect();
        // Read second: a call that ends between the two reads is in neither, and counts next time.
        for (calling, since) in calls() {
            if let Calling::Batch { partition, .. } = calling
                && let Some(sample) = samples.get_mut(partition)
            {
                sample.add_call(since.elapsed());
            }
        }
        self.reading(samples, measure, Instant::now())
    }

    /// Computes the reading from counts that were read at `now`.
    pub(crate) fn reading(
        &mut self,
        samples: Vec<Sample>,
        measure: Measure,
        now: Instant,
    ) -> Reading {
        self.baseline.resize(samples.len(), Sample::default());
        let loads = samples.iter().zip(&self.baseline);
        let (load, variance) = match measure {
            Measure::Attempts => {
                let load: Vec<f64> = loads.map(|(now, before)| now.demand_since(before)).collect();
                (load.clone(), load)
            }
            Measure::Busy => loads.map(|(now, before)| now.busy_since(before)).unzip(),
        };
        let least = match measure {
            Measure::Attempts => 0.0,
            Measure::Busy => {
                LEAST_BUSY * now.saturating_duration_since(self.baseline_at).as_secs_f64()
            }
        };
        Reading { samples, load, variance, least, at: now }
    }

    /// Returns the share of time that each thread has spent in calls since this was last called; 0
    /// the first time.
    pub(crate) fn busy_shares(&mut self, busy: Vec<Duration>, now: Instant) -> Vec<f64> {
        let since = self.busy_at.replace(now);
        let before = std::mem::replace(&mut self.busy, busy);
        let elapsed = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let share = |(now, before): (&Duration, Option<&Duration>)| match before {
            Some(before) if !elapsed.is_zero() => {
                now.saturating_sub(*before).as_secs_f64() / elapsed.as_secs_f64()
            }
            _ => 0.0,
        };
        let before = before.iter().map(Some).chain(std::iter::repeat(None));
        self.busy.iter().zip(before).map(share).collect()
    }

    /// Moves the baseline to this reading.
    pub(crate) fn advance(&mut self, reading: Reading) {
        self.baseline = reading.samples;
        self.baseline_at = reading.at;
        self.kept_runs = 0;
    }

    /// Whether the loads warrant a plan. Without enough evidence the baseline stays, so that the
    /// next reading has more.
    pub(crate) fn weigh(&mut self, reading: Reading, owner: &[usize], threads: usize) -> bool {
        let evidence = reading.evidence(owner, threads);
        if evidence == Evidence::TooLittle {
            self.keep(reading);
        } else {
            self.advance(reading);
        }
        evidence == Evidence::Uneven
    }

    /// Keeps the baseline so that evidence adds up, unless it is too old.
    fn keep(&mut self, reading: Reading) {
        self.kept_runs += 1;
        if self.kept_runs >= MAX_KEPT_RUNS {
            self.advance(reading);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::float_cmp)]

    use super::*;

    fn reading(load: &[f64], variance: &[f64], least: f64) -> Reading {
        let (load, variance) = (load.to_vec(), variance.to_vec());
        Reading { samples: Vec::new(), load, variance, least, at: Instant::now() }
    }

    #[test]
    fn small_differences_of_small_counts_are_too_little_evidence() {
        let of = |attempts: [f64; 2]| reading(&attempts, &attempts, 0.0).evidence(&[0, 1], 2);
        assert_eq!(of([10.0, 4.0]), Evidence::TooLittle);
        assert_eq!(of([0.0, 0.0]), Evidence::Even);
        assert_eq!(of([10_000.0, 10_100.0]), Evidence::Even);
        assert_eq!(of([1_000.0, 400.0]), Evidence::Uneven);
        assert_eq!(of([1_000.0, 0.0]), Evidence::Uneven);
    }

    #[test]
    fn a_share_of_busy_time_is_that_of_the_interval() {
        let (mut meter, start) = (Meter::new(), Instant::now());
        let seconds = |list: [u64; 2]| list.map(Duration::from_secs).to_vec();
        assert_eq!(meter.busy_shares(seconds([100, 0]), start), [0.0, 0.0]);
        let later = start + Duration::from_secs(10);
        assert_eq!(meter.busy_shares(seconds([110, 5]), later), [1.0, 0.5]);
    }

    /// A second of busy time, in calls of `call` seconds each.
    #[test]
    fn long_calls_are_less_evidence_than_quick_ones() {
        let of = |call: f64| reading(&[1.0, 0.2], &[call, 0.2 * call], 0.0).evidence(&[0, 1], 2);
        assert_eq!(of(0.001), Evidence::Uneven);
        assert_eq!(of(0.25), Evidence::TooLittle);
    }

    #[test]
    fn threads_that_are_hardly_busy_are_even() {
        let of = |least| reading(&[0.04, 0.0], &[1e-6, 0.0], least).evidence(&[0, 1], 2);
        assert_eq!((of(0.05), of(0.03)), (Evidence::Even, Evidence::Uneven));
    }

    #[test]
    fn refused_attempts_count_at_most_as_often_as_accepted_ones() {
        let sample = |attempts, accepted| Sample { attempts, accepted, ..Sample::default() };
        let since = |now: Sample| now.demand_since(&sample(100, 50));
        assert_eq!(since(sample(110, 60)), 10.0);
        assert_eq!(since(sample(115, 60)), 15.0);
        assert_eq!(since(sample(900, 60)), 20.0);
        assert_eq!(since(sample(900, 50)), 0.0);
        // Attempts that waited were accepted later.
        assert_eq!(since(sample(105, 60)), 5.0);
    }

    #[test]
    fn a_partition_that_only_waits_for_its_next_try_has_no_demand() {
        let sample = |accepted, settled, backs_off| Sample {
            attempts: accepted,
            accepted,
            settled,
            backs_off,
            ..Sample::default()
        };
        let since = |now: Sample| now.demand_since(&sample(10, 5, false));
        assert_eq!(since(sample(30, 5, true)), 0.0);
        assert_eq!(since(sample(30, 25, true)), 20.0, "others share it");
        assert_eq!(since(sample(30, 5, false)), 20.0, "the handler is running");
    }
}
