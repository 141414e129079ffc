//! Sort: what a turn has taken goes into the lanes of its types.
//!
//! Which type an item has, and its weight in a segment of several types, is the user's code, which
//! runs under the lock of the lanes here. It is called before a lane changes, and if it panics the
//! item goes into the lane of a type that has no handler.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::flow::desk::lane::Since;
use crate::flow::desk::lanes::Lanes;
use crate::flow::handler::consumption::Consumption;
use crate::flow::partition::Partition;
use crate::flow::partition::segment::{Segment, TakenSegments};
use crate::flow::partition::segment_pool::KEPT_CAPACITY;
use crate::flow::state::Flow;
use crate::flow::turn::task::DrainTask;
use crate::item::{Item, TypeKey};

/// The key of items that do not say which type they have.
const UNKNOWN: TypeKey = TypeKey(usize::MAX);

impl<T: Item> DrainTask<T> {
    /// Adds segments to the lanes. `before`: how many items of the partition were taken before.
    pub(super) fn sort(
        &mut self,
        flow: &Flow<T>,
        partition: &Partition<T>,
        lanes: &mut Lanes<T>,
        segments: TakenSegments<T>,
        before: u64,
    ) {
        let by_handler = matches!(flow.consumption, Consumption::ByHandler);
        // Read after the take, which delivers the mark with the first item of a second type.
        let has_one_type = flow.has_one_type(partition);
        for Segment { items, weight, put_at } in segments {
            let since = Since { taken: before, put_at };
            let key =
                if by_handler { type_of(&items, has_one_type) } else { Some(TypeKey::CONSUMER) };
            if let Some(key) = key {
                let lane = lanes.lane_of(key, since);
                lanes.add_segment(lane, items, weight);
            } else {
                self.sort_items(lanes, items, weight, since);
            }
        }
    }

    fn sort_items(
        &mut self,
        lanes: &mut Lanes<T>,
        mut segment: Vec<T>,
        weight: usize,
        since: Since,
    ) {
        let is_weighted = weight > segment.len();
        let (mut unknown, mut left) = (Vec::new(), weight);
        let (mut items, mut sorter) = (segment.drain(..), lanes.sorter(since));
        loop {
            let done = catch_unwind(AssertUnwindSafe(|| {
                while let Some(item) = items.as_slice().first() {
                    let (key, weight) =
                        (item.type_key(), if is_weighted { item.weight() } else { 1 });
                    let Some(item) = items.next() else { break };
                    left = left.saturating_sub(weight);
                    let room = || self.segment_cache.segment(KEPT_CAPACITY / 4);
                    sorter.add(key, item, weight, room);
                }
            }));
            if done.is_ok() {
                break;
            }
            unknown.extend(items.next());
        }
        drop(items);
        drop(sorter);
        self.segment_cache.keep(segment);
        if !unknown.is_empty() {
            let lane = lanes.lane_of(UNKNOWN, since);
            lanes.add_segment(lane, unknown, left);
        }
    }
}

/// The type of all items of a segment; `None` if there are several, or if one is not known.
fn type_of<T: Item>(segment: &[T], has_one_type: bool) -> Option<TypeKey> {
    let find = || {
        let first = segment.first()?.type_key();
        let is_one = has_one_type || segment.iter().all(|item| item.type_key() == first);
        is_one.then_some(first)
    };
    catch_unwind(AssertUnwindSafe(find)).unwrap_or(None)
}
