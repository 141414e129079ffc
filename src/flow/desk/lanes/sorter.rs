//! Adds items of several types to their lanes, one by one.
//!
//! Finding the lane of an item, and counting the item there, takes longer than moving it. Most
//! partitions of several types hold two, whose items alternate. So the lanes of the last two types
//! are kept at hand, and what each of them got is counted together.

use super::Lanes;
use crate::item::TypeKey;
use crate::rules::{Rule, rule_off};

/// What a lane got and has not counted yet.
#[derive(Debug)]
struct Run {
    key: TypeKey,
    lane: usize,
    weight: usize,
}

/// Borrows the lanes until all that they got is counted, which its drop does.
#[derive(Debug)]
pub(crate) struct Sorter<'a, T> {
    lanes: &'a mut Lanes<T>,
    taken: u64,
    runs: [Option<Run>; 2],
    /// Which of the runs ends when another type comes.
    oldest: usize,
}

impl<T> Lanes<T> {
    /// For items of one take. `taken`: how many items of the partition were taken before.
    pub(crate) fn sorter(&mut self, taken: u64) -> Sorter<'_, T> {
        Sorter { lanes: self, taken, runs: [None, None], oldest: 0 }
    }
}

impl<T> Sorter<'_, T> {
    /// Adds an item to the tail of the lane of its type. A new segment comes from `room`.
    #[inline]
    pub(crate) fn add(
        &mut self,
        key: TypeKey,
        item: T,
        weight: usize,
        room: impl FnOnce() -> Vec<T>,
    ) {
        let is_its = |run: &&mut Run| run.key == key && !rule_off(Rule::AppendToLane);
        let lane = match self.runs.iter_mut().flatten().find(is_its) {
            Some(run) => {
                run.weight += weight;
                run.lane
            }
            None => self.begin_run(key, weight),
        };
        self.lanes.all[lane].tail.push(item, weight, room);
    }

    /// Returns the lane of a type that is not at hand.
    fn begin_run(&mut self, key: TypeKey, weight: usize) -> usize {
        self.end_run(self.oldest);
        let lane = self.lanes.lane_of(key, self.taken);
        self.runs[self.oldest] = Some(Run { key, lane, weight });
        self.oldest = (self.oldest + 1) % self.runs.len();
        lane
    }

    fn end_run(&mut self, run: usize) {
        if let Some(Run { lane, weight, .. }) = self.runs[run].take() {
            self.lanes.note_added(lane, weight);
        }
    }
}

impl<T> Drop for Sorter<'_, T> {
    fn drop(&mut self) {
        (0..self.runs.len()).for_each(|run| self.end_run(run));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The lanes by key, with their items and the marks of their runs.
    fn contents(lanes: &Lanes<usize>) -> Vec<String> {
        let lanes = lanes.all.iter().map(|(_, lane)| {
            let items: Vec<_> = lane.tail.iter().collect();
            format!("{:?} {items:?} {} {:?}", lane.key, lane.tail.len(), lane.marks())
        });
        lanes.collect()
    }

    proptest! {
        #[test]
        fn all_items_come_to_their_lanes_in_order_and_are_counted(
            takes in prop::collection::vec(
                prop::collection::vec((0..5_usize, 1..4_usize), 0..30),
                1..4,
            ),
        ) {
            let (mut together, mut one_by_one) = (Lanes::new(), Lanes::new());
            let mut taken = 0;
            for items in takes {
                let before = taken as u64;
                let mut sorter = together.sorter(before);
                for (number, (key, weight)) in items.into_iter().enumerate() {
                    let (key, item) = (TypeKey(key), taken + number);
                    sorter.add(key, item, weight, Vec::new);
                    let lane = one_by_one.lane_of(key, before);
                    one_by_one.add_segment(lane, vec![item], weight);
                    taken += weight;
                }
                drop(sorter);
                prop_assert_eq!(contents(&together), contents(&one_by_one));
                prop_assert_eq!(together.held(), one_by_one.held());
                prop_assert_eq!(together.count_ready(), one_by_one.count_ready());
            }
            prop_assert_eq!(together.held(), taken);
        }
    }
}
