//! Adds items of several types to their lanes, one by one.
//!
//! Finding the lane of an item, and counting the item there, takes longer than moving it. So the
//! lanes of recent types are kept at hand, and what each of them got is counted together.

use super::Lanes;
use crate::flow::desk::lane::Since;
use crate::item::TypeKey;

/// What a lane got and has not counted yet.
#[derive(Debug)]
struct Run {
    key: TypeKey,
    lane: usize,
    weight: usize,
}

/// The lanes of 2^4 types at most are at hand.
const PLACE_BITS: u32 = 4;

/// Borrows the lanes until all that they got is counted, which its drop does.
#[derive(Debug)]
pub(crate) struct Sorter<'a, T> {
    lanes: &'a mut Lanes<T>,
    since: Since,
    /// The run of a type is in the place of its key, or in the adjacent one.
    runs: [Option<Run>; 1 << PLACE_BITS],
}

impl<T> Lanes<T> {
    /// For items of one segment.
    pub(crate) fn sorter(&mut self, since: Since) -> Sorter<'_, T> {
        Sorter { lanes: self, since, runs: [const { None }; 1 << PLACE_BITS] }
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
        let place = key.place(PLACE_BITS);
        let lane = match &mut self.runs[place] {
            Some(run) if run.key == key => {
                run.weight += weight;
                run.lane
            }
            _ => self.look_up(key, place, weight),
        };
        self.lanes.all[lane].tail.push(item, weight, room);
    }

    /// Returns the lane of a type that is not in its first place: it is in the adjacent one, or not
    /// at hand.
    fn look_up(&mut self, key: TypeKey, place: usize, weight: usize) -> usize {
        let adjacent = place ^ 1;
        let is_its = |run: &&mut Run| run.key == key;
        if let Some(run) = self.runs[adjacent].as_mut().filter(is_its) {
            run.weight += weight;
            return run.lane;
        }
        let takes_first = self.runs[place].is_none() || self.runs[adjacent].is_some();
        let place = if takes_first { place } else { adjacent };
        self.end_run(place);
        let lane = self.lanes.lane_of(key, self.since);
        self.runs[place] = Some(Run { key, lane, weight });
        lane
    }

    fn end_run(&mut self, place: usize) {
        if let Some(Run { lane, weight, .. }) = self.runs[place].take() {
            self.lanes.note_added(lane, weight);
        }
    }
}

impl<T> Drop for Sorter<'_, T> {
    fn drop(&mut self) {
        (0..self.runs.len()).for_each(|place| self.end_run(place));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::flow::partition::segment::PutTime;
    use proptest::prelude::*;

    /// The lanes by key, with their items and their runs.
    fn contents(lanes: &Lanes<usize>) -> Vec<String> {
        let lanes = lanes.all.iter().map(|(_, lane)| {
            let items: Vec<_> = lane.tail.iter().collect();
            format!("{:?} {items:?} {} {:?}", lane.key, lane.tail.len(), lane.runs())
        });
        lanes.collect()
    }

    proptest! {
        #[test]
        fn all_items_come_to_their_lanes_in_order_and_are_counted(
            takes in prop::collection::vec(
                prop::collection::vec((0..40_usize, 1..4_usize), 0..90),
                1..4,
            ),
        ) {
            let (mut together, mut one_by_one) = (Lanes::new(), Lanes::new());
            let mut taken = 0;
            for items in takes {
                let since = Since { taken: taken as u64, put_at: PutTime::default() };
                let mut sorter = together.sorter(since);
                for (number, (key, weight)) in items.into_iter().enumerate() {
                    let (key, item) = (TypeKey(key), taken + number);
                    sorter.add(key, item, weight, Vec::new);
                    let lane = one_by_one.lane_of(key, since);
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
