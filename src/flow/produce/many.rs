//! Bulk produce: puts many items in order, locking each gate once for many of them.
//!
//! Items of several types, in any mixture, go to several partitions. The gates of the most recent
//! partitions stay locked, so that a gate is locked once for many items. Two such producers could
//! deadlock if each held a gate that the other wants. So a producer that holds a gate only tries to
//! lock the next one, and releases all gates before it waits.

use crate::config::Selector;
use crate::error::ProduceError;
use crate::flow::partition::put::Run;
use crate::flow::partition::{Partition, Stop};
use crate::flow::state::Flow;
use crate::item::{Item, TypeKey};
use crate::sync::{Arc, Instant};
use crate::threads::context::on_drain_thread;
use crate::threads::waits::Pause;

/// The number of gates held at a time; a power of two.
const HELD: usize = 16;

/// The number of types whose partitions are remembered: the bits of a word.
const TYPE_SLOTS: usize = u64::BITS as usize;

/// The number of items put before all gates are released, which takes a few microseconds.
const PUTS: usize = 1_024;

/// The number of consecutive items of a spread type that go to one partition.
const SPREAD_RUN: usize = 64;

/// A source of many items. It is called while gates are held, so it must neither run foreign code
/// nor wait.
pub(crate) trait Source<T>: Iterator<Item = T> {
    /// Returns the number of items left. Called outside the gates, where other threads may change
    /// it.
    fn left(&mut self) -> usize;
}

impl<T> Source<T> for std::vec::IntoIter<T> {
    fn left(&mut self) -> usize {
        self.len()
    }
}

impl<T: Item> Flow<T> {
    /// Puts items in order, up to the first that is refused, and returns it. The rest stays in
    /// `items`.
    pub(crate) fn produce_many<P: Pause>(
        self: &Arc<Self>,
        items: &mut impl Source<T>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), ProduceError<T, P::Interrupt>> {
        while let Some((item, partition, stop)) = self.put_many(items) {
            self.produce_slowly(partition, item, stop, deadline, pause)?;
        }
        Ok(())
    }

    /// Puts items in order, up to the first that finds no room. Returns that item, counted as a
    /// delayed attempt, with its partition and the reason.
    #[inline]
    pub(super) fn put_many<'a>(
        self: &'a Arc<Self>,
        items: &mut impl Source<T>,
    ) -> Option<(T, &'a Partition<T>, Stop)> {
        match self.config.selector {
            Selector::ByType => self.put_by_type(items),
            _ => self.put_in_turn(items),
        }
    }

    fn put_by_type<'a>(
        self: &'a Arc<Self>,
        items: &mut impl Source<T>,
    ) -> Option<(T, &'a Partition<T>, Stop)> {
        while items.left() > 0 {
            let mut runs = Runs::new(self);
            for item in items.by_ref().take(PUTS) {
                let key = item.type_key();
                let run = runs.of(key);
                if let Err(stop) = run.check(|| key) {
                    run.count_delayed();
                    return Some((item, run.partition, stop));
                }
                run.put(item);
            }
        }
        None
    }

    /// Gives each partition in turn its share of the items, as one run of at most [`PUTS`].
    fn put_in_turn<'a>(
        self: &'a Arc<Self>,
        items: &mut impl Source<T>,
    ) -> Option<(T, &'a Partition<T>, Stop)> {
        let share = items.left().div_ceil(self.route.partition_count()).min(PUTS);
        while items.left() > 0 {
            let partition = self.select(TypeKey(0));
            let mut held = OneRun { flow: self, run: Some(partition.run(on_drain_thread())) };
            let Some(run) = &mut held.run else { unreachable!("until it is dropped") };
            for item in items.by_ref().take(share) {
                if let Err(stop) = run.check(|| item.type_key()) {
                    run.count_delayed();
                    return Some((item, partition, stop));
                }
                run.put(item);
            }
        }
        None
    }
}

/// A run that is announced when it ends, even if an item's `type_key` panics. That item is lost.
struct OneRun<'a, T: Item> {
    flow: &'a Arc<Flow<T>>,
    run: Option<Run<'a, T>>,
}

impl<T: Item> Drop for OneRun<'_, T> {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            let partition = run.partition;
            self.flow.wake_inside(partition, run.end());
        }
    }
}

/// The held gates, each at a position given by its partition's index, and the types whose items go
/// through them.
struct Runs<'a, T: Item> {
    flow: &'a Arc<Flow<T>>,
    inside_pool: bool,
    held: [Option<Run<'a, T>>; HELD],
    /// By type, while the run is held.
    slots: [TypeSlot; TYPE_SLOTS],
    /// For each position, the set of slots that refer to its run, as bits.
    slots_of: [u64; HELD],
}

/// The run for the next items of a type.
#[derive(Clone, Copy)]
struct TypeSlot {
    key: TypeKey,
    /// The position of the run in `held`.
    position: usize,
    /// The number of items still to go there: 0 if the slot is free, [`ALL`](Self::ALL) if the type
    /// is not spread.
    left: usize,
}

impl TypeSlot {
    const ALL: usize = usize::MAX;
    const FREE: Self = Self { key: TypeKey(0), position: 0, left: 0 };
}

impl<'a, T: Item> Runs<'a, T> {
    fn new(flow: &'a Arc<Flow<T>>) -> Self {
        Self {
            flow,
            inside_pool: on_drain_thread(),
            held: [const { None }; HELD],
            slots: [TypeSlot::FREE; TYPE_SLOTS],
            slots_of: [0; HELD],
        }
    }

    /// Returns the run for the next item of a type.
    #[inline]
    fn of(&mut self, key: TypeKey) -> &mut Run<'a, T> {
        let slot = &self.slots[slot_of(key)];
        let position = if slot.key == key && slot.left == TypeSlot::ALL {
            slot.position
        } else {
            self.look_up(key)
        };
        match &mut self.held[position % HELD] {
            Some(run) => run,
            None => unreachable!("it is held"),
        }
    }

    /// Finds the run for [`of`](Self::of) if the type is not in its first slot: it is new, spread,
    /// or in the adjacent slot.
    #[inline(never)]
    fn look_up(&mut self, key: TypeKey) -> usize {
        let first = &self.slots[slot_of(key)];
        let number =
            if first.key == key || first.left == 0 { slot_of(key) } else { slot_of(key) ^ 1 };
        let slot = &mut self.slots[number];
        if slot.key == key && slot.left > 0 {
            if slot.left < TypeSlot::ALL {
                slot.left -= 1;
            }
            return slot.position;
        }
        let partition = self.flow.select(key);
        let position = self.hold(partition);
        let left = if self.flow.route.is_spread(key) { SPREAD_RUN - 1 } else { TypeSlot::ALL };
        let before = std::mem::replace(&mut self.slots[number], TypeSlot { key, position, left });
        self.slots_of[before.position] &= !(1 << number);
        self.slots_of[position] |= 1 << number;
        position
    }

    /// Locks a partition's gate unless it is held already. Returns the position of the run.
    fn hold(&mut self, partition: &'a Partition<T>) -> usize {
        let position = partition.index % HELD;
        if !self.held[position].as_ref().is_some_and(|run| std::ptr::eq(run.partition, partition)) {
            self.end(position);
            let run = partition.try_run(self.inside_pool).unwrap_or_else(|| {
                self.end_all();
                partition.run(self.inside_pool)
            });
            self.held[position] = Some(run);
        }
        position
    }

    fn end(&mut self, position: usize) {
        if let Some(run) = self.held[position].take() {
            let mut slots = std::mem::take(&mut self.slots_of[position]);
            while slots != 0 {
                self.slots[slots.trailing_zeros() as usize] = TypeSlot::FREE;
                slots &= slots - 1;
            }
            let partition = run.partition;
            self.flow.wake_inside(partition, run.end());
        }
    }

    fn end_all(&mut self) {
        (0..HELD).for_each(|position| self.end(position));
    }
}

#[inline]
fn slot_of(key: TypeKey) -> usize {
    key.place(TYPE_SLOTS.trailing_zeros())
}

impl<T: Item> Drop for Runs<'_, T> {
    /// Announces the items that were put, even if an item's `type_key` panics. That item is lost.
    fn drop(&mut self) {
        self.end_all();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use crate::config::{Config, PartitionPolicy};
    use crate::queue::BatchQueue;
    use crate::sync::Arc;
    use crate::testing::loom::{Number, ONE, Seen, TWO, config, model, model_by_turns};
    use crate::threads::waits::Wait;

    /// Each producer holds one of two gates and wants the other.
    #[test]
    fn loom_two_producers_of_many_meet_at_two_gates() {
        model(1, || {
            let seen = Arc::new(Seen::default());
            let two_partitions = Config { partitions: PartitionPolicy::Fixed(2), ..config(1) };
            let queue = Arc::new(BatchQueue::builder("q", two_partitions).start().unwrap());
            queue.add_handler(ONE, seen.handler()).unwrap();
            queue.add_handler(TWO, seen.handler()).unwrap();
            let produce = |queue: &BatchQueue<Number>, items: [Number; 2]| {
                queue.produce_many(&mut Vec::from(items).into_iter(), None, &mut Wait).unwrap();
            };
            let other = {
                let queue = queue.clone();
                thread::spawn(move || produce(&queue, [Number(ONE, 1), Number(TWO, 2)]))
            };
            produce(&queue, [Number(TWO, 3), Number(ONE, 4)]);
            other.join().unwrap();
            queue.shutdown(None);
            let mut numbers = seen.numbers();
            numbers.sort_unstable();
            assert_eq!(numbers, [1, 2, 3, 4]);
        });
    }

    /// Items put while the gate is held are announced once, at its release: a sleeping owner is
    /// woken.
    #[test]
    fn loom_many_while_the_owner_goes_to_sleep() {
        model(3, || {
            let seen = Arc::new(Seen::default());
            let queue = BatchQueue::builder("q", config(1)).start().unwrap();
            queue.add_handler(ONE, seen.handler()).unwrap();
            let mut items = vec![Number(ONE, 1), Number(ONE, 2)].into_iter();
            queue.produce_many(&mut items, None, &mut Wait).unwrap();
            seen.wait_for(2);
            assert_eq!(seen.numbers(), [1, 2]);
            queue.shutdown(None);
        });
    }

    /// The second item finds no room: every gate is released before the producer waits.
    #[test]
    fn loom_space_while_a_producer_of_many_goes_to_wait() {
        model_by_turns(6, 2, || {
            let seen = Arc::new(Seen::default());
            let queue =
                BatchQueue::builder("q", Config { buffer_size: 1, ..config(1) }).start().unwrap();
            queue.add_handler(ONE, seen.handler()).unwrap();
            let mut items = vec![Number(ONE, 1), Number(ONE, 2)].into_iter();
            queue.produce_many(&mut items, None, &mut Wait).unwrap();
            queue.shutdown(None);
            assert_eq!(seen.numbers(), [1, 2]);
        });
    }
}
