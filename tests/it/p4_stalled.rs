//! P4: if types share a partition, one whose handler hangs, fails or is slow leaves its room to the
//! others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, BufferStrategy, Config, Failure, Handler, HandlerRef, PartitionPolicy,
    ProduceError, RetryPolicy, Selector, TryProduceError, Wait,
};

use crate::support::{
    Collector, Latch, Lines, PATIENCE, Sent, assert_conserved, config, holding, key, sent,
    shut_down, start_with, wait_until,
};

const BUFFER: usize = 64;
const BATCH: usize = 16;

/// These two types share the first of two partitions; the type between them has the second.
const HEALTHY: usize = 0;
const DOWN: usize = 2;

fn shared(selector: Selector, strategy: BufferStrategy) -> Config {
    Config {
        selector,
        strategy,
        buffer_size: BUFFER,
        max_batch_items: BATCH,
        partitions: PartitionPolicy::fixed(2).unwrap(),
        ..config(2)
    }
}

/// Adds a healthy type, and one that shares its partition.
fn add_types(queue: &BatchQueue<Sent>, healthy: &Collector, down: HandlerRef<Sent>) {
    queue.add_handler(key(HEALTHY), healthy.handler()).unwrap();
    queue.add_handler(key(1), Collector::default().handler()).unwrap();
    queue.add_handler(key(DOWN), down).unwrap();
    assert_eq!(queue.stats().partitions[0].types, [key(HEALTHY), key(DOWN)]);
}

fn put(queue: &BatchQueue<Sent>, item: Sent, selector: Selector) -> bool {
    let partition = (selector == Selector::Given).then_some(0);
    match queue.produce_with(item, partition, Some(Instant::now() + PATIENCE), &mut Wait) {
        Ok(()) => true,
        Err(ProduceError::Full(_)) => false,
        Err(refused) => panic!("{refused:?}"),
    }
}

/// Returns a handler that waits for the latch, and then collects.
fn held_by(latch: &Arc<Latch>, collector: &Collector) -> HandlerRef<Sent> {
    let (latch, collector) = (latch.clone(), collector.clone());
    HandlerRef::new(move |batch: &mut Batch<Sent>| {
        latch.wait();
        collector.0.lock().unwrap().extend(batch.drain());
    })
}

struct Broken;

impl Handler<Sent> for Broken {
    fn consume(&self, _batch: &mut Batch<Sent>) -> Result<(), Failure> {
        Err(Failure::new("down"))
    }
}

/// Puts items of a type until the queue refuses them for good: they fill the buffer, and then more
/// until the type is stalled.
fn fill(queue: &BatchQueue<Sent>, kind: usize, selector: Selector) -> usize {
    let (mut number, mut refused_since) = (0, None);
    loop {
        if put(queue, sent(kind, 0, number), selector) {
            (number, refused_since) = (number + 1, None);
        } else if refused_since.get_or_insert_with(Instant::now).elapsed().as_millis() > 300 {
            return number;
        }
    }
}

fn numbers(collector: &Collector, selector: Selector) -> Vec<usize> {
    let mut numbers: Vec<_> = collector.items().iter().map(|item| item.number).collect();
    if selector == Selector::RoundRobin {
        numbers.sort_unstable();
    }
    numbers
}

#[test]
fn a_type_that_hangs_leaves_the_room_of_its_partition_to_others() {
    for selector in [Selector::ByType, Selector::RoundRobin, Selector::Given] {
        let queue = start_with(&Lines::default(), shared(selector, BufferStrategy::IfPossible));
        let (latch, healthy, late) = (Arc::default(), Collector::default(), Collector::default());
        add_types(&queue, &healthy, held_by(&latch, &late));
        let filled = fill(&queue, DOWN, selector);

        for number in 0..1_000 {
            wait_until("room for the healthy type", || {
                put(&queue, sent(HEALTHY, 0, number), selector)
            });
        }
        wait_until("the healthy type", || healthy.items().len() == 1_000);
        assert!(!put(&queue, sent(DOWN, 0, filled), selector), "it is still stalled");
        let stats = queue.stats();
        let bound = (2 * BUFFER + BATCH) as u64;
        assert!(stats.partitions.iter().all(|partition| partition.used <= bound), "{stats:?}");

        latch.open();
        // Its items are in the call, and it has room again.
        wait_until("room for it", || put(&queue, sent(DOWN, 0, filled), selector));
        shut_down(&queue);
        assert_eq!(numbers(&healthy, selector), (0..1_000).collect::<Vec<_>>(), "{selector:?}");
        assert_eq!(numbers(&late, selector), (0..=filled).collect::<Vec<_>>(), "{selector:?}");
        assert_conserved(&queue.stats());
    }
}

/// Nothing ends but the wait: there is no other producer, drain thread or timer to end it.
#[test]
fn a_producer_that_waits_has_the_room_of_a_type_that_hangs() {
    let queue = start_with(&Lines::default(), shared(Selector::ByType, BufferStrategy::Blocking));
    let (down, entered, latch) = holding();
    let healthy = Collector::default();
    add_types(&queue, &healthy, down);
    // One item is in its call, and a full buffer waits behind it.
    assert!(put(&queue, sent(DOWN, 0, 0), Selector::ByType));
    entered.wait();
    for number in 1..=BUFFER {
        assert!(put(&queue, sent(DOWN, 0, number), Selector::ByType));
    }
    let more = queue.try_produce(sent(DOWN, 0, BUFFER + 1), None, &|_| false);
    let Err(TryProduceError::Pending(pending)) = more else { panic!("it is full: {more:?}") };
    for number in 0..3 * BUFFER {
        assert!(put(&queue, sent(HEALTHY, 0, number), Selector::ByType));
    }
    wait_until("the healthy type", || healthy.items().len() == 3 * BUFFER);
    let pending = match pending.try_again() {
        Err(TryProduceError::Pending(pending)) => pending,
        other => panic!("it is stalled: {other:?}"),
    };
    latch.open();
    wait_until("room for it", || queue.room(pending.line()) > 0);
    assert!(pending.try_again().is_ok());
    shut_down(&queue);
    assert_conserved(&queue.stats());
}

/// Seven of eight types are down, each with less than a buffer; one drain thread.
#[test]
fn many_types_that_back_off_leave_the_room_to_the_last_one() {
    let backoff = Duration::from_secs(600);
    let retry = RetryPolicy {
        attempts: Some(1_000),
        backoff,
        factor: 1.0,
        max_backoff: backoff,
        ..RetryPolicy::default()
    };
    let partitions = PartitionPolicy::fixed(1).unwrap();
    let shared = shared(Selector::ByType, BufferStrategy::Blocking);
    let queue = start_with(&Lines::default(), Config { retry: Some(retry), partitions, ..shared });
    let healthy = Collector::default();
    queue.add_handler(key(HEALTHY), healthy.handler()).unwrap();
    for kind in 1..8 {
        queue.add_handler(key(kind), HandlerRef::new(Broken)).unwrap();
    }
    for kind in 1..8 {
        for number in 0..BUFFER / 4 {
            assert!(put(&queue, sent(kind, 0, number), Selector::ByType));
        }
    }
    for number in 0..1_000 {
        assert!(put(&queue, sent(HEALTHY, 0, number), Selector::ByType));
    }
    wait_until("the healthy type", || queue.stats().consumed == 1_000);
    assert_eq!(healthy.items().len(), 1_000);
    assert_eq!(queue.stats().total_used(), 7 * BUFFER as u64 / 4);
    queue.shutdown(Some(Instant::now()));
    let stats = queue.stats();
    // The drain thread may have been quick enough to make the last tries.
    let rest = stats.failed + stats.abandoned;
    assert_eq!((stats.consumed, rest), (1_000, 7 * BUFFER as u64 / 4));
    assert_conserved(&stats);
}

/// The items wait for a next try that does not come: only the removal ends the wait.
#[test]
fn removing_the_handler_of_a_stalled_type_ends_the_stall() {
    let selector = Selector::ByType;
    let backoff = Duration::from_secs(600);
    let retry = RetryPolicy {
        attempts: Some(1_000),
        backoff,
        factor: 1.0,
        max_backoff: backoff,
        ..RetryPolicy::default()
    };
    let shared = shared(selector, BufferStrategy::IfPossible);
    let queue = start_with(&Lines::default(), Config { retry: Some(retry), ..shared });
    let healthy = Collector::default();
    add_types(&queue, &healthy, HandlerRef::new(Broken));
    let filled = fill(&queue, DOWN, selector);
    wait_until("room for the healthy type", || put(&queue, sent(HEALTHY, 0, 0), selector));
    assert!(!put(&queue, sent(DOWN, 0, filled), selector), "it is stalled");
    assert!(queue.remove_handler(key(DOWN)));
    wait_until("room for the type", || put(&queue, sent(DOWN, 0, filled), selector));
    shut_down(&queue);
    let stats = queue.stats();
    assert_eq!(stats.consumed, 1);
    assert_eq!(stats.failed + stats.unhandled, filled as u64 + 1);
    assert_conserved(&stats);
}
