//! Cut: an item that exceeds the limit of a batch, before the first try.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::flow::desk::call::Caller;
use crate::flow::desk::lane::Job;
use crate::flow::handler::{Batch, Failure};
use crate::flow::route::TypeHandlers;
use crate::item::Item;

impl<T: Item> Caller<'_, T> {
    /// Before a try: sees to it that the job does not exceed the limit of a batch.
    #[inline]
    pub(super) fn cut_to_limit(
        &mut self,
        registered: &TypeHandlers<T>,
        job: &mut Job<T>,
    ) -> Result<(), Failure> {
        if job.excess > 0 {
            return self.cut_at_limit(registered, job);
        }
        if job.tries == 0 && job.items > registered.settings.max_batch_items {
            return Err(Failure::last("an item panicked when its weight was read"));
        }
        Ok(())
    }

    /// Cuts the last item of a job at the limit of a batch, and puts the rest back into the lane.
    /// If that panics, the item is lost and fails the job.
    #[cold]
    fn cut_at_limit(
        &mut self,
        registered: &TypeHandlers<T>,
        job: &mut Job<T>,
    ) -> Result<(), Failure> {
        let excess = std::mem::take(&mut job.excess);
        let Some(last) = job.batch.pop() else { return Ok(()) };
        let parts = catch_unwind(AssertUnwindSafe(|| {
            let weight = last.weight() - excess;
            last.cut(weight)
        }));
        let (partition, lane) = (self.flow.route.partition(job.place.partition), job.place.lane);
        let Ok((first, rest)) = parts else {
            partition.change_lanes(|lanes| {
                lanes.lose_rest(lane, excess);
                partition.make_room(lanes, true);
            });
            job.items += excess;
            return Err(Failure::last("an item panicked when it was cut at the limit of a batch"));
        };
        job.batch.push_back(first);
        if let Some(rest) = partition.change_lanes(|lanes| lanes.put_back(lane, rest)) {
            let mut batch = Batch::default();
            batch.push_front(rest);
            self.drop_items(registered, [batch]);
        }
        Ok(())
    }
}
