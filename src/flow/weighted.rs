//! Weighted produce: one item that stands for many, such as a block of rows, is put by its weight,
//! and cut where only a piece finds room.

use crate::config::BufferStrategy;
use crate::error::ProduceError;
use crate::flow::partition::{Partition, Signal, Stop};
use crate::flow::pause::Pause;
use crate::flow::produce::{ProducerWait, Wanted};
use crate::flow::slow_counts::Attempt;
use crate::item::Item;
use crate::rules::{Rule, rule_off};
use crate::shared::Shared;
use crate::sync::{Arc, Instant, Ordering};
use crate::thread_context::on_drain_thread;

impl<T: Item> Shared<T> {
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
            if !rule_off(Rule::SmallerPieces) {
                piece = piece.div_ceil(2);
            }
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

impl<T: Item> Partition<T> {
    /// Puts an item by its weight. Returns what does not fit: the whole item, unless there is room
    /// for a piece of at least `least`.
    pub(crate) fn put_weighted(
        &self,
        item: T,
        least: usize,
        attempt: Attempt,
        inside_pool: bool,
    ) -> (Signal, Option<(T, Stop)>) {
        let mut gate = self.gate.lock();
        let checked = self.check(&mut gate, || item.type_key(), inside_pool);
        if let Err(stop @ (Stop::Closed | Stop::Choked)) = checked {
            self.count_slow(attempt, item.weight(), 0);
            return (Signal::Nothing, Some((item, stop)));
        }
        let was_empty = self.is_empty(&mut gate);
        let (room, weight) =
            ((gate.buffer_size as usize).saturating_sub(gate.queued()), item.weight());
        let (put, rest) = if weight <= room || rule_off(Rule::Bound) {
            (Some(item), None)
        } else if room >= least.max(1) {
            let (put, rest) = item.cut(room);
            (Some(put), Some(rest))
        } else {
            (None, Some(item))
        };
        let weight = put.as_ref().map_or(0, Item::weight);
        if let Some(put) = put {
            // Relaxed: under the gate.
            self.has_weighted.store(true, Ordering::Relaxed);
            // The segment's length counts the item as one.
            gate.before_open += weight as u64 - 1;
            self.append(&mut gate, put);
        }
        match attempt {
            Attempt::New => self.count_slow(attempt, rest.as_ref().map_or(0, Item::weight), 0),
            Attempt::Again => self.count_slow(attempt, 0, weight),
        }
        (self.announce(&mut gate, was_empty, weight), rest.map(|rest| (rest, Stop::Full)))
    }
}
