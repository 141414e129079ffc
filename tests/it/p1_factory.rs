//! P1: parallelism for one type is explicit, with one handler instance for each of several
//! partitions.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use batchqueue::{
    AddHandlerError, Batch, BatchQueue, Config, HandledType, HandlerRef, PartitionPolicy, Selector,
    Wait,
};

use crate::support::{
    Collector, Latch, Sent, assert_conserved, config, key, sent, shut_down, start,
};

fn factory(count: usize) -> (Vec<Collector>, Vec<HandlerRef<Sent>>) {
    let collectors: Vec<Collector> = (0..count).map(|_| Collector::default()).collect();
    let handlers = collectors.iter().map(Collector::handler).collect();
    (collectors, handlers)
}

/// Each instance stays inside until all of them are, so the test passes only if they run
/// concurrently.
#[test]
fn the_instances_of_a_type_run_concurrently() {
    let queue = start(config(4));
    let latches: Vec<Arc<Latch>> = (0..4).map(|_| Arc::default()).collect();
    let instance = |number: usize| {
        let latches = latches.clone();
        HandlerRef::new(move |batch: &mut Batch<Sent>| {
            drop(batch.drain());
            latches[number].open();
            for latch in &latches {
                latch.wait();
            }
        })
    };
    queue.add_handlers(key(0), (0..4).map(instance).collect()).unwrap();
    for number in 0..4 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    shut_down(&queue);
    assert_eq!(queue.stats().consumed, 4);
}

#[test]
fn items_are_spread_evenly_and_each_instance_sees_them_in_order() {
    for produce_many in [false, true] {
        let (queue, (collectors, handlers)) = (start(config(2)), factory(5));
        queue.add_handlers(key(0), handlers).unwrap();
        let items: Vec<Sent> = (0..6_400).map(|number| sent(0, 0, number)).collect();
        if produce_many {
            queue.produce_many(&mut items.into_iter(), None, &mut Wait).unwrap();
        } else {
            for item in items {
                queue.produce(item).unwrap();
            }
        }
        shut_down(&queue);
        for collector in &collectors {
            let items = collector.items();
            assert_eq!(items.len(), 6_400 / 5);
            assert!(items.is_sorted_by_key(|item| item.number));
        }
    }
}

#[test]
fn instances_are_placed_on_different_threads_if_there_are_enough() {
    let queue = start(config(3));
    for kind in 1..3 {
        queue.add_handler(key(kind), Collector::default().handler()).unwrap();
    }
    queue.add_handlers(key(0), factory(3).1).unwrap();
    let stats = queue.stats();
    let mut owners: Vec<usize> = stats
        .partitions
        .iter()
        .filter(|partition| partition.types.contains(&key(0)))
        .map(|partition| partition.owner)
        .collect();
    owners.sort_unstable();
    assert_eq!(owners, [0, 1, 2]);
    shut_down(&queue);
}

#[test]
fn a_factory_can_be_replaced_by_a_factory_of_its_size_or_by_one_handler() {
    let (queue, (first, handlers)) = (start(config(2)), factory(2));
    queue.add_handlers(key(0), handlers).unwrap();
    let put = |from: usize| {
        (from..from + 100).for_each(|number| queue.produce(sent(0, 0, number)).unwrap());
    };
    put(0);
    let (second, handlers) = factory(2);
    queue.add_handlers(key(0), handlers).unwrap();
    put(100);
    let (last, mut handlers) = factory(1);
    queue.add_handler(key(0), handlers.remove(0)).unwrap();
    put(200);
    shut_down(&queue);
    let mut numbers = BTreeSet::new();
    for item in first.iter().chain(&second).chain(&last).flat_map(Collector::items) {
        assert!(numbers.insert(item.number), "{item:?} was handled twice");
    }
    assert_eq!(numbers.len(), 300);
    assert!(last[0].items().len() >= 100);
    assert_conserved(&queue.stats());
}

fn refusal(queue: &BatchQueue<Sent>, kind: usize, count: usize) -> String {
    match queue.add_handlers(key(kind), factory(count).1) {
        Err(AddHandlerError::Config(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_impossible_spread_is_rejected_with_value_limit_and_remedy() {
    let fixed = start(Config { partitions: PartitionPolicy::fixed(3).unwrap(), ..config(2) });
    assert_eq!(
        refusal(&fixed, 0, 4),
        "type 16 cannot be spread over 4 partitions: the queue has 3; give fewer, or use \
         PartitionPolicy.adaptive"
    );
    assert_eq!(refusal(&fixed, 0, 0), "type 16 has 0 handlers; give 1 to 1024, one per partition");
    // A rejected factory leaves nothing behind.
    fixed.add_handlers(key(0), factory(3).1).unwrap();
    assert_eq!(
        refusal(&fixed, 0, 2),
        "type 16 has 3 of the queue's partitions, so it cannot be spread over 2; give 3, or call \
         add_handler_factory before any other handler of the type"
    );
    shut_down(&fixed);

    let partitions = PartitionPolicy::fixed(3).unwrap();
    let spread = start(Config { selector: Selector::RoundRobin, partitions, ..config(2) });
    assert_eq!(
        refusal(&spread, 0, 2),
        "type 16 cannot have a factory: only the selector by_type has partitions of one type; use \
         add_handler"
    );
    shut_down(&spread);
}

#[test]
fn a_type_that_asks_for_too_many_partitions_is_rejected_with_value_limit_and_remedy() {
    let queue = start(config(2));
    let refusal = |weight: f64, count: usize| {
        let item_type = HandledType { weight, ..key(0).into() };
        match queue.add_handlers(item_type, factory(count).1) {
            Err(AddHandlerError::Config(error)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal(1.0, 1_025), "type 16 has 1025 handlers; give 1 to 1024, one per partition");
    assert_eq!(
        refusal(1_000.5, 1),
        "type 16: weight is 1000.5; give a number above 0, at most 1000"
    );
    assert_eq!(
        refusal(500.0, 4),
        "type 16: 4 handlers of weight 500 ask for 2000 partitions; one type may ask for 1024: \
         give a weight of at most 256"
    );
    assert_eq!(queue.partition_count(), 2, "nothing is left behind");
    queue.add_handlers(HandledType { weight: 256.0, ..key(0).into() }, factory(4).1).unwrap();
    assert!(queue.partition_count() <= 1_024);
    shut_down(&queue);
}

#[test]
fn an_instance_that_serves_all_partitions_is_entered_by_one_thread_at_a_time() {
    let inside = Arc::new(Mutex::new(()));
    let taken = Arc::new(Mutex::new(0_usize));
    let (guard, count) = (inside.clone(), taken.clone());
    let handler = HandlerRef::new(move |batch: &mut Batch<Sent>| {
        let alone = guard.try_lock().expect("another thread is inside");
        *count.lock().unwrap() += batch.drain().len();
        std::thread::yield_now();
        drop(alone);
    });
    let queue = start(Config { max_batch_items: 16, ..config(3) });
    queue.add_handlers(key(0), vec![handler.clone(), handler.clone(), handler]).unwrap();
    for number in 0..3_000 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    shut_down(&queue);
    assert_eq!((*taken.lock().unwrap(), queue.stats().failed), (3_000, 0));
}
