//! P2: an accepted item ends as exactly one of consumed, failed, unhandled or abandoned, and the
//! counts agree.

use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BufferStrategy, Config, Failure, Handler, HandlerRef, PartitionPolicy, ProduceError,
    Wait,
};

use crate::support::{
    Collector, Sent, assert_conserved, config, holding, key, sent, shut_down, start, wait_until,
};

/// Holds while items are put, taken and handled, and while a shutdown expires.
#[test]
fn at_any_moment_each_item_is_counted_once() {
    let queue = start(Config { buffer_size: 64, max_batch_items: 4, ..config(2) });
    for kind in 0..4 {
        let slow = |batch: &mut Batch<Sent>| {
            for item in batch.drain().filter(|item| item.number % 16 == 0) {
                std::thread::sleep(Duration::from_micros(item.number as u64 % 50));
            }
        };
        queue.add_handler(key(kind), HandlerRef::new(slow)).unwrap();
    }
    let (mut samples, mut seen_in_flight) = (0, 0);
    std::thread::scope(|scope| {
        let queue = &queue;
        for producer in 0..2 {
            scope.spawn(move || {
                let mut number = 0;
                // Until the shutdown refuses an item.
                while queue.produce(sent(number % 4, producer, number)).is_ok() {
                    number += 1;
                }
            });
        }
        let expiry = scope.spawn(move || {
            wait_until("items to be handled", || queue.stats().consumed > 5_000);
            queue.shutdown(Some(Instant::now()))
        });
        loop {
            let (last, stats) = (expiry.is_finished(), queue.stats());
            let handled = stats.consumed + stats.failed + stats.unhandled + stats.abandoned;
            if stats.produced != handled + stats.queued + stats.held + stats.in_flight {
                queue.shutdown(Some(Instant::now()));
                panic!("{stats:?}");
            }
            (samples, seen_in_flight) = (samples + 1, seen_in_flight + stats.in_flight);
            if last {
                break;
            }
        }
    });
    assert!(samples > 10 && seen_in_flight > 0, "{samples} samples");
    assert_conserved(&queue.stats());
}

#[test]
fn every_accepted_item_is_handled_once() {
    let collector = Collector::default();
    let queue = start(Config { buffer_size: 64, max_batch_items: 32, ..config(3) });
    for kind in 0..5 {
        queue.add_handler(key(kind), collector.handler()).unwrap();
    }
    std::thread::scope(|scope| {
        for producer in 0..4 {
            let queue = &queue;
            scope.spawn(move || {
                for number in 0..3_000 {
                    queue.produce(sent(number % 5, producer, number)).unwrap();
                }
            });
        }
    });
    shut_down(&queue);
    let mut items = collector.items();
    assert_eq!(items.len(), 12_000);
    items.sort_unstable_by_key(|item| (item.producer, item.number));
    items.dedup();
    assert_eq!(items.len(), 12_000, "some items were handled twice");
    assert_conserved(&queue.stats());
}

#[test]
fn refused_items_are_counted_and_returned() {
    let (handler, entered, release) = holding();
    let config = Config { buffer_size: 4, strategy: BufferStrategy::IfPossible, ..config(1) };
    let queue = start(config);
    queue.add_handler(key(0), handler).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    let refused: Vec<_> =
        (1..10).filter_map(|number| queue.produce(sent(0, 0, number)).err()).collect();
    assert_eq!(
        refused,
        (5..10).map(|number| ProduceError::Full(sent(0, 0, number))).collect::<Vec<_>>()
    );
    // Of many items, only the first refused one counts as attempted.
    let mut many = vec![sent(0, 0, 10), sent(0, 0, 11)].into_iter();
    assert_eq!(
        queue.produce_many(&mut many, None, &mut Wait),
        Err(ProduceError::Full(sent(0, 0, 10)))
    );
    assert_eq!(many.len(), 1);
    assert_eq!(queue.stats().refused, 6);
    release.open();
    shut_down(&queue);
    assert_eq!(queue.produce(sent(0, 0, 12)), Err(ProduceError::Closed(sent(0, 0, 12))));
    let stats = queue.stats();
    assert_eq!((stats.attempts, stats.produced, stats.refused), (12, 5, 7));
    assert_conserved(&stats);
}

#[test]
fn a_put_that_times_out_is_refused() {
    let (handler, entered, release) = holding();
    let queue = start(Config { buffer_size: 1, ..config(1) });
    queue.add_handler(key(0), handler).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    queue.produce(sent(0, 0, 1)).unwrap();
    let soon = Some(Instant::now() + Duration::from_millis(20));
    let refused = queue.produce_with(sent(0, 0, 2), None, soon, &mut Wait);
    assert_eq!(
        refused,
        Err(ProduceError::TimedOut {
            item: sent(0, 0, 2),
            partition: 0,
            buffer_size: 1,
            is_stalled: false,
        })
    );
    release.open();
    shut_down(&queue);
    assert_conserved(&queue.stats());
}

#[test]
fn items_without_a_handler_are_counted() {
    let collector = Collector::default();
    let queue = start(config(2));
    queue.add_handler(key(0), collector.handler()).unwrap();
    for number in 0..100 {
        queue.produce(sent(number % 2, 0, number)).unwrap();
    }
    shut_down(&queue);
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.unhandled), (50, 50));
    assert_eq!(collector.items().len(), 50);
    assert_conserved(&stats);
}

#[test]
fn items_put_into_the_partition_of_another_type_are_unhandled() {
    let (first, second) = (Collector::default(), Collector::default());
    let queue = start(Config { partitions: PartitionPolicy::fixed(2).unwrap(), ..config(2) });
    queue.add_handler(key(0), first.handler()).unwrap();
    queue.add_handler(key(1), second.handler()).unwrap();
    for number in 0..20 {
        queue.produce_with(sent(1, 0, number), Some(number % 2), None, &mut Wait).unwrap();
        queue.produce(sent(0, 0, number)).unwrap();
    }
    shut_down(&queue);
    assert_eq!((first.items().len(), second.items().len(), queue.stats().unhandled), (20, 10, 10));
    assert!(first.items().iter().all(|item| item.kind == 0));
}

/// Succeeds, fails and panics in turn.
struct Moody(std::sync::atomic::AtomicUsize);

impl Handler<Sent> for Moody {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        let call = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        drop(batch.drain());
        match call % 3 {
            0 => Ok(()),
            1 => Err(Failure::new("moody")),
            _ => panic!("very moody"),
        }
    }
}

#[test]
fn a_failing_batch_counts_as_failed_and_the_next_is_handled() {
    let queue = start(config(1));
    queue.add_handler(key(0), HandlerRef::new(Moody(0.into()))).unwrap();
    for number in 0..6 {
        queue.produce(sent(0, 0, number)).unwrap();
        assert_eq!(
            queue.flush(Some(Instant::now() + crate::support::PATIENCE), &mut Wait),
            Ok(true)
        );
    }
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.failed), (2, 4));
    assert_eq!(
        (stats.handlers[0].consumed, stats.handlers[0].failed, stats.handlers[0].batches),
        (2, 4, 6)
    );
    shut_down(&queue);
    assert_conserved(&queue.stats());
}

#[test]
fn a_shutdown_out_of_time_returns_the_number_of_abandoned_items() {
    let (handler, entered, release) = holding();
    let queue = start(Config { max_batch_items: 1, ..config(1) });
    queue.add_handler(key(0), handler).unwrap();
    for number in 0..10 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    entered.wait();
    let abandoned = queue.shutdown(Some(Instant::now()));
    assert!(abandoned > 0);
    assert_conserved(&queue.stats());
    // The batch in flight returns after the cut-off: it stays abandoned and does not count as
    // consumed too.
    release.open();
    shut_down_again(&queue, abandoned);
    assert_eq!(queue.stats().consumed + abandoned, 10);
    assert_conserved(&queue.stats());
}

#[test]
fn a_flush_returns_false_for_abandoned_items() {
    // Two groups in one cycle: time runs out inside the first, and the second is abandoned.
    let (handler, entered, release) = holding();
    let queue = start(Config { partitions: batchqueue::PartitionPolicy::Fixed(1), ..config(1) });
    let never = Collector::default();
    queue.add_handler(key(0), handler).unwrap();
    queue.add_handler(key(1), never.handler()).unwrap();
    let mut items = vec![sent(0, 0, 0), sent(1, 0, 1), sent(1, 0, 2)].into_iter();
    queue.produce_many(&mut items, None, &mut Wait).unwrap();
    entered.wait();
    let abandoned = queue.shutdown(Some(Instant::now()));
    release.open();
    wait_until("the drain thread to end", || queue.has_ended());
    assert_eq!(queue.flush(None, &mut Wait), Ok(abandoned == 0));
    assert!(abandoned > 0 && never.items().is_empty());
    assert_conserved(&queue.stats());
}

fn shut_down_again(queue: &batchqueue::BatchQueue<Sent>, abandoned: u64) {
    assert_eq!(queue.shutdown(Some(Instant::now() + crate::support::PATIENCE)), abandoned);
    wait_until("the drain threads to end", || queue.has_ended());
}
