//! Where types were that have gone, for as long as that matters.
//!
//! A type that comes back soon gets its former partitions. Items of it that no handler will get may
//! still be queued: those that were put before it went, or while it was not registered. If it came
//! back to another partition, went and came back to a third one, such an item could be there, and
//! reach its handler behind newer ones. So a type is forgotten only when every item that was put
//! before it went, into whatever partition, is settled.
//!
//! One cursor serves all types. It goes through the partitions, and stays at each until the items
//! are settled that were there when it came. A type is forgotten after the first whole round that
//! has begun since it went.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::flow::route::Partitions;
use crate::item::TypeKey;

/// Under the control lock.
#[derive(Debug, Default)]
pub(super) struct Whereabouts {
    places: FxHashMap<TypeKey, Place>,
    /// In the order in which they went, each with its round; some have come back since, and may
    /// have gone again.
    gone: VecDeque<(TypeKey, u64)>,
    /// The whole rounds so far.
    round: u64,
    /// The partition that is checked next.
    cursor: usize,
    /// How many of its items have to be settled.
    goal: Option<u64>,
}

#[derive(Debug)]
struct Place {
    partitions: Partitions,
    /// The round in which the type went.
    round: u64,
}

impl Whereabouts {
    /// A type has gone from these partitions.
    pub(super) fn note(&mut self, key: TypeKey, partitions: Partitions) {
        let round = self.round;
        let before = self.places.insert(key, Place { partitions, round });
        // One that comes and goes again and again is listed once in each round.
        if before.is_none_or(|before| before.round != round) {
            self.gone.push_back((key, round));
        }
    }

    /// Where a type was that comes back.
    pub(super) fn get(&self, key: TypeKey) -> Option<&Partitions> {
        self.places.get(&key).map(|place| &place.partitions)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gone.is_empty()
    }

    /// Checks up to `steps` of the `count` partitions. `pushed` and `completed` return how many
    /// items were put into one, and up to which all are settled.
    pub(super) fn advance(
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
            // One that went again since has a later entry.
            if self.places.get(&key).is_some_and(|place| place.round == round) {
                self.places.remove(&key);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
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
        // What is put later does not matter.
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
