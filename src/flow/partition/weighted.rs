//! Puts by weight, in pieces where only a piece finds room; and the weight of a segment.
//!
//! The gate counts items by weight, so the weight of the open segment is the difference between
//! what was put until now and what was put before it. `weighed` is the latter, kept from the first
//! weighted put on. So no item is asked for its weight again, which is the user's code, while the
//! thread inside takes it.

use crate::control::scheduler::Signal;
use crate::flow::partition::gate::Gate;
use crate::flow::partition::segment::Segment;
use crate::flow::partition::slow_counts::Attempt;
use crate::flow::partition::{Partition, Stop};
use crate::item::Item;
use crate::sync::Ordering;

/// The value of `weighed` while no item of the partition weighs more than 1.
pub(super) const NONE: u64 = u64::MAX;

impl<T> Partition<T> {
    /// Whether the partition has ever got an item by weight. Relaxed: set under the gate before
    /// that item was put, and the gate or the channel delivered the item.
    pub(super) fn has_weighted(&self) -> bool {
        self.weighed.load(Ordering::Relaxed) != NONE
    }

    /// Replaces the open segment, and returns it.
    pub(super) fn replace_open(&self, gate: &mut Gate<T>, next: Vec<T>) -> Segment<T> {
        let items = std::mem::replace(&mut gate.open, next);
        let (mut weight, put_at) = (items.len(), gate.put_at);
        gate.before_open += weight as u64;
        // Relaxed, both: under the gate.
        let before = self.weighed.load(Ordering::Relaxed);
        if before != NONE {
            self.weighed.store(gate.before_open, Ordering::Relaxed);
            weight = usize::try_from(gate.before_open - before).unwrap_or(usize::MAX);
        }
        Segment { items, weight, put_at }
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
        let (room, weight) = (self.buffer_size.saturating_sub(gate.queued()), item.weight());
        let (put, rest) = if weight <= room {
            (Some(item), None)
        } else if room >= least.max(1) {
            let (put, rest) = item.cut(room);
            (Some(put), Some(rest))
        } else {
            if gate.lingers {
                self.want_room(&mut gate);
            }
            (None, Some(item))
        };
        let weight = put.as_ref().map_or(0, Item::weight);
        if let Some(put) = put {
            if !self.has_weighted() {
                // Relaxed: under the gate.
                self.weighed.store(gate.before_open, Ordering::Relaxed);
            }
            if gate.lingers && (1..weight).contains(&gate.lacks()) && !gate.open.is_empty() {
                // The rest of the item belongs to another batch.
                self.seal(&mut gate);
            }
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
