//! The types that the control side knows: those with a handler, and those that are leaving.
//!
//! ```text
//!   (unknown) ──register──▶ with a handler ──remove──▶ leaving ──what it left is settled──▶ (gone)
//!        ▲                        ▲                       │                                   │
//!        └────────────────────────└───────register────────┘◀─────────────register─────────────┘
//! ```
//!
//! A leaving type keeps its entry in the type table, its number and its partitions until everything
//! that was in them when it lost its handler is settled. Then it goes: only its former partitions
//! are remembered for a while.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Add, AddAssign, Sub};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::config::{Config, PartitionPolicy, Selector};
use crate::flow::route::Route;
use crate::flow::route::type_handlers::{Partitions, TypeHandlers};
use crate::flow::route::type_table::TableUse;
use crate::item::{MOST_PARTITIONS_OF_TYPE, TypeKey};

/// The position up to which each partition has to be settled.
pub(crate) type Goals = SmallVec<[(usize, u64); 1]>;

/// A type that has not gone.
#[derive(Debug)]
pub(crate) struct KnownType {
    /// The number of its place in the route.
    pub(crate) number: usize,
    pub(crate) partitions: Partitions,
    /// The number of its spread in the route, if it has several partitions.
    pub(crate) spread: Option<usize>,
    /// The total weight of its handlers.
    pub(crate) weight: Weight,
    /// `None` while it has a handler.
    goals: Option<Goals>,
    /// Whether it is in the list of leaving types, where it stays even if it has a handler again.
    is_listed: bool,
}

impl KnownType {
    pub(crate) fn new(
        number: usize,
        partitions: Partitions,
        spread: Option<usize>,
        weight: Weight,
    ) -> Self {
        Self { number, partitions, spread, weight, goals: None, is_listed: false }
    }
}

/// Under the control lock.
#[derive(Debug, Default)]
pub(crate) struct KnownTypes {
    by_key: FxHashMap<TypeKey, KnownType>,
    leaving: VecDeque<TypeKey>,
    pub(crate) whereabouts: Whereabouts,
    /// Numbers of types that have gone.
    pub(crate) free_numbers: Vec<usize>,
    /// Spreads of types that have gone.
    pub(crate) free_spreads: Vec<usize>,
    pub(crate) table_use: TableUse,
}

impl KnownTypes {
    pub(crate) fn get(&self, key: TypeKey) -> Option<&KnownType> {
        self.by_key.get(&key)
    }

    pub(crate) fn add(&mut self, key: TypeKey, known: KnownType) {
        self.by_key.insert(key, known);
    }

    /// Notes that the type has a handler again, or a different one.
    pub(crate) fn stay(&mut self, key: TypeKey) {
        if let Some(known) = self.by_key.get_mut(&key) {
            known.goals = None;
        }
    }

    /// Notes that the type has lost its handler.
    pub(crate) fn leave(&mut self, key: TypeKey, goals: Goals) {
        let Some(known) = self.by_key.get_mut(&key) else { return };
        known.goals = Some(goals);
        if !std::mem::replace(&mut known.is_listed, true) {
            self.leaving.push_back(key);
        }
    }

    /// Checks the first `most` leaving types and removes those that can go. `completed` returns the
    /// position up to which a partition is settled.
    pub(crate) fn take_gone(
        &mut self,
        most: usize,
        completed: impl Fn(usize) -> u64,
    ) -> Vec<(TypeKey, KnownType)> {
        let mut gone = Vec::new();
        for _ in 0..most.min(self.leaving.len()) {
            let Some(key) = self.leaving.pop_front() else { break };
            let Some(known) = self.by_key.get_mut(&key) else { continue };
            let Some(goals) = &mut known.goals else {
                known.is_listed = false;
                continue;
            };
            let waits = |partition, goal| completed(partition) < goal;
            goals.retain(|&mut (partition, goal)| waits(partition, goal));
            if goals.is_empty() {
                gone.extend(self.by_key.remove(&key).map(|known| (key, known)));
            } else {
                self.leaving.push_back(key);
            }
        }
        gone
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn count(&self) -> usize {
        self.by_key.len()
    }

    /// Returns the number of listed types, including those that have a handler again.
    pub(crate) fn leaving(&self) -> usize {
        self.leaving.len()
    }
}

// The former partitions of types that have gone, for as long as they matter.
//
// A type that comes back soon gets its former partitions. Items of it that no handler will get may
// still be queued: those put before it went, or while it was not registered. If it came back to
// another partition, went, and came back to a third, such an item could be there and reach its
// handler behind newer ones. So a type is forgotten only when every item put before it went, into
// any partition, is settled.
//
// One cursor serves all types. It visits the partitions in turn and stays at each until the items
// that were there on its arrival are settled. A type is forgotten after the first whole round that
// began after it went.

/// Under the control lock.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts {
    places: FxHashMap<TypeKey, Place>,
    /// Types in the order in which they went, each with its round. Some have come back since, and
    /// may have gone again.
    gone: VecDeque<(TypeKey, u64)>,
    /// The number of whole rounds so far.
    round: u64,
    /// The partition to check next.
    cursor: usize,
    /// The position up to which that partition has to be settled.
    goal: Option<u64>,
}

#[derive(Debug)]
struct Place {
    partitions: Partitions,
    /// The round in which the type went.
    round: u64,
}

impl Whereabouts {
    /// Notes that a type has gone from these partitions.
    pub(crate) fn note(&mut self, key: TypeKey, partitions: Partitions) {
        let round = self.round;
        let before = self.places.insert(key, Place { partitions, round });
        // A type that keeps coming and going is listed once per round.
        if before.is_none_or(|before| before.round != round) {
            self.gone.push_back((key, round));
        }
    }

    /// Returns the former partitions of a type.
    pub(crate) fn get(&self, key: TypeKey) -> Option<&Partitions> {
        self.places.get(&key).map(|place| &place.partitions)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gone.is_empty()
    }

    /// Checks up to `steps` of the `count` partitions. `pushed` returns how many items were put
    /// into a partition, and `completed` the position up to which all are settled.
    pub(crate) fn advance(
        &mut self,
        count: usize,
        steps: usize,
        pushed: impl Fn(usize) -> u64,
        completed: impl Fn(usize) -> u64,
    ) {
        for _ in 0..steps {
            if self.is_empty() {
                return;
            }
            let goal = *self.goal.get_or_insert_with(|| pushed(self.cursor));
            if completed(self.cursor) < goal {
                return;
            }
            self.goal = None;
            self.cursor += 1;
            if self.cursor >= count {
                self.cursor = 0;
                self.round += 1;
                self.forget();
            }
        }
    }

    /// Forgets the types that went before the last round began.
    fn forget(&mut self) {
        while let Some(&(key, round)) = self.gone.front()
            && round + 2 <= self.round
        {
            self.gone.pop_front();
            // A type that has gone again since has a later entry.
            if self.places.get(&key).is_some_and(|place| place.round == round) {
                self.places.remove(&key);
            }
        }
    }
}

// Growth: which partitions a new type gets, and how many the queue has.
//
// A new type gets partitions for as long as the queue knows it: its own while the policy allows
// that many, else those with the fewest types. Partitions are never freed: one whose types have
// gone is the first to get another.

/// The state of growth, under the control lock.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// The total weight of all types that have not gone.
    weight: Weight,
    types: TypesPerPartition,
    /// Per partition, the only type that it has ever had.
    only_type: Vec<OnlyType>,
    /// Per partition, the number of its types whose handlers need the host.
    hosted_types: Vec<usize>,
}

impl Growth {
    /// Counts the types whose handlers need the host, and marks partitions without such types.
    pub(crate) fn count_hosted<T>(
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

    /// Chooses `spread` partitions for a new type, and adds partitions if the policy says so. There
    /// are `threads` threads, and at most `most`; `weight` is that of all the type's handlers.
    pub(crate) fn place<T>(
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
            // The rest is added with the next types: types that have come back did not add theirs.
            let most = route.partition_count() + MOST_PARTITIONS_OF_TYPE;
            route.grow(config, threads, wanted.min(most).max(spread));
        }
        self.types.grow(route.partition_count());
        self.types.choose(spread, most, |index| route.owner(index).load().wanted())
    }

    /// Whether none of these partitions has a type.
    pub(crate) fn are_free(&self, partitions: &[usize]) -> bool {
        partitions.iter().all(|&index| self.types.counts[index] == 0)
    }

    /// Notes that a type gets these partitions. Called before any producer can find it.
    pub(crate) fn add_type<T>(
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
            // A type that has gone counts too: a producer that looked it up before may put its item
            // later.
            if *only_type == OnlyType::Several {
                route.partition(index).mix();
                route.partition(index).end_suppression();
            }
        }
    }

    /// Notes that a type has gone from these partitions.
    pub(crate) fn remove_type(&mut self, partitions: &[usize], weight: Weight) {
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

/// The weight of types, as a multiple of 2⁻⁶⁴, so that sums and differences are exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Weight(u128);

impl Weight {
    const ONE: f64 = 18_446_744_073_709_551_616.0;

    /// Returns the weight of `handlers` handlers of `weight` each, which is above 0.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(crate) fn of(weight: f64, handlers: usize) -> Self {
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
    /// The pairs of count and index, in order.
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

    /// Returns the best `spread` partitions for a type: first on threads that have none of it yet,
    /// so that its instances run in parallel; then those with the fewest types. `thread_of` is
    /// called only for a type that is spread.
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

    const KEY: TypeKey = TypeKey(16);

    fn with_one_type() -> KnownTypes {
        let mut types = KnownTypes::default();
        types.add(KEY, KnownType::new(0, Partitions::from_elem(3, 1), None, Weight::default()));
        types
    }

    fn goals(goal: u64) -> Goals {
        Goals::from_elem((3, goal), 1)
    }

    #[test]
    fn a_type_goes_when_its_partition_is_settled_up_to_its_removal() {
        let mut types = with_one_type();
        types.leave(KEY, goals(5));
        assert!(types.take_gone(9, |_| 4).is_empty());
        assert!(types.get(KEY).is_some() && types.leaving() == 1);
        let gone = types.take_gone(9, |_| 5);
        assert_eq!(gone.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [KEY]);
        assert!(types.get(KEY).is_none() && types.leaving() == 0);
    }

    #[test]
    fn a_type_with_a_handler_again_does_not_go() {
        let mut types = with_one_type();
        types.leave(KEY, goals(5));
        types.stay(KEY);
        assert!(types.take_gone(9, |_| 9).is_empty());
        assert!(types.get(KEY).is_some() && types.leaving() == 0);
    }

    #[test]
    fn a_type_that_leaves_again_and_again_is_listed_once() {
        let mut types = with_one_type();
        for goal in 0..100 {
            types.leave(KEY, goals(goal));
            types.stay(KEY);
        }
        types.leave(KEY, goals(100));
        assert_eq!(types.leaving(), 1);
        assert!(types.take_gone(9, |_| 99).is_empty(), "its last removal counts");
        assert_eq!(types.take_gone(9, |_| 100).len(), 1);
    }
}

#[cfg(all(test, not(loom)))]
mod whereabouts_tests {
    use std::cell::RefCell;

    use super::*;

    fn at(partition: usize) -> Partitions {
        Partitions::from_elem(partition, 1)
    }

    #[test]
    fn a_type_is_forgotten_when_all_that_was_put_before_it_went_is_settled() {
        let (pushed, completed) = (RefCell::new([5_u64; 3]), RefCell::new([5_u64; 3]));
        let mut whereabouts = Whereabouts::default();
        let advance = |whereabouts: &mut Whereabouts, steps| {
            whereabouts.advance(3, steps, |at| pushed.borrow()[at], |at| completed.borrow()[at]);
        };
        // The cursor has passed the first partition when the type goes.
        whereabouts.note(TypeKey(9), at(0));
        advance(&mut whereabouts, 1);
        whereabouts.note(TypeKey(1), at(2));
        pushed.borrow_mut()[0] = 6;
        advance(&mut whereabouts, 100);
        assert!(whereabouts.places.contains_key(&TypeKey(1)), "an item of partition 0 is left");
        // Items put later do not matter.
        pushed.borrow_mut()[0] = 7;
        completed.borrow_mut()[0] = 6;
        advance(&mut whereabouts, 100);
        assert!(whereabouts.is_empty() && whereabouts.places.is_empty());
    }

    #[test]
    fn a_type_that_comes_back_gets_its_partition_and_may_go_again() {
        let mut whereabouts = Whereabouts::default();
        let advance = |whereabouts: &mut Whereabouts, steps| {
            whereabouts.advance(2, steps, |_| 1, |_| 1);
        };
        whereabouts.note(TypeKey(1), at(1));
        whereabouts.note(TypeKey(1), at(1));
        assert_eq!(whereabouts.get(TypeKey(1)), Some(&at(1)));
        assert_eq!(whereabouts.gone.len(), 1);
        advance(&mut whereabouts, 3);
        whereabouts.note(TypeKey(1), at(1));
        // The end of its first life does not end its second one.
        advance(&mut whereabouts, 1);
        assert!(whereabouts.places.contains_key(&TypeKey(1)));
        advance(&mut whereabouts, 100);
        assert!(whereabouts.is_empty() && whereabouts.places.is_empty());
    }

    #[test]
    fn many_types_that_come_and_go_are_forgotten_in_turn() {
        let mut whereabouts = Whereabouts::default();
        for number in 0..10_000 {
            whereabouts.note(TypeKey(number), at(number % 100));
            whereabouts.advance(100, 4, |_| 0, |_| 0);
            assert!(whereabouts.places.len() <= 100 && whereabouts.gone.len() <= 100);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod growth_tests {
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

    /// The rule itself, by one scan per chosen partition.
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
