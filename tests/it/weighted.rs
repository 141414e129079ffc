//! Weighted items (P2, P3, P4, P5): the bound and all counts are by weight.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use batchqueue::{
    Batch, BatchQueue, BufferStrategy, Config, HandlerRef, Item, ProduceError, TypeKey, Wait,
};

use crate::support::{Latch, PATIENCE, config, key};

/// Consecutive numbers from one producer.
#[derive(Debug, Clone, PartialEq)]
struct Rows {
    producer: usize,
    numbers: Range<usize>,
}

impl Item for Rows {
    fn type_key(&self) -> TypeKey {
        key(0)
    }

    fn weight(&self) -> usize {
        self.numbers.len()
    }

    fn cut(self, weight: usize) -> (Self, Self) {
        let Self { producer, numbers: Range { start, end } } = self;
        let at = start + weight;
        (Self { producer, numbers: start..at }, Self { producer, numbers: at..end })
    }
}

fn rows(producer: usize, numbers: Range<usize>) -> Rows {
    Rows { producer, numbers }
}

type Seen = Arc<Mutex<Vec<Rows>>>;

/// A queue whose handler records its items once `open` is open.
fn recording(config: Config, open: &Arc<Latch>) -> (BatchQueue<Rows>, Seen) {
    let (queue, seen) = (BatchQueue::builder("heavy", config).start().unwrap(), Seen::default());
    let (recorded, open) = (seen.clone(), open.clone());
    let handler = move |batch: &mut Batch<Rows>| {
        open.wait();
        let weight = batch.len();
        let items: Vec<Rows> = batch.drain().collect();
        assert_eq!(items.iter().map(Item::weight).sum::<usize>(), weight);
        recorded.lock().unwrap().extend(items);
    };
    queue.add_handler(key(0), HandlerRef::new(handler)).unwrap();
    (queue, seen)
}

fn open() -> Arc<Latch> {
    let latch = Arc::new(Latch::default());
    latch.open();
    latch
}

fn end(queue: &BatchQueue<Rows>) {
    assert_eq!(queue.shutdown(Some(Instant::now() + PATIENCE)), 0);
}

#[test]
fn weighted_items_arrive_in_order_beside_single_items_in_a_full_partition() {
    const EACH: usize = 3_000;
    let (queue, seen) = recording(Config { buffer_size: 10, ..config(2) }, &open());
    std::thread::scope(|scope| {
        for producer in 0..3 {
            let queue = &queue;
            scope.spawn(move || {
                let mut next = 0;
                while next < EACH {
                    // Some items are heavier than the whole buffer.
                    let weight = (1 + (next * 7 + producer) % 25).min(EACH - next);
                    let item = rows(producer, next..next + weight);
                    if weight == 1 {
                        queue.produce(item).unwrap();
                    } else {
                        queue.produce_weighted(item, None, &mut Wait).unwrap();
                    }
                    next += weight;
                }
            });
        }
    });
    end(&queue);
    let seen = seen.lock().unwrap();
    for producer in 0..3 {
        let numbers = seen
            .iter()
            .filter(|rows| rows.producer == producer)
            .flat_map(|rows| rows.numbers.clone());
        assert!(numbers.eq(0..EACH), "producer {producer}");
    }
    let stats = queue.stats();
    assert_eq!((stats.attempts, stats.produced, stats.consumed), (9_000, 9_000, 9_000));
}

#[test]
fn items_without_room_are_returned_and_counted() {
    let (closed, strategy) = (Arc::new(Latch::default()), BufferStrategy::IfPossible);
    let (queue, seen) = recording(Config { buffer_size: 100, strategy, ..config(1) }, &closed);
    queue.produce_weighted(rows(0, 0..1), None, &mut Wait).unwrap();
    // The handler holds that item, so exactly the bound fits behind it.
    crate::support::wait_until("the first item to be taken", || queue.stats().in_flight == 1);
    let refused = queue.produce_weighted(rows(0, 1..301), None, &mut Wait);
    assert_eq!(refused, Err(ProduceError::Full(rows(0, 101..301))));
    let stats = queue.stats();
    assert_eq!((stats.queued, stats.attempts, stats.produced, stats.refused), (100, 301, 101, 200));
    closed.open();
    end(&queue);
    assert_eq!(seen.lock().unwrap().iter().map(Item::weight).sum::<usize>(), 101);
    let refused = queue.produce_weighted(rows(0, 0..5), None, &mut Wait);
    assert_eq!(refused, Err(ProduceError::Closed(rows(0, 0..5))));
    assert_eq!(queue.stats().refused, 205);
}

#[test]
fn a_timeout_returns_the_rest() {
    let closed = Arc::new(Latch::default());
    let (queue, _) = recording(Config { buffer_size: 10, ..config(1) }, &closed);
    queue.produce_weighted(rows(0, 0..1), None, &mut Wait).unwrap();
    crate::support::wait_until("the first item to be taken", || queue.stats().in_flight == 1);
    let refused = queue.produce_weighted(rows(0, 1..20), Some(Instant::now()), &mut Wait);
    let item = rows(0, 11..20);
    let left = ProduceError::TimedOut { item, partition: 0, buffer_size: 10, is_stalled: false };
    assert_eq!(refused, Err(left));
    let stats = queue.stats();
    assert_eq!((stats.attempts, stats.produced, stats.refused), (20, 11, 9));
    closed.open();
    end(&queue);
}

/// The open segment alone can fill a partition: taking it must wake waiting producers.
#[test]
fn a_producer_waiting_behind_one_weighted_item_is_woken() {
    // With this size, segments hold more than one item.
    const FULL: usize = 1_000;
    let (queue, seen) = recording(Config { buffer_size: FULL, ..config(1) }, &open());
    let (done, all_done) = (Mutex::new(false), Condvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..500 {
                queue
                    .produce_weighted(rows(0, number * FULL..number * FULL + FULL), None, &mut Wait)
                    .unwrap();
            }
            *done.lock().unwrap() = true;
            all_done.notify_all();
        });
        let (done, wait) =
            all_done.wait_timeout_while(done.lock().unwrap(), PATIENCE, |done| !*done).unwrap();
        drop(done);
        // Release a producer that hangs, so that the test ends.
        end(&queue);
        assert!(!wait.timed_out());
    });
    assert_eq!(seen.lock().unwrap().iter().map(Item::weight).sum::<usize>(), 500 * FULL);
}

/// Lighter producers keep taking all room that becomes free; the weighted item enters in pieces as
/// room allows.
#[test]
fn lighter_producers_do_not_starve_a_weighted_item() {
    const FULL: u64 = 1_000;
    let config = Config { buffer_size: 1_000, max_batch_items: 10, ..config(1) };
    let queue = Arc::new(BatchQueue::builder("heavy", config).start().unwrap());
    let done = Arc::new(AtomicBool::new(false));
    let (asked, over) = (Arc::downgrade(&queue), done.clone());
    let handler = move |batch: &mut Batch<Rows>| {
        let in_flight = batch.len() as u64;
        drop(batch.drain());
        // Slow enough for the partition to fill up again, with the rest of an item that was cut.
        let used = |queue: Arc<BatchQueue<Rows>>| queue.stats().partitions[0].used;
        let is_full = || asked.upgrade().is_none_or(|queue| used(queue) > FULL - 5 + in_flight);
        crate::support::wait_until("the partition to be full again", || {
            over.load(Relaxed) || is_full()
        });
    };
    queue.add_handler(key(0), HandlerRef::new(handler)).unwrap();
    std::thread::scope(|scope| {
        for producer in 1..4 {
            let (queue, done) = (&queue, &done);
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    queue.produce(rows(producer, 0..1)).unwrap();
                }
            });
        }
        crate::support::wait_until("the partition to be full", || queue.stats().queued == FULL);
        let heavy =
            queue.produce_weighted(rows(0, 0..2_000), Some(Instant::now() + PATIENCE), &mut Wait);
        done.store(true, Relaxed);
        assert_eq!(heavy, Ok(()));
    });
    end(&queue);
}
