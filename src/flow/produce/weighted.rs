//! Weighted produce: one item that stands for many, such as a block of rows, is put by its weight,
//! and cut where only a piece finds room.

use crate::config::BufferStrategy;
use crate::error::ProduceError;
use crate::flow::partition::Stop;
use crate::flow::partition::slow_counts::Attempt;
use crate::flow::pause::Pause;
use crate::flow::produce::{ProducerWait, Wanted};
use crate::flow::state::Flow;
use crate::item::Item;
use crate::sync::{Arc, Instant};
use crate::thread_context::on_drain_thread;

impl<T: Item> Flow<T> {
    /// Puts an item by its weight. Returns what was refused: the whole item, or the rest of it.
    ///
    /// With `Blocking` an item is put whole, or in pieces of half a buffer, so that a busy
    /// partition does not fragment it. But each attempt without enough room halves that size,
    /// because lighter producers may take all room that becomes free. With `IfPossible` as much as
    /// finds room is put.
    pub(crate) fn produce_weighted<P: Pause>(
        self: &Arc<Self>,
        mut item: T,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), ProduceError<T, P::Interrupt>> {
        let (partition, inside_pool) = (self.select(item.type_key()), on_drain_thread());
        let mut piece = partition.buffer_size.div_ceil(2);
        let (mut attempt, mut wait) = (Attempt::New, ProducerWait::default());
        loop {
            let least = match self.config.strategy {
                BufferStrategy::Blocking => item.weight().min(piece),
                BufferStrategy::IfPossible => 1,
            };
            let (signal, rest) = partition.put_weighted(item, least, attempt, inside_pool);
            self.wake_inside(partition, signal);
            let Some((rest, stop)) = rest else { return Ok(()) };
            attempt = Attempt::Again;
            let least = rest.weight().min(piece);
            piece = piece.div_ceil(2);
            item = rest;
            if stop == Stop::Full && self.choke_held_up(partition) {
                continue;
            }
            let wanted = &Wanted { partition, key: item.type_key(), weight: least };
            if let Err(refusal) = self.wait_or_refuse(wanted, stop, deadline, pause, &mut wait) {
                return Err(self
                    .refuse(&item, refusal, stop, partition)
                    .with(item, stop, partition));
            }
        }
    }
}
