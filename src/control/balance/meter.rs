//! The meter: the demand on each partition, and its cost.
//!
//! It reads counts that producers and drain threads maintain anyway. Nothing is reset: a load is
//! the difference between two readings, and the first reading counts from the queue's start.

use rustc_hash::FxHashMap;

use super::plan::{extremes, thread_loads};
use crate::config::Selector;
use crate::flow::partition::Partition;
use crate::flow::route::Route;
use crate::item::Item;
use crate::sync::{Duration, Instant};

/// After this many consecutive runs without enough evidence, the baseline moves anyway: slow
/// traffic can add up to evidence, and outdated readings are forgotten.
const MAX_KEPT_RUNS: u32 = 10;

/// The attempts on each partition, and the weight of one attempt.
#[derive(Debug)]
pub(super) struct Reading {
    counts: Vec<u64>,
    attempts: Vec<f64>,
    /// By throughput always 1, by cost the nanoseconds per item.
    weight: Vec<f64>,
}

impl Reading {
    pub(super) fn load(&self) -> Vec<f64> {
        self.attempts.iter().zip(&self.weight).map(|(attempts, weight)| attempts * weight).collect()
    }

    /// Whether the threads' loads differ by more than chance. Attempts are counts, so their
    /// variance is about their number (Poisson), and the variance of a load is the square of its
    /// weight times the attempts. Without this test, a queue with little traffic would move
    /// partitions at every run.
    pub(super) fn evidence(&self, owner: &[usize], threads: usize) -> Evidence {
        const DEVIATIONS: f64 = 3.0;
        /// If chance explains differences of at most this share of the largest load, it cannot hide
        /// one that would be worth a move.
        const CLOSE_ENOUGH: f64 = 0.1;
        let variance: Vec<f64> =
            self.load().iter().zip(&self.weight).map(|(load, weight)| load * weight).collect();
        let (smallest, largest) = extremes(&thread_loads(&self.load(), owner, threads));
        let (less, more) = extremes(&thread_loads(&variance, owner, threads));
        let by_chance = DEVIATIONS * (less + more).sqrt();
        if largest - smallest >= by_chance && largest > 0.0 {
            Evidence::Uneven
        } else if by_chance <= CLOSE_ENOUGH * largest {
            Evidence::Even
        } else {
            Evidence::TooLittle
        }
    }

    /// Weighs each partition by its handlers' moving average of nanoseconds per item. The averages
    /// exclude waiting for the interpreter, for the handler, or for the next attempt.
    ///
    /// A partition of several types gets their average, weighted by their items. A partition
    /// without history, or one that any type may be routed to, gets the overall average.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn weigh_by_cost<T: Item>(&mut self, route: &Route<T>, selector: Selector) {
        let mut sums: FxHashMap<usize, (f64, f64)> = FxHashMap::default();
        let (mut all_ns, mut all_items) = (0.0, 0.0);
        for type_route in route.types() {
            let Some(registered) = type_route.registered() else { continue };
            let counts = registered.tally.counts();
            let items = (counts.consumed + counts.failed) as f64;
            all_ns += counts.ns_per_item * items;
            all_items += items;
            for &partition in type_route.partitions.iter().filter(|_| selector == Selector::ByType)
            {
                let (ns, of) = sums.entry(partition).or_default();
                *ns += counts.ns_per_item * items;
                *of += items;
            }
        }
        let average = if all_items > 0.0 { all_ns / all_items } else { 1.0 };
        for (partition, weight) in self.weight.iter_mut().enumerate() {
            *weight = match sums.get(&partition) {
                Some((ns, items)) if *items > 0.0 => ns / items,
                _ => average,
            };
        }
    }
}

/// What a reading shows about the threads' loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The threads differ by more than chance explains.
    Uneven,
    Even,
    /// Chance alone could explain the difference, and it could hide one worth a move.
    TooLittle,
}

/// The baseline: the counts of an earlier reading.
#[derive(Debug, Default)]
pub(super) struct Meter {
    baseline: Vec<u64>,
    kept_runs: u32,
    /// The time that each thread had spent in calls, and when that was read.
    busy: Vec<Duration>,
    busy_at: Option<Instant>,
}

impl Meter {
    /// Reads the attempts per partition since the baseline. They measure demand, so they include
    /// attempts that waited or were refused.
    #[allow(clippy::cast_precision_loss)] // beyond 2^53 attempts in one interval
    pub(super) fn read<T: Item>(&mut self, route: &Route<T>) -> Reading {
        let counts: Vec<u64> = route.partitions().map(Partition::attempts).collect();
        self.baseline.resize(counts.len(), 0);
        let attempts = counts
            .iter()
            .zip(&self.baseline)
            .map(|(now, baseline)| (now - baseline) as f64)
            .collect();
        let weight = vec![1.0; counts.len()];
        Reading { counts, attempts, weight }
    }

    /// The share of the time since the last call of this function that each thread has spent in
    /// calls; 0 at the first.
    pub(super) fn busy_shares(&mut self, busy: Vec<Duration>, now: Instant) -> Vec<f64> {
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
    pub(super) fn advance(&mut self, reading: Reading) {
        self.baseline = reading.counts;
        self.kept_runs = 0;
    }

    /// Keeps the baseline, because the reading held too little evidence, unless the baseline is too
    /// old.
    pub(super) fn keep(&mut self, reading: Reading) {
        self.kept_runs += 1;
        if self.kept_runs >= MAX_KEPT_RUNS {
            self.advance(reading);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn reading(attempts: &[f64], weight: &[f64]) -> Reading {
        Reading { counts: Vec::new(), attempts: attempts.to_vec(), weight: weight.to_vec() }
    }

    #[test]
    fn small_differences_of_small_counts_are_too_little_evidence() {
        let of = |attempts: [f64; 2]| reading(&attempts, &[1.0; 2]).evidence(&[0, 1], 2);
        assert_eq!(of([10.0, 4.0]), Evidence::TooLittle);
        assert_eq!(of([0.0, 0.0]), Evidence::Even);
        assert_eq!(of([10_000.0, 10_100.0]), Evidence::Even);
        assert_eq!(of([1_000.0, 400.0]), Evidence::Uneven);
        assert_eq!(of([1_000.0, 0.0]), Evidence::Uneven);
    }

    #[test]
    fn a_share_of_busy_time_is_that_of_the_interval() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        let seconds = |list: [u64; 2]| list.map(Duration::from_secs).to_vec();
        assert_eq!(meter.busy_shares(seconds([100, 0]), start), [0.0, 0.0]);
        let later = start + Duration::from_secs(10);
        assert_eq!(meter.busy_shares(seconds([110, 5]), later), [1.0, 0.5]);
    }

    #[test]
    fn equal_counts_of_unequal_cost_are_uneven() {
        let (counts, owner) = ([10_000.0; 4], [0, 1, 0, 1]);
        assert_eq!(reading(&counts, &[1.0; 4]).evidence(&owner, 2), Evidence::Even);
        assert_eq!(
            reading(&counts, &[200.0, 1.0, 200.0, 1.0]).evidence(&owner, 2),
            Evidence::Uneven
        );
    }
}
