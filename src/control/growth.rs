//! Growth: which partitions a new type gets, and how many the queue has.
//!
//! A new type gets partitions for as long as the queue knows it: its own while the policy allows as
//! many, else the one with the fewest types. Partitions are never freed: one whose types have gone
//! is the first to get another.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Add, AddAssign, Sub};

use crate::config::{Config, PartitionPolicy, Selector};
use crate::flow::route::{Partitions, Route, TypeHandlers};
use crate::item::TypeKey;

/// The most partitions that one type may have or ask for.
pub(super) const MOST_PARTITIONS_OF_TYPE: usize = 1_024;

/// What growth keeps, under the control lock.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// Of all types that have not gone.
    weight: Weight,
    types: TypesPerPartition,
    /// The only type that each partition has ever had.
    only_type: Vec<OnlyType>,
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
    /// many threads there are, and how many there may be, and what all handlers of the type weigh.
    pub(super) fn place<T>(
        &mut self,
        route: &Route<T>,
        config: &Config,
        (threads, most): (usize, usize),
        weight: Weight,
        spread: usize,
    ) -> Partitions {
        if let (Selector::ByType, policy @ PartitionPolicy::Adaptive { .. }) =
            (config.selector, config.partitions)
        {
            let wanted = policy.resolve(threads, (self.weight + weight).as_f64());
            // The rest comes with the next types: types that have come back did not add theirs.
            let most = route.partition_count() + MOST_PARTITIONS_OF_TYPE;
            route.grow(config, threads, wanted.min(most).max(spread));
        }
        self.types.grow(route.partition_count());
        self.types.choose(spread, most, |index| route.owner(index).load().wanted())
    }

    /// Whether none of these partitions has a type.
    pub(super) fn are_free(&self, partitions: &[usize]) -> bool {
        partitions.iter().all(|&index| self.types.counts[index] == 0)
    }

    /// A type gets these partitions. Called before any producer finds it.
    pub(super) fn add_type<T>(
        &mut self,
        route: &Route<T>,
        key: TypeKey,
        partitions: &[usize],
        weight: Weight,
    ) {
        self.weight += weight;
        self.types.grow(route.partition_count());
        self.only_type.resize(route.partition_count(), OnlyType::None);
        for &index in partitions {
            self.types.add(index);
            let only_type = &mut self.only_type[index];
            *only_type = only_type.and(key);
            // Also for a type that has gone: a producer may have looked it up before, and put its
            // item later.
            if *only_type == OnlyType::Several {
                route.partition(index).mix();
                route.partition(index).end_quiet();
            }
        }
    }

    /// A type has gone from these partitions.
    pub(super) fn remove_type(&mut self, partitions: &[usize], weight: Weight) {
        self.weight = self.weight - weight;
        for &index in partitions {
            self.types.remove(index);
        }
    }
}

/// Which types a partition has ever had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnlyType {
    None,
    One(TypeKey),
    Several,
}

impl OnlyType {
    fn and(self, key: TypeKey) -> Self {
        match self {
            Self::None => Self::One(key),
            Self::One(known) if known == key => self,
            _ => Self::Several,
        }
    }
}

/// The weight of types, as a multiple of 2⁻⁶⁴: what is added and taken away leaves no error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Weight(u128);

impl Weight {
    const ONE: f64 = 18_446_744_073_709_551_616.0;

    /// That of as many handlers, each of which weighs more than 0.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn of(weight: f64, handlers: usize) -> Self {
        Self((weight * Self::ONE) as u128 * handlers as u128)
    }

    #[allow(clippy::cast_precision_loss)]
    fn as_f64(self) -> f64 {
        self.0 as f64 / Self::ONE
    }
}

impl Add for Weight {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Weight {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Weight {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
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

    fn add(&mut self, index: usize) {
        self.set(index, self.counts[index] + 1);
    }

    fn remove(&mut self, index: usize) {
        self.set(index, self.counts[index] - 1);
    }

    fn set(&mut self, index: usize, count: usize) {
        let before = std::mem::replace(&mut self.counts[index], count);
        self.fewest_first.remove(&(before, index));
        self.fewest_first.insert((count, index));
    }

    /// The best `spread` partitions for a type: first on threads that have none of it yet, so that
    /// its instances run in parallel; then those with the fewest types. `thread_of` is called for a
    /// type that is spread.
    fn choose(
        &self,
        spread: usize,
        threads: usize,
        thread_of: impl Fn(usize) -> usize,
    ) -> Partitions {
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
        let mut chosen = Partitions::with_capacity(spread);
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
            prop_assert_eq!(chosen.to_vec(), by_scans(&types, &threads, spread));
        }

        #[test]
        fn weights_that_come_and_go_leave_no_error(
            weights in prop::collection::vec(1e-3..1e3_f64, 1..50),
        ) {
            let mut sum = Weight::default();
            for _ in 0..100 {
                for &weight in &weights {
                    sum += Weight::of(weight, 3);
                }
                for &weight in weights.iter().rev() {
                    sum = sum - Weight::of(weight, 3);
                }
            }
            prop_assert_eq!(sum, Weight::default());
            prop_assert!((Weight::of(weights[0], 1).as_f64() - weights[0]).abs() < 1e-18);
        }
    }

    #[test]
    fn a_partition_without_types_is_the_next_to_get_one() {
        let mut types = counts(&[1, 2, 1]);
        types.remove(2);
        assert_eq!(types.choose(1, 1, |_| 0).to_vec(), [2]);
        types.add(2);
        assert_eq!(types.choose(1, 1, |_| 0).to_vec(), [0]);
    }
}
