//! Growth: which partitions a new type gets, and how many the queue has.
//!
//! A new type gets partitions for the queue's life: its own while the policy allows as many, else
//! the one with the fewest types.

use std::collections::{BTreeSet, VecDeque};

use crate::config::{Config, PartitionPolicy, Selector};
use crate::flow::route::{Route, TypeHandlers};

/// What growth keeps, under the control lock.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// Of all types that were ever registered, so that partitions only grow.
    weight: f64,
    types: TypesPerPartition,
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
        self.types.grow(route.partition_count());
        let chosen = self.types.choose(spread, most, |index| route.owner(index).load().wanted());
        for &index in &chosen {
            if self.types.add(index) > 1 {
                // Marked before any producer finds the type.
                route.partition(index).mix();
                route.partition(index).end_quiet();
            }
        }
        chosen
    }
}

/// How many types each partition has.
#[derive(Debug, Default)]
struct TypesPerPartition {
    counts: Vec<usize>,
    /// The same, with the index behind the count.
    fewest_first: BTreeSet<(usize, usize)>,
}

impl TypesPerPartition {
    fn grow(&mut self, partitions: usize) {
        self.fewest_first.extend((self.counts.len()..partitions).map(|index| (0, index)));
        self.counts.resize(partitions, 0);
    }

    /// One more type in a partition. Returns how many it has then.
    fn add(&mut self, index: usize) -> usize {
        let before = self.counts[index];
        self.fewest_first.remove(&(before, index));
        self.fewest_first.insert((before + 1, index));
        self.counts[index] = before + 1;
        before + 1
    }

    /// The best `spread` partitions for a type: first on threads that have none of it yet, so that
    /// its instances run in parallel; then those with the fewest types. `thread_of` is called for a
    /// type that is spread.
    fn choose(
        &self,
        spread: usize,
        threads: usize,
        thread_of: impl Fn(usize) -> usize,
    ) -> Vec<usize> {
        if spread == 1 {
            return self.fewest_first.first().map(|&(_, index)| index).into_iter().collect();
        }
        let mut by_thread = vec![VecDeque::new(); threads];
        for &(types, index) in &self.fewest_first {
            let candidates = &mut by_thread[thread_of(index)];
            if candidates.len() < spread {
                candidates.push_back((types, index));
            }
        }
        let mut used = vec![0_usize; threads];
        let mut chosen = Vec::with_capacity(spread);
        while chosen.len() < spread {
            let candidates = by_thread.iter().enumerate().filter_map(|(thread, candidates)| {
                Some(((used[thread], *candidates.front()?), thread))
            });
            let Some((_, thread)) = candidates.min() else { break };
            used[thread] += 1;
            chosen.extend(by_thread[thread].pop_front().map(|(_, index)| index));
        }
        chosen
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(counts: &[usize]) -> TypesPerPartition {
        let mut types = TypesPerPartition::default();
        types.grow(counts.len());
        for (index, &count) in counts.iter().enumerate() {
            for _ in 0..count {
                types.add(index);
            }
        }
        types
    }

    /// The rule itself, by a scan for each partition.
    fn by_scans(types: &[usize], threads: &[usize], spread: usize) -> Vec<usize> {
        let mut used = [0_usize; 4];
        let mut chosen: Vec<usize> = Vec::new();
        for _ in 0..spread {
            let free = (0..types.len()).filter(|index| !chosen.contains(index));
            let best = free.min_by_key(|&index| (used[threads[index]], types[index], index));
            let Some(best) = best else { break };
            used[threads[best]] += 1;
            chosen.push(best);
        }
        chosen
    }

    proptest! {
        #[test]
        fn a_type_gets_the_partitions_with_the_fewest_types_on_different_threads(
            partitions in prop::collection::vec((0_usize..4, 0_usize..4), 1..30),
            spread in 1_usize..8,
        ) {
            let (types, threads): (Vec<_>, Vec<_>) = partitions.into_iter().unzip();
            let chosen = counts(&types).choose(spread, 4, |index| threads[index]);
            prop_assert_eq!(chosen, by_scans(&types, &threads, spread));
        }
    }
}
