//! Produce, many at once: in order, with one hold of a gate for many items.
//!
//! Items of several types, in any mixture, go to several partitions. The gates of those met last stay held meanwhile, so
//! each is taken once for many items and not once for each. Two such producers would wait for each other if one held a gate
//! that the other wants: so with a gate in its hands a producer only tries the next one, and lets all go before it waits.

use crate::config::Selector;
use crate::error::ProduceError;
use crate::faults::{self, Fault};
use crate::flow::handler::{Item, TypeKey};
use crate::flow::partition::{Partition, Stop};
use crate::flow::produce::Pause;
use crate::flow::run::Run;
use crate::marks::on_drain_thread;
use crate::shared::Shared;
use crate::sync::{Arc, Instant};

/// Gates held at once; a power of two.
const HELD: usize = 16;

/// Types whose partitions are remembered at once; a power of two.
const KNOWN: usize = 64;

/// Items put in before all gates are let go: some microseconds.
const PUTS: usize = 1_024;

/// Items of a spread type that go to one of its partitions in a row.
const SPREAD_RUN: usize = 64;

impl<T: Item> Shared<T> {
    /// Puts items in, in order, up to the first that is refused. That one and the rest stay in `items`.
    pub(crate) fn produce_many<P: Pause>(
        self: &Arc<Self>,
        items: &mut std::vec::IntoIter<T>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), ProduceError<(), P::Interrupt>> {
        let mut way = Way::new(self, items.len());
        while let Some((partition, stop)) = self.put_many(&mut way, items) {
            self.put_late(partition, stop, items, deadline, pause)?;
        }
        Ok(())
    }

    /// Puts items in, in order, up to the first that finds no room, which has been counted as a late attempt: where, and why.
    pub(super) fn put_many<'a>(
        self: &'a Arc<Self>,
        way: &mut Way<'a, T>,
        items: &mut std::vec::IntoIter<T>,
    ) -> Option<(&'a Partition<T>, Stop)> {
        while items.len() > 0 {
            let mut runs = Runs::new(self);
            for _ in 0..PUTS {
                let Some(item) = items.as_slice().first() else { break };
                let partition = way.of(item.type_key());
                let run = runs.at(partition);
                if let Err(stop) = run.look() {
                    run.count_late();
                    return Some((partition, stop));
                }
                if let Some(item) = items.next() {
                    run.put(item);
                }
            }
        }
        None
    }

    /// Waits for room for the first of `items`, and puts it in.
    #[cold]
    fn put_late<P: Pause>(
        self: &Arc<Self>,
        partition: &Partition<T>,
        mut stop: Stop,
        items: &mut std::vec::IntoIter<T>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), ProduceError<(), P::Interrupt>> {
        let mut standing_in = None;
        loop {
            let waited = self.wait_or_refuse(partition, 1, stop, deadline, pause, &mut standing_in);
            let Some(item) = items.as_slice().first() else { return Ok(()) };
            if let Err(refusal) = waited {
                return Err(self.refuse(item, refusal, partition).with((), partition));
            }
            let mut run = partition.run(on_drain_thread());
            match run.look() {
                Ok(()) => {
                    if let Some(item) = items.next() {
                        run.put(item);
                        run.count_late_put();
                    }
                    self.wake_inside(partition, run.end());
                    return Ok(());
                }
                Err(again) => stop = again,
            }
        }
    }
}

/// Which partition the next item goes to.
pub(super) struct Way<'a, T: Item> {
    shared: &'a Shared<T>,
    by_type: bool,
    /// Items for one partition in a row where the core selects it in turn.
    in_turn: usize,
    /// What was looked up last: a type's partition, and for how many items it holds.
    known: [Option<(TypeKey, &'a Partition<T>, usize)>; KNOWN],
}

impl<'a, T: Item> Way<'a, T> {
    pub(super) fn new(shared: &'a Shared<T>, items: usize) -> Self {
        let by_type = shared.config.selector == Selector::ByType;
        Self { shared, by_type, in_turn: items.div_ceil(shared.route.partition_count()), known: [None; KNOWN] }
    }

    #[inline]
    fn of(&mut self, key: TypeKey) -> &'a Partition<T> {
        // Where the core selects in turn, all types are alike.
        let place = if self.by_type { place_of(key) } else { 0 };
        if let Some((known, partition, left)) = &mut self.known[place]
            && (*known == key || !self.by_type)
            && *left > 0
        {
            if *left < usize::MAX {
                *left -= 1;
            }
            return partition;
        }
        self.look_up(place, key)
    }

    #[inline(never)]
    fn look_up(&mut self, place: usize, key: TypeKey) -> &'a Partition<T> {
        let partition = self.shared.select(key);
        let left = match self.by_type {
            true if self.shared.route.is_spread(key) => SPREAD_RUN,
            true => usize::MAX,
            false => self.in_turn,
        };
        self.known[place] = Some((key, partition, if left == usize::MAX { left } else { left - 1 }));
        partition
    }
}

/// Fibonacci hashing, as in `place.rs`: the uppermost bits of the product.
#[inline]
fn place_of(key: TypeKey) -> usize {
    let hash = (key.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    #[allow(clippy::cast_possible_truncation)] // it is below KNOWN
    let place = (hash >> (u64::BITS - KNOWN.trailing_zeros())) as usize;
    place
}

/// The gates that are held, each where the index of its partition says.
struct Runs<'a, T: Item> {
    shared: &'a Arc<Shared<T>>,
    inside_pool: bool,
    held: [Option<Run<'a, T>>; HELD],
}

impl<'a, T: Item> Runs<'a, T> {
    fn new(shared: &'a Arc<Shared<T>>) -> Self {
        Self { shared, inside_pool: on_drain_thread(), held: [const { None }; HELD] }
    }

    /// The run of a partition.
    #[inline]
    fn at(&mut self, partition: &'a Partition<T>) -> &mut Run<'a, T> {
        let place = partition.index % HELD;
        if !self.held[place].as_ref().is_some_and(|run| std::ptr::eq(run.partition, partition)) {
            self.take(place, partition);
        }
        match &mut self.held[place] {
            Some(run) => run,
            None => unreachable!("taken above"),
        }
    }

    #[cold]
    fn take(&mut self, place: usize, partition: &'a Partition<T>) {
        self.end(place);
        let tried = if faults::off(Fault::TryNextGate) { None } else { partition.try_run(self.inside_pool) };
        let run = tried.unwrap_or_else(|| {
            if !faults::off(Fault::TryNextGate) {
                self.end_all();
            }
            partition.run(self.inside_pool)
        });
        self.held[place] = Some(run);
    }

    fn end(&mut self, place: usize) {
        if let Some(run) = self.held[place].take() {
            let partition = run.partition;
            self.shared.wake_inside(partition, run.end());
        }
    }

    fn end_all(&mut self) {
        (0..HELD).for_each(|place| self.end(place));
    }
}

impl<T: Item> Drop for Runs<'_, T> {
    /// Also when an item's `type_key` panics: what was put in is announced.
    fn drop(&mut self) {
        self.end_all();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use crate::config::{Config, PartitionPolicy};
    use crate::flow::produce::Wait;
    use crate::loom_tests::{Number, ONE, Seen, TWO, config, model};
    use crate::queue::BatchQueue;
    use crate::sync::Arc;

    /// The second of two gates, held by a producer who wants the first.
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

    /// What is put in while the gate is held is announced once, when it is let go: a sleeper hears of it.
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

    /// The second item finds no room: every gate is let go before the producer waits.
    #[test]
    fn loom_space_while_a_producer_of_many_goes_to_wait() {
        model(2, || {
            let seen = Arc::new(Seen::default());
            let queue = BatchQueue::builder("q", Config { buffer_size: 1, ..config(1) }).start().unwrap();
            queue.add_handler(ONE, seen.handler()).unwrap();
            let mut items = vec![Number(ONE, 1), Number(ONE, 2)].into_iter();
            queue.produce_many(&mut items, None, &mut Wait).unwrap();
            queue.shutdown(None);
            assert_eq!(seen.numbers(), [1, 2]);
        });
    }
}
