//! The types that the control side knows: those with a handler, and those that are about to go.
//!
//! ```text
//!   (unknown) ──register──▶ with a handler ──remove──▶ leaving ──what it left is settled──▶ (gone)
//!        ▲                        ▲                       │                                   │
//!        └────────────────────────└───────register────────┘◀─────────────register─────────────┘
//! ```
//!
//! A type that is leaving keeps its entry in the type table, its number and its partitions, until
//! all that was in them when it lost its handler is settled. Then it goes: nothing of it is left
//! here but, for a while, where it was.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::control::growth::Weight;
use crate::control::whereabouts::Whereabouts;
use crate::flow::route::Partitions;
use crate::flow::route::type_table::TableUse;
use crate::item::TypeKey;

/// Up to which position each partition is to be settled.
pub(super) type Goals = SmallVec<[(usize, u64); 1]>;

/// A type that has not gone.
#[derive(Debug)]
pub(super) struct KnownType {
    /// That of its place in the route.
    pub(super) number: usize,
    pub(super) partitions: Partitions,
    /// If it has several partitions: the number of its spread in the route.
    pub(super) spread: Option<usize>,
    /// Of all its handlers.
    pub(super) weight: Weight,
    /// `None` while it has a handler.
    goals: Option<Goals>,
    /// Whether it is in the list of those that are leaving; it may have a handler again.
    is_listed: bool,
}

impl KnownType {
    pub(super) fn new(
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
    pub(super) whereabouts: Whereabouts,
    /// Numbers of types that have gone.
    pub(super) free_numbers: Vec<usize>,
    /// Spreads of types that have gone.
    pub(super) free_spreads: Vec<usize>,
    pub(super) table_use: TableUse,
}

impl KnownTypes {
    pub(super) fn get(&self, key: TypeKey) -> Option<&KnownType> {
        self.by_key.get(&key)
    }

    pub(super) fn add(&mut self, key: TypeKey, known: KnownType) {
        self.by_key.insert(key, known);
    }

    /// The type has a handler again, or another one.
    pub(super) fn stay(&mut self, key: TypeKey) {
        if let Some(known) = self.by_key.get_mut(&key) {
            known.goals = None;
        }
    }

    /// The type has lost its handler.
    pub(super) fn leave(&mut self, key: TypeKey, goals: Goals) {
        let Some(known) = self.by_key.get_mut(&key) else { return };
        known.goals = Some(goals);
        if !std::mem::replace(&mut known.is_listed, true) {
            self.leaving.push_back(key);
        }
    }

    /// Takes out those of the first `most` types which are leaving that can go. `completed` returns
    /// up to which position a partition is settled.
    pub(super) fn take_gone(
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
    pub(super) fn count(&self) -> usize {
        self.by_key.len()
    }

    /// How many types are leaving, those included that have a handler again.
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len()
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
