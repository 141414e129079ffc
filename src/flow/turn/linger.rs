//! Whether a lane waits for its batch to become full; see `partition/linger.rs`.

use crate::flow::desk::lanes::Lanes;
use crate::flow::partition::Partition;
use crate::flow::route::Target;
use crate::flow::state::Flow;
use crate::item::Item;
use crate::sync::Deadline;

/// How a turn sees batches that are not full.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Whether they may wait; `None` until the first of them.
    has: Option<bool>,
}

impl Patience {
    pub(super) fn new(closing: bool) -> Self {
        Self { has: closing.then_some(false) }
    }

    fn has<T: Item>(&mut self, flow: &Flow<T>, partition: &Partition<T>) -> bool {
        *self.has.get_or_insert_with(|| {
            // After the ready bit was cleared: what hurries sets it, and then waits.
            !partition.take_wanted() && !flow.flushes.are_waiting()
        })
    }
}

impl<T: Item> Flow<T> {
    /// After a take: ends the wait of what lingers, if there is no room or no time for it.
    #[inline]
    pub(super) fn end_linger(
        &self,
        partition: &Partition<T>,
        lanes: &mut Lanes<T>,
        patience: &mut Patience,
    ) {
        let waits = lanes.next_due().is_some();
        if waits && (self.holds_much(partition, lanes) || !patience.has(self, partition)) {
            lanes.end_linger();
        }
    }

    /// Whether a partition has no room for lanes that linger. Where types share it, they leave half
    /// of it.
    fn holds_much(&self, partition: &Partition<T>, lanes: &Lanes<T>) -> bool {
        let room = partition.buffer_size;
        lanes.held() >= if self.has_one_type(partition) { room } else { room.div_ceil(2) }
    }

    /// Leaves a lane to linger, if its batch is not full, and may wait.
    #[inline]
    pub(super) fn lingers(
        &self,
        partition: &Partition<T>,
        lanes: &mut Lanes<T>,
        lane: usize,
        target: &Target<T>,
        patience: &mut Patience,
    ) -> bool {
        let settings = &target.registered.settings;
        let Some(delay) = settings.max_delay else { return false };
        let full = settings.max_batch_items;
        let Some(gathered) = lanes.gathered(lane).filter(|&gathered| gathered < full) else {
            return false;
        };
        if self.holds_much(partition, lanes) || !patience.has(self, partition) {
            return false;
        }
        let Some(put) = lanes.put_time(lane) else { return false };
        let until = Deadline::since(put.into(), delay);
        if until.time_left().is_none() {
            return false;
        }
        lanes.linger(lane, until, full);
        if self.has_one_type(partition) {
            partition.quieten(full - gathered, lanes.counted(), || self.has_one_type(partition));
        }
        true
    }
}
