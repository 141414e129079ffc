//! Regression tests for the twelve failures of the original queue, numbered in the order of
//! discovery. `scripts/faults` reintroduces each failure and expects its test to fail. Failures
//! where partitions move are in `regressions_of_moves`.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use batchqueue::{
    Assign, Batch, BatchQueue, Config, DrainBalancer, Failure, Handler, HandlerRef,
    PartitionPolicy, ProduceError, Selector, Wait,
};

use crate::support::{
    Collector, Latch, Lines, Sent, assert_conserved, config, holding, key, sent, shut_down, start,
    start_with, wait_until,
};

/// The original lost 2 of 6 accepted items and left 4 of 10 blocked producers hanging.
#[test]
fn r04_a_shutdown_delivers_accepted_items_and_frees_waiting_producers() {
    let (handler, entered, release) = holding();
    let queue = start(Config { buffer_size: 5, max_batch_items: 1, ..config(1) });
    queue.add_handler(key(0), handler).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    (1..6).for_each(|number| queue.produce(sent(0, 0, number)).unwrap());
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..10)
            .map(|producer| {
                let queue = &queue;
                scope.spawn(move || queue.produce(sent(0, producer, 6)))
            })
            .collect();
        wait_until("ten producers to wait", || queue.stats().attempts == 16);
        queue.close();
        for producer in waiting {
            assert!(matches!(producer.join().unwrap(), Err(ProduceError::Closed(_))));
        }
        release.open();
    });
    shut_down(&queue);
    assert_eq!((queue.stats().consumed, queue.stats().refused), (6, 10));
    assert_conserved(&queue.stats());
}

/// The original waited for itself. Here the wait does not even begin: a wait that is detected later
/// would be logged.
#[test]
fn r05_a_shutdown_from_a_handler_returns() {
    let (lines, collector) = (Lines::default(), Collector::default());
    let queue = Arc::new(start_with(&lines, config(2)));
    let (own, returned) = (Arc::downgrade(&queue), Arc::new(Latch::default()));
    let done = returned.clone();
    let ending = move |batch: &mut Batch<Sent>| {
        drop(batch.drain());
        if let Some(queue) = own.upgrade() {
            assert_eq!(queue.shutdown(None), 0);
            assert!(!queue.is_running());
        }
        done.open();
    };
    queue.add_handler(key(0), HandlerRef::new(ending)).unwrap();
    queue.add_handler(key(1), collector.handler()).unwrap();
    for number in 0..100 {
        queue.produce(sent(1, 0, number)).unwrap();
    }
    queue.produce(sent(0, 0, 0)).unwrap();
    returned.wait();
    wait_until("the drain threads to end", || queue.has_ended());
    assert_eq!((collector.items().len(), queue.stats().failed), (100, 0));
    assert!(!lines.any("would never have ended"), "{lines:?}");
    assert_conserved(&queue.stats());
}

/// In the original, two threads entered one handler, which got its items out of order, in 6 of 6
/// rounds.
#[test]
fn r06_growth_moves_no_type() {
    let (queue, collector) =
        (start(Config { max_batch_items: 8, ..config(4) }), Collector::default());
    queue.add_handler(key(5), collector.handler()).unwrap();
    for number in 0..2_000 {
        if number % 20 == 0 {
            queue
                .add_handler(
                    key(100 + number),
                    HandlerRef::new(|batch: &mut Batch<Sent>| drop(batch.drain())),
                )
                .unwrap();
        }
        queue.produce(sent(5, 0, number)).unwrap();
    }
    shut_down(&queue);
    let numbers: Vec<usize> = collector.items().iter().map(|item| item.number).collect();
    assert_eq!(numbers, (0..2_000).collect::<Vec<_>>());
    let used: Vec<usize> = queue
        .stats()
        .partitions
        .iter()
        .filter(|partition| partition.attempts > 0)
        .map(|partition| partition.index)
        .collect();
    assert_eq!(used, [0]);
}

/// Counts the calls that overlap another one.
struct IdleHandler {
    inside: AtomicUsize,
    overlaps: Arc<AtomicUsize>,
    entered: Arc<Latch>,
    release: Arc<Latch>,
}

impl IdleHandler {
    fn enter(&self) {
        if self.inside.fetch_add(1, SeqCst) > 0 {
            self.overlaps.fetch_add(1, SeqCst);
        }
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, SeqCst);
    }
}

impl Handler<Sent> for IdleHandler {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        self.enter();
        drop(batch.drain());
        self.entered.open();
        self.release.wait();
        self.leave();
        Ok(())
    }

    fn has_on_idle(&self) -> bool {
        true
    }

    fn on_idle(&self) -> Result<(), Failure> {
        self.enter();
        self.leave();
        Ok(())
    }
}

/// In the original, 43 of 44 calls of `on_idle` overlapped `consume`.
#[test]
fn r07_on_idle_does_not_overlap_consume_with_a_custom_selector() {
    let partitions = PartitionPolicy::fixed(2).unwrap();
    let max_idle = Duration::from_millis(1);
    let queue = start(Config {
        selector: Selector::Given,
        partitions,
        max_idle,
        min_idle: Duration::ZERO,
        ..config(2)
    });
    let (overlaps, entered, release) =
        (Arc::default(), Arc::<Latch>::default(), Arc::<Latch>::default());
    let idler = IdleHandler {
        inside: AtomicUsize::new(0),
        overlaps: Arc::clone(&overlaps),
        entered: entered.clone(),
        release: release.clone(),
    };
    // The handler belongs to the first partition, whose thread is idle; the items come through the
    // second.
    queue.add_handler(key(0), HandlerRef::new(idler)).unwrap();
    queue.produce_with(sent(0, 0, 0), Some(1), None, &mut Wait).unwrap();
    entered.wait();
    let before = queue.stats().drain_threads[0].cycles;
    wait_until("44 idle cycles", || queue.stats().drain_threads[0].cycles >= before + 44);
    release.open();
    shut_down(&queue);
    assert_eq!(overlaps.load(SeqCst), 0);
}

/// The original reported 1.26 M of 3.0 M outstanding items.
#[test]
fn r10_items_in_flight_count_as_used() {
    let (hold, entered, release) = holding();
    let queue =
        start(Config { buffer_size: 1_000, min_idle: Duration::from_millis(1), ..config(1) });
    queue.add_handler(key(0), hold).unwrap();
    let mut items = vec![sent(0, 0, 0); 800].into_iter();
    queue.produce_many(&mut items, None, &mut Wait).unwrap();
    entered.wait();
    let in_flight = queue.stats().in_flight;
    let mut items = vec![sent(0, 0, 0); 100].into_iter();
    queue.produce_many(&mut items, None, &mut Wait).unwrap();
    let stats = queue.stats();
    assert!(in_flight > 0);
    assert_eq!((stats.total_used(), stats.partitions[0].used), (900, 900));
    assert_eq!((stats.queued, stats.in_flight), (900 - in_flight, in_flight));
    release.open();
    shut_down(&queue);
}

/// A balancer with two latches: it opens the first when it is called and returns when the second
/// opens.
struct Thinking(Arc<Latch>, Arc<Latch>);

impl Assign for Thinking {
    fn assign(
        &self,
        _load: &[f64],
        _owner: &[usize],
        _threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        self.0.open();
        self.1.wait();
        Ok(None)
    }
}

/// The original ranked 350 partitions on the path of every batch, at 33 µs. Here statistics are
/// computed on request only, and the caller never waits for a handler, producer or balancer: none
/// of these holds a snapshot's locks for long.
#[test]
fn r11_a_snapshot_never_waits() {
    let (asked, answer) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let balancer = Some(DrainBalancer::custom(Arc::new(Thinking(asked.clone(), answer.clone()))));
    let queue =
        start(Config { balancer, rebalance_interval: Duration::ZERO, buffer_size: 1, ..config(2) });
    let (hold, entered, release) = holding();
    queue.add_handler(key(0), hold).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    queue.produce(sent(0, 0, 1)).unwrap();
    let snapshot = Latch::default();
    std::thread::scope(|scope| {
        scope.spawn(|| queue.produce(sent(0, 1, 2)).unwrap());
        scope.spawn(|| queue.remove_handler(key(0)));
        scope.spawn(|| queue.rebalance());
        asked.wait();
        scope.spawn(|| {
            // A producer waits, a handler is running, its removal waits for it, and the balancer is
            // planning.
            wait_until("all of them to be waiting", || {
                let stats = queue.stats();
                stats.attempts == 3 && stats.handlers.is_empty()
            });
            snapshot.open();
        });
        snapshot.wait();
        answer.open();
        release.open();
    });
    shut_down(&queue);
    assert_conserved(&queue.stats());
}

/// In the original, one class of items had one partition, so four threads worked one after another.
#[test]
fn r12_one_type_keeps_four_consumers_busy_concurrently() {
    let all = Arc::new(Barrier::new(4));
    let config = Config {
        selector: Selector::RoundRobin,
        partitions: PartitionPolicy::fixed(4).unwrap(),
        ..config(4)
    };
    let met = Arc::new(AtomicUsize::new(0));
    let count = met.clone();
    let queue = BatchQueue::builder("test", config)
        .consumer_per_thread(move |_| {
            let (all, met) = (all.clone(), count.clone());
            HandlerRef::new(move |batch: &mut Batch<Sent>| {
                drop(batch.drain());
                all.wait();
                met.fetch_add(1, SeqCst);
            })
        })
        .start()
        .unwrap();
    for number in 0..4 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    wait_until("four consumers to meet", || met.load(SeqCst) == 4);
    shut_down(&queue);
}
