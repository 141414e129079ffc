//! Batches that wait to become full: the events that end the wait, and what it must not hold up.

mod changes;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, BufferStrategy, Config, Failure, HandledType, Handler, HandlerRef, Item,
    PartitionPolicy, Selector, ThreadPolicy, TypeKey, Wait,
};

use crate::support::{
    Collector, LONG, Latch, PATIENCE, Rows, Sent, Sink, Witness, assert_conserved, config, key,
    retrying, sent, shut_down, start, steered, wait_until,
};

const EACH: [Selector; 3] = [Selector::ByType, Selector::RoundRobin, Selector::Given];

/// The sizes of the calls, with the time of each.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<(usize, Instant)>>>);

impl Calls {
    fn handler<T: Item>(&self) -> HandlerRef<T> {
        let calls = self.0.clone();
        HandlerRef::new(move |batch: &mut Batch<T>| {
            calls.lock().unwrap().push((batch.len(), Instant::now()));
            drop(batch.drain());
        })
    }

    fn sizes(&self) -> Vec<usize> {
        self.0.lock().unwrap().iter().map(|(size, _)| *size).collect()
    }

    fn wait_for(&self, sizes: &[usize]) {
        wait_until("the calls", || self.sizes().iter().sum::<usize>() >= sizes.iter().sum());
        assert_eq!(self.sizes(), sizes);
    }
}

/// One partition, so that every selector fills the same batches.
fn lingering(selector: Selector, max_batch_items: usize, max_delay: Duration) -> Config {
    let partitions = PartitionPolicy::fixed(1).unwrap();
    Config { selector, partitions, max_batch_items, max_delay: Some(max_delay), ..config(1) }
}

fn put(queue: &BatchQueue<Sent>, kind: usize, numbers: std::ops::Range<usize>) {
    let partition = (queue.selector() == Selector::Given).then_some(0);
    for number in numbers {
        queue.produce_with(sent(kind, 0, number), partition, None, &mut Wait).unwrap();
    }
}

/// Waits until the owner has taken the first items, which linger from then on.
fn wait_until_taken(queue: &BatchQueue<Sent>, items: u64) {
    wait_until("the take", || {
        let stats = queue.stats();
        stats.held == items && stats.queued == 0
    });
}

#[test]
fn a_batch_is_called_when_it_is_full_and_not_before() {
    for selector in EACH {
        for batch in [2, 10, 300, 1_000] {
            let queue = start(lingering(selector, batch, LONG));
            let calls = Calls::default();
            queue.add_handler(key(0), calls.handler()).unwrap();
            put(&queue, 0, 0..1);
            wait_until_taken(&queue, 1);
            put(&queue, 0, 1..batch - 1);
            assert_eq!(calls.sizes(), [] as [usize; 0], "{selector:?} {batch}");
            put(&queue, 0, batch - 1..batch);
            calls.wait_for(&[batch]);
            put(&queue, 0, 0..2 * batch + 1);
            calls.wait_for(&[batch, batch, batch]);
            shut_down(&queue);
            assert_eq!(calls.sizes(), [batch, batch, batch, 1], "{selector:?} {batch}");
        }
    }
}

#[test]
fn a_batch_is_called_when_its_oldest_item_has_waited_for_the_delay() {
    for selector in EACH {
        let delay = Duration::from_millis(20);
        let queue = start(lingering(selector, 1_000, delay));
        let calls = Calls::default();
        queue.add_handler(key(0), calls.handler()).unwrap();
        for first in [0, 10, 20] {
            let before = Instant::now();
            put(&queue, 0, first..first + 1);
            wait_until("the call", || calls.sizes().len() > first / 10);
            let (_, called) = calls.0.lock().unwrap()[first / 10];
            assert!(called.duration_since(before) >= delay, "{selector:?}");
        }
        shut_down(&queue);
        assert_eq!(calls.sizes(), [1, 1, 1], "{selector:?}");
    }
}

/// Items that do not fit into the second batch wait from their own put, not from that of the first
/// item.
#[test]
fn the_rest_of_a_full_batch_waits_for_its_own_delay() {
    let delay = Duration::from_millis(200);
    let queue = start(lingering(Selector::ByType, 4, delay));
    let calls = Calls::default();
    queue.add_handler(key(0), calls.handler()).unwrap();
    put(&queue, 0, 0..1);
    wait_until_taken(&queue, 1);
    std::thread::park_timeout(delay / 2);
    let before = Instant::now();
    put(&queue, 0, 1..5);
    calls.wait_for(&[4]);
    wait_until("the rest", || calls.sizes().len() == 2);
    let (size, called) = calls.0.lock().unwrap()[1];
    assert_eq!(size, 1);
    assert!(called.duration_since(before) >= delay);
    shut_down(&queue);
}

#[test]
fn a_flush_ends_the_wait() {
    for selector in EACH {
        let queue = start(lingering(selector, 1_000, LONG));
        let calls = Calls::default();
        queue.add_handler(key(0), calls.handler()).unwrap();
        for round in 1..=20 {
            put(&queue, 0, 0..3);
            assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
            assert_eq!(calls.sizes().iter().sum::<usize>(), 3 * round, "{selector:?}");
            put(&queue, 0, 0..1);
            wait_until_taken(&queue, 1);
            put(&queue, 0, 0..1);
            assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
            assert_eq!(calls.sizes().last(), Some(&2), "{selector:?}");
            calls.0.lock().unwrap().clear();
            calls.0.lock().unwrap().push((3 * round, Instant::now()));
        }
        shut_down(&queue);
    }
}

#[test]
fn a_full_partition_ends_the_wait() {
    for selector in EACH {
        for strategy in [BufferStrategy::Blocking, BufferStrategy::IfPossible] {
            let config = Config { buffer_size: 5, strategy, ..lingering(selector, 1_000, LONG) };
            let queue = start(config);
            let calls = Calls::default();
            queue.add_handler(key(0), calls.handler()).unwrap();
            put(&queue, 0, 0..1);
            wait_until_taken(&queue, 1);
            put(&queue, 0, 1..5);
            if selector == Selector::ByType {
                calls.wait_for(&[5]);
            } else {
                // Types that share a partition leave half of it to the others.
                wait_until("half of it", || calls.sizes().iter().sum::<usize>() >= 3);
            }
            shut_down(&queue);
        }
    }
}

#[test]
fn a_producer_that_waits_for_room_ends_the_wait() {
    let config = Config { buffer_size: 10, ..lingering(Selector::ByType, 1_000, LONG) };
    let queue = BatchQueue::builder("rows", config).start().unwrap();
    let calls = Calls::default();
    queue.add_handler(key(0), calls.handler()).unwrap();
    for start in [0, 6, 12, 18] {
        // The second piece finds less room than half a buffer.
        queue.produce_weighted(Rows(start..start + 6), None, &mut Wait).unwrap();
    }
    wait_until("three pieces", || calls.sizes().iter().sum::<usize>() >= 18);
    shut_down(&queue);
    assert_eq!(calls.sizes().iter().sum::<usize>(), 24);
}

#[test]
fn rows_fill_a_batch_by_weight() {
    let queue = BatchQueue::builder("rows", lingering(Selector::ByType, 10, LONG)).start().unwrap();
    let calls = Calls::default();
    queue.add_handler(key(0), calls.handler()).unwrap();
    for start in (0..35).step_by(7) {
        queue.produce_weighted(Rows(start..start + 7), None, &mut Wait).unwrap();
    }
    calls.wait_for(&[10, 10, 10]);
    shut_down(&queue);
    assert_eq!(calls.sizes(), [10, 10, 10, 5]);
}

#[test]
fn types_in_one_partition_wait_apart() {
    for selector in EACH {
        let queue = start(lingering(selector, 10, LONG));
        let (patient, prompt) = (Calls::default(), Calls::default());
        queue.add_handler(key(0), patient.handler()).unwrap();
        let at_once = HandledType { max_delay: Some(Duration::ZERO), ..key(1).into() };
        queue.add_handler(at_once, prompt.handler()).unwrap();
        put(&queue, 0, 0..3);
        for round in 1..=5 {
            put(&queue, 1, 0..1);
            wait_until("the prompt type", || prompt.sizes().len() == round);
        }
        assert_eq!(patient.sizes(), [] as [usize; 0], "{selector:?}");
        put(&queue, 0, 3..10);
        patient.wait_for(&[10]);
        shut_down(&queue);
    }
}

/// Notifications are suppressed: the owner would not be woken by another item of the first type.
#[test]
fn a_second_type_in_a_partition_without_notifications_does_not_wait_for_the_first() {
    let queue = start(lingering(Selector::ByType, 10, LONG));
    let (patient, prompt) = (Calls::default(), Calls::default());
    queue.add_handler(key(0), patient.handler()).unwrap();
    put(&queue, 0, 0..1);
    wait_until_taken(&queue, 1);
    put(&queue, 0, 1..3);
    let at_once = HandledType { max_delay: Some(Duration::ZERO), ..key(1).into() };
    queue.add_handler(at_once, prompt.handler()).unwrap();
    put(&queue, 1, 0..1);
    prompt.wait_for(&[1]);
    assert_eq!(patient.sizes(), [] as [usize; 0]);
    shut_down(&queue);
    assert_eq!(patient.sizes(), [3]);
}

/// Two wake-ups per batch: for the first item, and for the one that fills it.
#[test]
fn items_that_fill_a_batch_do_not_wake_its_thread() {
    let config = Config { min_idle: Duration::ZERO, ..lingering(Selector::ByType, 1_000, LONG) };
    let queue = start(config);
    let calls = Calls::default();
    queue.add_handler(key(0), calls.handler()).unwrap();
    put(&queue, 0, 0..1);
    wait_until_taken(&queue, 1);
    let cycles = || queue.stats().drain_threads[0].cycles;
    // The thread is about to sleep.
    let before = cycles();
    for number in 1..999 {
        put(&queue, 0, number..number + 1);
    }
    assert!(cycles() <= before + 2, "{} cycles for 998 items", cycles() - before);
    assert_eq!(queue.stats().queued, 998);
    put(&queue, 0, 999..1_000);
    calls.wait_for(&[1_000]);
    shut_down(&queue);
}

#[test]
fn a_consumer_gets_full_batches() {
    let calls = Calls::default();
    let config = lingering(Selector::RoundRobin, 10, LONG);
    let consumer = calls.handler();
    let queue = BatchQueue::builder("test", config).consumer(consumer).start().unwrap();
    for number in 0..25 {
        queue.produce(sent(number % 3, 0, number)).unwrap();
    }
    calls.wait_for(&[10, 10]);
    shut_down(&queue);
    assert_eq!(calls.sizes(), [10, 10, 5]);
}

#[test]
fn each_consumer_of_a_thread_gets_full_batches() {
    let calls = Calls::default();
    let config = Config {
        threads: ThreadPolicy::fixed(2).unwrap(),
        partitions: PartitionPolicy::fixed(2).unwrap(),
        ..lingering(Selector::RoundRobin, 10, LONG)
    };
    let consumers = calls.clone();
    let queue = BatchQueue::builder("test", config)
        .consumer_per_thread(move |_| consumers.handler())
        .start()
        .unwrap();
    (0..40).for_each(|number| queue.produce(sent(0, 0, number)).unwrap());
    calls.wait_for(&[10, 10, 10, 10]);
    shut_down(&queue);
}

#[test]
fn each_handler_of_a_factory_gets_full_batches() {
    let calls = Calls::default();
    let queue = start(Config { max_batch_items: 10, max_delay: Some(LONG), ..config(2) });
    let handlers = (0..2).map(|_| calls.handler()).collect();
    queue.add_handlers(key(0), handlers).unwrap();
    (0..40).for_each(|number| queue.produce(sent(0, 0, number)).unwrap());
    calls.wait_for(&[10, 10, 10, 10]);
    shut_down(&queue);
}

#[test]
fn items_that_linger_keep_their_order_and_are_counted() {
    for selector in EACH {
        let config = Config {
            threads: ThreadPolicy::fixed(2).unwrap(),
            partitions: PartitionPolicy::fixed(3).unwrap(),
            ..lingering(selector, 7, Duration::from_millis(1))
        };
        let queue = Arc::new(start(config));
        let collectors: Vec<_> = (0..5).map(|_| Collector::default()).collect();
        for (kind, collector) in collectors.iter().enumerate() {
            queue.add_handler(key(kind), collector.handler()).unwrap();
        }
        let producers: Vec<_> = (0..2)
            .map(|producer| {
                let queue = queue.clone();
                std::thread::spawn(move || {
                    for number in 0..5_000 {
                        let partition = (selector == Selector::Given).then_some(number % 3);
                        let item = sent(number % 5, producer, number);
                        queue.produce_with(item, partition, None, &mut Wait).unwrap();
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.join().unwrap();
        }
        shut_down(&queue);
        assert_conserved(&queue.stats());
        assert_eq!(queue.stats().consumed, 10_000);
        for (producer, part) in (0..2).flat_map(|producer| (0..3).map(move |part| (producer, part)))
        {
            for collector in &collectors {
                let items = collector.items();
                let numbers = items.iter().filter(|item| item.producer == producer);
                // Within a partition and a type.
                let numbers: Vec<_> = match selector {
                    Selector::Given => numbers.filter(|item| item.number % 3 == part).collect(),
                    Selector::RoundRobin => continue,
                    Selector::ByType => numbers.collect(),
                };
                let sorted = numbers.is_sorted_by(|item, next| item.number < next.number);
                assert!(sorted, "{selector:?}");
            }
        }
    }
}

#[test]
fn a_batch_of_one_item_cannot_wait() {
    let config = lingering(Selector::ByType, 1, LONG);
    let problem = BatchQueue::<Sent>::builder("test", config).start().unwrap_err();
    let wanted = "max_delay_ms is 600000 with max_batch_items 1, and a batch of one item is full; \
                  raise max_batch_items, or give max_delay_ms 0";
    assert_eq!(problem.to_string(), wanted);
    let queue = start(config_with_delay());
    let single = HandledType { max_batch_items: Some(1), ..TypeKey(16).into() };
    let problem = queue.add_handler(single, Calls::default().handler()).unwrap_err();
    assert!(problem.to_string().starts_with("type 16: max_delay_ms is 600000"), "{problem}");
    shut_down(&queue);
}

fn config_with_delay() -> Config {
    lingering(Selector::ByType, 10, LONG)
}
