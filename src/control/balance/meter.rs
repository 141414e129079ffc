//! The meter: what each partition was asked for, and what that costs.
//!
//! It reads counts that producers and drain threads keep anyway. Nothing is reset: a load is the
//! difference of two readings, and the first reading counts from the queue's start.

use rustc_hash::FxHashMap;

use super::plan::{extremes, thread_loads};
use crate::config::Selector;
use crate::flow::partition::Partition;
use crate::flow::route::Route;
use crate::item::Item;

/// Runs in a row whose difference may be chance, before the base line moves all the same: so slow
/// traffic adds up to evidence, and an old state of affairs is forgotten.
const MOST_KEPT: u32 = 10;

/// Attempts per partition, and the weight of one.
#[derive(Debug)]
pub(super) struct Reading {
    counts: Vec<u64>,
    attempts: Vec<f64>,
    /// All 1 by throughput, nanoseconds per item by cost.
    weight: Vec<f64>,
}

impl Reading {
    pub(super) fn load(&self) -> Vec<f64> {
        self.attempts.iter().zip(&self.weight).map(|(attempts, weight)| attempts * weight).collect()
    }

    /// What the reading says about the threads. Attempts are counts, so their variance is about
    /// their number (Poisson), and that of a load its weights' squares times the attempts. Without
    /// this a queue with little traffic would move partitions at every run.
    pub(super) fn evidence(&self, owner: &[usize], threads: usize) -> Evidence {
        const DEVIATIONS: f64 = 3.0;
        /// A chance difference below this share of the largest load hides nothing that would be
        /// worth a move.
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

    /// Weighs each partition by its handlers' moving average of nanoseconds per item. Waiting for
    /// the interpreter, for an entry token or for the next try is in none of these averages.
    ///
    /// A partition of several types gets their average, weighted by the items they had; one that
    /// nothing is known about, or that any type may go to, gets the average of all.
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

/// What a reading says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The threads differ by more than chance explains.
    Uneven,
    Even,
    /// Chance alone may have made the threads as different as they are.
    TooLittle,
}

/// The base line: the counts of an earlier reading.
#[derive(Debug, Default)]
pub(super) struct Meter {
    before: Vec<u64>,
    kept: u32,
}

impl Meter {
    /// Attempts per partition since the base line: what was wanted, also of what waited or was
    /// refused.
    #[allow(clippy::cast_precision_loss)] // beyond 2^53 attempts in one interval
    pub(super) fn read<T: Item>(&mut self, route: &Route<T>) -> Reading {
        let counts: Vec<u64> = route.partitions().map(Partition::attempts).collect();
        self.before.resize(counts.len(), 0);
        let attempts =
            counts.iter().zip(&self.before).map(|(now, before)| (now - before) as f64).collect();
        let weight = vec![1.0; counts.len()];
        Reading { counts, attempts, weight }
    }

    /// The next reading begins where this one ended.
    pub(super) fn begin_anew(&mut self, reading: Reading) {
        self.before = reading.counts;
        self.kept = 0;
    }

    /// The reading said too little: the next one begins where it began, unless that is long ago.
    pub(super) fn keep(&mut self, reading: Reading) {
        self.kept += 1;
        if self.kept >= MOST_KEPT {
            self.begin_anew(reading);
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
    fn small_differences_of_small_counts_say_too_little() {
        let of = |attempts: [f64; 2]| reading(&attempts, &[1.0; 2]).evidence(&[0, 1], 2);
        assert_eq!(of([10.0, 4.0]), Evidence::TooLittle);
        assert_eq!(of([0.0, 0.0]), Evidence::Even);
        assert_eq!(of([10_000.0, 10_100.0]), Evidence::Even);
        assert_eq!(of([1_000.0, 400.0]), Evidence::Uneven);
        assert_eq!(of([1_000.0, 0.0]), Evidence::Uneven);
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
