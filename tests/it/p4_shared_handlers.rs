//! P4: handlers that are shared by types, threads or queues, or that have endless traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use batchqueue::{Batch, BatchQueue, Config, HandlerRef, PartitionPolicy, Selector, Wait};

use crate::support::{
    Collector, PATIENCE, Sent, assert_conserved, config, holding, key, sent, shut_down, start,
    wait_until,
};

/// One instance for two types on two threads: the second thread's batch waits for the first's call,
/// and the thread does not.
#[test]
fn a_batch_that_waits_for_its_handler_holds_up_no_other_type() {
    let queue = start(config(2));
    let ((hold, entered, release), healthy) = (holding(), Collector::default());
    queue.add_handler(key(0), hold.clone()).unwrap();
    queue.add_handler(key(1), hold).unwrap();
    for kind in [3, 5] {
        // Partitions 2 and 3; the latter belongs to the second thread.
        queue.add_handler(key(kind), healthy.handler()).unwrap();
    }
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    queue.produce(sent(1, 0, 0)).unwrap();
    for number in 0..100 {
        queue.produce(sent(5, 0, number)).unwrap();
    }
    wait_until("the healthy type", || queue.stats().consumed == 100);
    wait_until("the batch to be posted", || queue.stats().queued == 0);
    assert_eq!(queue.stats().consumed, 100);
    release.open();
    shut_down(&queue);
    assert_eq!(queue.stats().consumed, 102);
}

#[test]
fn a_removal_waits_for_no_other_handler() {
    for selector in [Selector::ByType, Selector::RoundRobin] {
        let queue = start(Config { selector, ..config(2) });
        let ((hold, entered, release), healthy) = (holding(), Collector::default());
        queue.add_handler(key(0), hold).unwrap();
        queue.add_handler(key(1), healthy.handler()).unwrap();
        queue.produce(sent(0, 0, 0)).unwrap();
        entered.wait();
        assert!(queue.remove_handler(key(1)));
        release.open();
        shut_down(&queue);
    }
}

/// Many types share one instance, and two threads deliver endless traffic to it.
#[test]
fn two_threads_share_a_handler_and_their_other_types() {
    let queue = Arc::new(start(Config { max_batch_items: 8, ..config(2) }));
    let (shared, own) = (Collector::default(), Collector::default());
    let handler = shared.handler();
    for kind in 0..20 {
        queue.add_handler(key(kind), handler.clone()).unwrap();
    }
    for kind in 20..24 {
        queue.add_handler(key(kind), own.handler()).unwrap();
    }
    std::thread::scope(|scope| {
        for producer in 0..2 {
            let queue = queue.clone();
            scope.spawn(move || {
                for number in 0..24_000 {
                    queue.produce(sent(number % 24, producer, number)).unwrap();
                }
            });
        }
    });
    shut_down(&queue);
    assert_eq!((shared.items().len(), own.items().len()), (40_000, 8_000));
    for kind in 0..24 {
        for producer in 0..2 {
            let of = |item: &&Sent| item.kind == kind && item.producer == producer;
            let items = if kind < 20 { shared.items() } else { own.items() };
            let numbers: Vec<usize> = items.iter().filter(of).map(|item| item.number).collect();
            assert!(numbers.is_sorted(), "{kind}, {producer}");
        }
    }
    assert_conserved(&queue.stats());
}

/// Two queues with endless traffic share an instance: neither starves.
#[test]
fn two_queues_share_a_handler_by_turns() {
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    let by_queue = counts.clone();
    let handler = HandlerRef::new(move |batch: &mut Batch<Sent>| {
        for item in batch.drain() {
            by_queue[item.producer].fetch_add(1, SeqCst);
        }
        std::thread::sleep(Duration::from_micros(200));
    });
    let queues: Vec<BatchQueue<Sent>> =
        (0..2).map(|_| start(Config { max_batch_items: 8, ..config(1) })).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (producer, queue) in queues.iter().enumerate() {
            queue.add_handler(key(0), handler.clone()).unwrap();
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    queue.produce(sent(0, producer, 0)).unwrap();
                }
            });
        }
        wait_until("items of both", || counts.iter().all(|count| count.load(SeqCst) > 2_000));
        stop.store(true, SeqCst);
    });
    queues.iter().for_each(shut_down);
}

/// An instance that another queue always keeps busy.
#[test]
fn a_removal_gets_its_turn_at_a_handler_that_another_queue_keeps_busy() {
    let handler = HandlerRef::new(|batch: &mut Batch<Sent>| {
        drop(batch.drain());
        std::thread::sleep(Duration::from_micros(200));
    });
    let (leaving, busy) = (start(config(1)), start(Config { max_batch_items: 8, ..config(2) }));
    leaving.add_handler(key(0), handler.clone()).unwrap();
    for kind in 0..4 {
        busy.add_handler(key(kind), handler.clone()).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for producer in 0..2 {
            let (busy, stop) = (&busy, &stop);
            scope.spawn(move || {
                for number in 0.. {
                    busy.produce(sent(number % 4, producer, number)).unwrap();
                    if stop.load(SeqCst) {
                        break;
                    }
                }
            });
        }
        wait_until("traffic", || busy.stats().consumed > 1_000);
        assert!(leaving.remove_handler(key(0)));
        stop.store(true, SeqCst);
    });
    shut_down(&leaving);
    shut_down(&busy);
}

/// A lane whose tail never becomes empty does not hold up a flush forever.
#[test]
fn a_flush_returns_under_traffic_without_an_end() {
    let queue = start(Config {
        selector: Selector::RoundRobin,
        partitions: PartitionPolicy::fixed(2).unwrap(),
        buffer_size: 64,
        max_batch_items: 4,
        ..config(2)
    });
    let slow = HandlerRef::new(|batch: &mut Batch<Sent>| {
        drop(batch.drain());
        std::thread::sleep(Duration::from_micros(20));
    });
    queue.add_handler(key(0), slow).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for producer in 0..2 {
            let (queue, stop) = (&queue, &stop);
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    queue.produce(sent(0, producer, 0)).unwrap();
                }
            });
        }
        wait_until("traffic", || queue.stats().consumed > 1_000);
        for _ in 0..20 {
            assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
        }
        stop.store(true, SeqCst);
    });
    shut_down(&queue);
}
