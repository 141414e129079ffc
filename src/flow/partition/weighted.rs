//! Puts by weight, in pieces where only a piece finds room.

use crate::flow::partition::slow_counts::Attempt;
use crate::flow::partition::{Partition, Signal, Stop};
use crate::item::Item;
use crate::rules::{Rule, rule_off};
use crate::sync::Ordering;

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
            if gate.lingers {
                self.want_room();
            }
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
