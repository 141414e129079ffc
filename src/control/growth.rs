//! Growth: which partitions a new type gets, and how many the queue has.
//!
//! A new type gets partitions for the queue's life: its own while the policy allows as many, else
//! the one with the fewest types.

use crate::config::{Config, PartitionPolicy, Selector};
use crate::flow::route::{Route, TypeHandlers};

/// What growth keeps, under the control lock.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// Of all types that were ever registered, so that partitions only grow.
    weight: f64,
    types_per_partition: Vec<usize>,
    /// Of these, the types whose handlers need the host.
    hosted_types: Vec<usize>,
}

impl Growth {
    /// Counts the types whose handlers need the host, and marks the partitions that need none.
    pub(super) fn count_hosted<T>(
        &mut self,
        route: &Route<T>,
        partitions: &[usize],
        before: Option<&TypeHandlers<T>>,
        now: Option<&TypeHandlers<T>>,
    ) {
        self.hosted_types.resize(route.partition_count(), 0);
        for &partition in partitions {
            let hosted = &mut self.hosted_types[partition];
            *hosted = *hosted + usize::from(now.is_some_and(TypeHandlers::needs_host))
                - usize::from(before.is_some_and(TypeHandlers::needs_host));
            route.partition(partition).set_host_free(*hosted == 0);
        }
    }

    /// Chooses `spread` partitions for a new type; adds partitions if the policy says so. Takes how
    /// many threads there are, and how many there may be.
    pub(super) fn place<T>(
        &mut self,
        route: &Route<T>,
        config: &Config,
        (threads, most): (usize, usize),
        weight: f64,
        spread: usize,
    ) -> Vec<usize> {
        #[allow(clippy::cast_precision_loss)] // at most the number of partitions
        let copies = spread as f64;
        self.weight += weight * copies;
        if let (Selector::ByType, policy @ PartitionPolicy::Adaptive { .. }) =
            (config.selector, config.partitions)
        {
            let wanted = policy.resolve(threads, self.weight).max(spread);
            route.grow(config, threads, wanted);
        }
        self.types_per_partition.resize(route.partition_count(), 0);
        let mut chosen: Vec<usize> = Vec::with_capacity(spread);
        let mut used_threads = vec![0_usize; most];
        for _ in 0..spread {
            // First a thread that has no partition of this type yet, so that its instances run in
            // parallel; then the fewest types.
            let free = (0..self.types_per_partition.len()).filter(|index| !chosen.contains(index));
            let thread = |index: usize| route.owner(index).load().wanted();
            let best = free.min_by_key(|&index| {
                (used_threads[thread(index)], self.types_per_partition[index], index)
            });
            let Some(best) = best else { break };
            used_threads[thread(best)] += 1;
            self.types_per_partition[best] += 1;
            if self.types_per_partition[best] > 1 {
                // Marked before any producer finds the type.
                route.partition(best).mix();
                route.partition(best).end_quiet();
            }
            chosen.push(best);
        }
        chosen
    }
}
