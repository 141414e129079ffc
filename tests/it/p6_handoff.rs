//! P6: a partition that moves gets its new owner immediately, or, if the old one is inside, when
//! that turn ends. Nothing else stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use batchqueue::{Batch, BatchQueue, BufferStrategy, Config, Failure, Handler, HandlerRef, Wait};

use crate::support::{
    Collector, Lines, Sent, Steered, Witness, assert_conserved, config, drain_thread, holding, key,
    owners, sent, shut_down, start, start_with, steered, wait_until,
};

/// Two drain threads with one partition each. Partitions hold one item, so that every put ends a
/// rest; rests and sleeps are longer than any wait in a test.
fn drowsy() -> (BatchQueue<Sent>, Arc<Steered>, Witness) {
    let long = Duration::from_secs(600);
    let (config, steered) =
        steered(Config { buffer_size: 1, min_idle: long, max_idle: long, ..config(2) });
    let (queue, witness) = (start(config), Witness::default());
    for kind in 0..2 {
        queue.add_handler(key(kind), witness.handler()).unwrap();
    }
    (queue, steered, witness)
}

fn cycles(queue: &BatchQueue<Sent>, thread: usize) -> u64 {
    queue.stats().drain_threads[thread].cycles
}

#[test]
fn a_resting_owner_hands_over_immediately() {
    let (queue, steered, witness) = drowsy();
    // After its first empty cycle a drain thread rests.
    wait_until("the owner to rest", || cycles(&queue, 0) == 1);
    assert_eq!(steered.rebalance(&queue, &[1, 1]), 1);
    assert_eq!(owners(&queue), [1, 1]);
    queue.produce(sent(0, 0, 7)).unwrap();
    wait_until("the item", || witness.seen() == [(7, 1)]);
    shut_down(&queue);
}

#[test]
fn a_sleeping_owner_hands_over_immediately() {
    let (queue, steered, witness) = drowsy();
    wait_until("the owner to rest", || cycles(&queue, 0) == 1);
    // A flush ends the rest once it has begun; after a second empty cycle the thread sleeps.
    wait_until("the owner to sleep", || {
        assert_eq!(queue.flush(None, &mut Wait), Ok(true));
        cycles(&queue, 0) >= 2
    });
    // Back and forth: each owner is asleep again, or nearly, when it loses the partition.
    for turn in 1..20 {
        let plan = [turn % 2, 1];
        assert_eq!(steered.rebalance(&queue, &plan), 1);
        assert_eq!(owners(&queue), plan);
    }
    queue.produce(sent(0, 0, 7)).unwrap();
    wait_until("the item", || witness.seen() == [(7, 1)]);
    shut_down(&queue);
}

#[test]
fn a_partition_whose_handler_hangs_moves_immediately_and_its_items_wait_for_the_call() {
    let (config, steered) = steered(config(2));
    let (queue, witness, (hold, entered, release)) = (start(config), Witness::default(), holding());
    queue.add_handler(key(0), hold).unwrap();
    queue.add_handler(key(1), witness.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    assert_eq!(steered.rebalance(&queue, &[1, 1]), 1);
    assert_eq!(owners(&queue), [1, 1]);
    // The new owner keeps working on its other partition and does not enter the handler.
    queue.produce(sent(0, 0, 1)).unwrap();
    for number in 0..50 {
        queue.produce(sent(1, 0, number)).unwrap();
        wait_until("the new owner's own items", || witness.seen().len() == number + 1);
    }
    let stats = queue.stats();
    assert_eq!((stats.partitions[0].used, stats.consumed), (2, 50));
    release.open();
    shut_down(&queue);
    assert_eq!(queue.stats().consumed, 52);
}

#[test]
fn other_partitions_of_an_owner_inside_a_hung_handler_move_immediately_and_are_served() {
    let (config, steered) = steered(config(2));
    let (queue, witness, (hold, entered, release)) = (start(config), Witness::default(), holding());
    queue.add_handler(key(0), hold).unwrap();
    for kind in 1..6 {
        queue.add_handler(key(kind), witness.handler()).unwrap();
    }
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    // Partitions 0, 2 and 4 belong to the first thread. Some are empty, others are not.
    queue.produce(sent(2, 0, 2)).unwrap();
    assert_eq!(steered.rebalance(&queue, &[0, 1, 1, 1, 1, 1]), 2);
    assert_eq!(owners(&queue), [0, 1, 1, 1, 1, 1]);
    queue.produce(sent(4, 0, 4)).unwrap();
    wait_until("the items of both", || witness.seen().len() == 2);
    assert_eq!(queue.stats().consumed, 2, "the handler still hangs");
    release.open();
    shut_down(&queue);
    assert_eq!(queue.stats().consumed, 3);
    assert_conserved(&queue.stats());
}

#[test]
fn item_order_is_kept_across_many_moves() {
    let (config, steered) = steered(Config { buffer_size: 64, max_batch_items: 8, ..config(3) });
    let (queue, collector) = (start(config), Collector::default());
    for kind in 0..3 {
        queue.add_handler(key(kind), collector.handler()).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            for number in 0..20_000 {
                queue.produce(sent(number % 3, 0, number)).unwrap();
            }
            done.store(true, SeqCst);
        });
        for turn in 0.. {
            let plan: Vec<usize> = (0..3).map(|partition| (partition + turn) % 3).collect();
            steered.rebalance(&queue, &plan);
            if done.load(SeqCst) {
                break;
            }
        }
        producer.join().unwrap();
    });
    shut_down(&queue);
    for kind in 0..3 {
        let numbers: Vec<usize> = collector
            .items()
            .iter()
            .filter(|item| item.kind == kind)
            .map(|item| item.number)
            .collect();
        assert_eq!(numbers, (0..20_000).filter(|number| number % 3 == kind).collect::<Vec<_>>());
    }
    assert!(queue.stats().moves > 0);
    assert_conserved(&queue.stats());
}

/// Keeps its drain thread busy forever: every batch produces the next item before it ends.
fn saturating(
    queue: &Arc<BatchQueue<Sent>>,
    kind: usize,
    stop: &Arc<AtomicBool>,
) -> HandlerRef<Sent> {
    let (queue, stop) = (Arc::downgrade(queue), stop.clone());
    HandlerRef::new(move |batch: &mut Batch<Sent>| {
        drop(batch.drain());
        if let Some(queue) = queue.upgrade().filter(|_| !stop.load(SeqCst)) {
            queue.produce(sent(kind, 9, 0)).unwrap();
        }
    })
}

#[test]
fn moves_of_saturated_partitions_complete_and_refuse_nothing() {
    let (config, steered) = steered(Config { strategy: BufferStrategy::IfPossible, ..config(2) });
    let (queue, stop) = (Arc::new(start(config)), Arc::new(AtomicBool::new(false)));
    for kind in 0..4 {
        queue.add_handler(key(kind), saturating(&queue, kind, &stop)).unwrap();
        queue.produce(sent(kind, 0, 0)).unwrap();
    }
    for turn in 0..20 {
        let plan = if turn % 2 == 0 { [1, 0, 1, 0] } else { [0, 1, 0, 1] };
        let handled = queue.stats().consumed;
        // On a busy machine other threads take over from one that gets no core: ask again.
        wait_until("all four to have moved", || {
            steered.rebalance(&queue, &plan);
            owners(&queue) == plan
        });
        wait_until("all to continue", || queue.stats().consumed > handled + 100);
    }
    stop.store(true, SeqCst);
    // A handler that has not yet seen the flag puts one more item in.
    wait_until("the last items", || queue.stats().total_used() == 0);
    shut_down(&queue);
    let stats = queue.stats();
    assert_eq!((stats.refused, stats.failed), (0, 0));
    assert!(stats.moves >= 20, "{}", stats.moves);
    assert_conserved(&stats);
}

#[test]
fn a_move_completes_despite_a_concurrent_close() {
    for _ in 0..50 {
        let (config, steered) = steered(Config { max_batch_items: 4, ..config(2) });
        let (queue, collector) = (start(config), Collector::default());
        for kind in 0..2 {
            queue.add_handler(key(kind), collector.handler()).unwrap();
        }
        for number in 0..200 {
            queue.produce(sent(number % 2, 0, number)).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| steered.rebalance(&queue, &[1, 0]));
            scope.spawn(|| shut_down(&queue));
        });
        assert_eq!(collector.items().len(), 200);
        assert_conserved(&queue.stats());
        // A closed queue moves nothing.
        assert_eq!(steered.rebalance(&queue, &[0, 1]) + steered.rebalance(&queue, &[1, 0]), 0);
    }
}

/// Records the drain thread that last called `on_idle`.
struct Idle(Arc<AtomicUsize>);

impl Handler<Sent> for Idle {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        drop(batch.drain());
        Ok(())
    }

    fn has_on_idle(&self) -> bool {
        true
    }

    fn on_idle(&self) -> Result<(), Failure> {
        self.0.store(drain_thread(), SeqCst);
        Ok(())
    }
}

#[test]
fn on_idle_is_called_by_the_new_owner() {
    let (config, steered) = steered(Config { max_idle: Duration::from_millis(5), ..config(2) });
    let (queue, by) = (start(config), Arc::new(AtomicUsize::new(99)));
    queue.add_handler(key(0), HandlerRef::new(Idle(by.clone()))).unwrap();
    wait_until("the owner's call", || by.load(SeqCst) == 0);
    steered.rebalance(&queue, &[1, 1]);
    wait_until("the new owner's call", || by.load(SeqCst) == 1);
    shut_down(&queue);
}

#[test]
fn statistics_and_the_log_report_runs_moves_ratio_and_the_longest_handoff() {
    let (config, steered) = steered(config(2));
    let (lines, (hold, entered, release)) = (Lines::default(), holding());
    let queue = start_with(&lines, config);
    queue.add_handler(key(0), hold).unwrap();
    queue.add_handler(key(1), Collector::default().handler()).unwrap();
    let stats = queue.stats();
    assert_eq!((stats.rebalances, stats.moves, stats.longest_handoff), (0, 0, Duration::ZERO));
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    for number in 1..6 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    for number in 0..2 {
        queue.produce(sent(1, 0, number)).unwrap();
    }
    assert_eq!(steered.rebalance(&queue, &[1, 0]), 2);
    wait_until("the line", || {
        lines.any("rebalanced 2 partitions, max thread load delta: 67% -> 67%")
    });
    assert_eq!(steered.rebalance(&queue, &[1, 0]), 0);
    wait_until("the new owners", || owners(&queue) == [1, 0]);
    let stats = queue.stats();
    assert_eq!((stats.rebalances, stats.moves), (2, 2));
    assert!(stats.longest_handoff > Duration::ZERO);
    // No items arrived between the two runs.
    assert!((stats.load_ratio - 1.0).abs() < 1e-9);
    release.open();
    shut_down(&queue);
}

#[test]
fn the_load_ratio_covers_the_last_interval() {
    let (config, steered) = steered(config(2));
    let queue = start(config);
    for kind in 0..2 {
        queue.add_handler(key(kind), Collector::default().handler()).unwrap();
        for number in 0..(kind + 1) * 100 {
            queue.produce(sent(kind, 0, number)).unwrap();
        }
    }
    steered.rebalance(&queue, &[0, 1]);
    assert!((queue.stats().load_ratio - 2.0).abs() < 1e-9);
    shut_down(&queue);
}
