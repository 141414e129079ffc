//! The meter: what each partition was asked for, and what that costs.
//!
//! It reads counts that producers and drain threads keep anyway. Nothing is reset: a load is the difference of two
//! readings, and the first reading counts from the queue's start.

use rustc_hash::FxHashMap;

use crate::flow::handler::Item;
use crate::flow::partition::Partition;
use crate::flow::route::Route;

/// The reading before.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    attempts: Vec<u64>,
}

impl Meter {
    /// Attempts per partition since the reading before: what was wanted, also of what waited or was refused.
    #[allow(clippy::cast_precision_loss)] // beyond 2^53 attempts in one interval
    pub(crate) fn read<T: Item>(&mut self, route: &Route<T>) -> Vec<f64> {
        let now: Vec<u64> = route.partitions().map(Partition::attempts).collect();
        self.attempts.resize(now.len(), 0);
        let load = now.iter().zip(&self.attempts).map(|(now, before)| (now - before) as f64).collect();
        self.attempts = now;
        load
    }
}

/// Weighs each partition's load by the handlers' moving average of nanoseconds per item. Waiting for the interpreter, for
/// an entry token or for the next try is in none of these averages.
///
/// A partition of several types gets their average, weighted by the items they had; one that nothing is known about
/// gets the average of all.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn weigh_by_cost<T: Item>(load: &mut [f64], route: &Route<T>) {
    let mut sums: FxHashMap<usize, (f64, f64)> = FxHashMap::default();
    let (mut all_ns, mut all_items) = (0.0, 0.0);
    for type_route in route.types() {
        let Some(registered) = type_route.registered() else { continue };
        let counts = registered.tally.counts();
        let items = (counts.consumed + counts.failed) as f64;
        all_ns += counts.ns_per_item * items;
        all_items += items;
        for &partition in &type_route.partitions {
            let (ns, of) = sums.entry(partition).or_default();
            *ns += counts.ns_per_item * items;
            *of += items;
        }
    }
    let average = if all_items > 0.0 { all_ns / all_items } else { 1.0 };
    for (partition, load) in load.iter_mut().enumerate() {
        *load *= match sums.get(&partition) {
            Some((ns, items)) if *items > 0.0 => ns / items,
            _ => average,
        };
    }
}
