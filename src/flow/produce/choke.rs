//! When a full partition is searched for types to choke; see `partition/room.rs`.

use crate::flow::partition::Partition;
use crate::flow::state::Flow;
use crate::item::Item;
use crate::sync::{Duration, Instant, time_since};

/// How often a full partition is searched for such types.
const SEARCH_EVERY: Duration = Duration::from_millis(10);

/// How long a producer waits before it searches again.
const WAIT_SLICE: Duration = Duration::from_millis(50);

impl<T: Item> Flow<T> {
    /// Called when a put found the partition full: chokes the types that hold it up. Returns
    /// whether there is room to be had now.
    #[cold]
    pub(super) fn choke_held_up(&self, partition: &Partition<T>) -> bool {
        if !self.may_choke(partition) || !partition.has_lanes() {
            return false;
        }
        partition.begin_search(time_since(self.started), SEARCH_EVERY)
            && partition.choke(Instant::now())
    }

    /// How long to wait for room before the next search for types to choke, also while there is
    /// none: lanes that appear now may notify no producer. `None`: for ever.
    pub(super) fn choke_slice(&self, partition: &Partition<T>) -> Option<Duration> {
        self.may_choke(partition).then_some(WAIT_SLICE)
    }

    fn may_choke(&self, partition: &Partition<T>) -> bool {
        !self.has_one_type(partition)
    }
}
