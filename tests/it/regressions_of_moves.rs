//! Regression tests for failures of the original queue where partitions move. The other failures
//! are in `regressions`.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use batchqueue::{Batch, BufferStrategy, Config, DrainBalancer, HandlerRef, Wait};

use crate::support::{
    Collector, LONG, Lines, Sent, assert_conserved, config, holding, key, owners, sent, shut_down,
    start, start_with, steered, wait_until,
};

/// The original never drained 1,000 of 1,100 accepted items.
#[test]
fn r01_growth_after_a_rebalance_strands_no_partition() {
    let (config, steered) = steered(config(2));
    let (queue, collector) = (start(config), Collector::default());
    for kind in 0..10 {
        queue.add_handler(key(kind), collector.handler()).unwrap();
    }
    let plan = [1, 0, 1, 0, 1, 0, 1, 0, 1, 0];
    assert_eq!(steered.rebalance(&queue, &plan), 10);
    wait_until("all to have moved", || owners(&queue) == plan);
    for kind in 10..20 {
        queue.add_handler(key(kind), collector.handler()).unwrap();
    }
    assert_eq!(owners(&queue)[..10], plan);
    for number in 0..1_100 {
        queue.produce(sent(number % 20, 0, number)).unwrap();
    }
    wait_until("all items", || collector.items().len() == 1_100);
    shut_down(&queue);
}

/// The original left a partition without an owner for over 8 s and dropped 85,249 items.
#[test]
fn r02_a_handoff_under_load_completes_and_drops_nothing() {
    let (config, steered) = steered(Config { strategy: BufferStrategy::IfPossible, ..config(2) });
    let (queue, stop) = (Arc::new(start(config)), Arc::new(AtomicBool::new(false)));
    for kind in 0..2 {
        let (own, stop) = (Arc::downgrade(&queue), stop.clone());
        // Every batch produces the next item before it ends: its thread never has an empty cycle.
        let saturating = move |batch: &mut Batch<Sent>| {
            drop(batch.drain());
            if let Some(queue) = Weak::upgrade(&own).filter(|_| !stop.load(SeqCst)) {
                queue.produce(sent(kind, 0, 0)).unwrap();
            }
        };
        queue.add_handler(key(kind), HandlerRef::new(saturating)).unwrap();
        queue.produce(sent(kind, 0, 0)).unwrap();
    }
    let wait_for_progress = |why| {
        let before = queue.stats();
        wait_until(why, || {
            let now = queue.stats();
            now.drain_threads
                .iter()
                .zip(&before.drain_threads)
                .all(|(now, before)| now.items > before.items + 10)
        });
    };
    // Before its first item a thread is asleep, and hands over a partition immediately.
    wait_for_progress("both to be saturated");
    assert_eq!(steered.rebalance(&queue, &[1, 0]), 2);
    wait_until("both to have moved", || owners(&queue) == [1, 0]);
    wait_for_progress("both to continue");
    stop.store(true, SeqCst);
    // A call that began before the stop produces one more item, which a shutdown would refuse.
    wait_until("the last items", || queue.stats().total_used() == 0);
    shut_down(&queue);
    assert_eq!((queue.stats().refused, queue.stats().failed), (0, 0));
    assert_conserved(&queue.stats());
}

/// The original ran 0 times in 5 s instead of 25.
#[test]
fn r03_the_balancer_runs_while_all_drain_threads_are_busy() {
    let balancer = Some(DrainBalancer::throughput_weighted());
    let queue =
        start(Config { balancer, rebalance_interval: Duration::from_millis(5), ..config(2) });
    let held: Vec<_> = (0..2)
        .map(|kind| {
            let (handler, entered, release) = holding();
            queue.add_handler(key(kind), handler).unwrap();
            queue.produce(sent(kind, 0, 0)).unwrap();
            entered.wait();
            release
        })
        .collect();
    let before = queue.stats().rebalances;
    wait_until("five more runs", || queue.stats().rebalances >= before + 5);
    for release in &held {
        release.open();
    }
    shut_down(&queue);
}

/// In the original, a plan with thread 99 of 2 orphaned a partition forever.
#[test]
fn r08_a_plan_with_a_missing_thread_is_refused() {
    let (config, steered) = steered(config(2));
    let (lines, collector) = (Lines::default(), Collector::default());
    let queue = start_with(&lines, config);
    for kind in 0..3 {
        queue.add_handler(key(kind), collector.handler()).unwrap();
    }
    for plan in [vec![0, 99, 0], vec![1, 0], vec![1, 0, 1, 0]] {
        assert_eq!(steered.rebalance(&queue, &plan), 0);
        assert_eq!(owners(&queue), [0, 1, 0]);
    }
    wait_until("the line", || {
        lines.any("partition 1 to thread 99 and the queue has 2 drain threads")
    });
    queue.produce(sent(1, 0, 0)).unwrap();
    wait_until("the item", || collector.items().len() == 1);
    shut_down(&queue);
    assert_eq!((queue.stats().rebalances, queue.stats().moves), (3, 0));
}

/// The original moved 57 to 73 of 100 partitions at every interval.
#[test]
fn r09_noise_moves_nothing() {
    let balancer = Some(DrainBalancer::throughput_weighted());
    let queue = start(Config {
        balancer,
        rebalance_interval: Duration::ZERO,
        takeover_after: LONG, // or a thread without CPU time would lose its partitions
        buffer_size: 100_000,
        ..config(4)
    });
    for kind in 0..40 {
        queue
            .add_handler(key(kind), HandlerRef::new(|batch: &mut Batch<Sent>| drop(batch.drain())))
            .unwrap();
    }
    let mut random = 1_u64;
    let mut interval = || {
        for kind in 0..40_usize {
            // Knuth's generator; up to three percent up or down.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let noise = usize::try_from(random >> 33).unwrap() % 61;
            let items = (200 + 100 * (kind % 7)) * (970 + noise) / 1_000;
            let mut items = vec![sent(kind, 0, 0); items].into_iter();
            queue.produce_many(&mut items, None, &mut Wait).unwrap();
        }
        // The load is what was taken: on a busy machine some would count in the next interval.
        assert_eq!(queue.flush(None, &mut Wait), Ok(true));
        queue.rebalance()
    };
    let settling = interval() + interval();
    let moves: usize = (0..12).map(|_| interval()).sum();
    assert_eq!(moves, 0, "after {settling} to settle");
    assert!(queue.stats().load_ratio < 1.15);
    shut_down(&queue);
}
