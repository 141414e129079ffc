//! The loads that balancers weigh.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use batchqueue::{Batch, BatchQueue, Config, DrainBalancer, HandlerRef, PartitionPolicy, Wait};

use crate::support::{
    Collector, PATIENCE, Sent, config, holding, key, owners, sent, shut_down, start,
};

/// Four types on two threads, and a balancer that runs on request.
fn on_request(balancer: DrainBalancer) -> Config {
    Config {
        balancer: Some(balancer),
        rebalance_interval: Duration::ZERO,
        partitions: PartitionPolicy::fixed(4).unwrap(),
        max_batch_items: 1,
        ..config(2)
    }
}

fn deliver(queue: &BatchQueue<Sent>, items: [usize; 4]) {
    for (kind, items) in items.into_iter().enumerate() {
        for number in 0..items {
            queue.produce(sent(kind, 0, number)).unwrap();
        }
    }
    assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
}

/// Two types of one thread were quick for long and are now slow: past cost must not hide present
/// cost.
#[test]
fn the_load_is_the_busy_time_of_the_interval() {
    // On a busy machine, others take over from a thread that gets no core. Such a run shows
    // nothing.
    let owner = std::iter::repeat_with(owners_after_a_change).flatten().next().unwrap();
    assert_ne!(owner[0], owner[2], "{owner:?}");
}

/// Returns the owners after a run of the balancer; `None` if there was a take-over.
fn owners_after_a_change() -> Option<Vec<usize>> {
    let (queue, is_slow) =
        (start(on_request(DrainBalancer::load_weighted())), Arc::new(AtomicBool::new(false)));
    for kind in 0..4 {
        let is_slow = is_slow.clone();
        let handler = move |batch: &mut Batch<Sent>| {
            if kind % 2 == 0 && is_slow.load(SeqCst) {
                std::thread::sleep(Duration::from_micros(500));
            }
            drop(batch.drain());
        };
        queue.add_handler(key(kind), HandlerRef::new(handler)).unwrap();
    }
    deliver(&queue, [20_000; 4]);
    queue.rebalance();
    is_slow.store(true, SeqCst);
    let before = owners(&queue);
    deliver(&queue, [200, 500, 200, 500]);
    let begun = queue.rebalance();
    let (owner, is_undisturbed) = (owners(&queue), queue.stats().taken_over == 0);
    shut_down(&queue);
    if is_undisturbed && before[0] == before[2] {
        assert!(begun > 0);
    }
    is_undisturbed.then_some(owner)
}

#[test]
fn a_call_that_is_running_counts_up_to_now() {
    let queue = start(on_request(DrainBalancer::load_weighted()));
    let (handler, entered, release) = holding();
    queue.add_handler(key(0), handler).unwrap();
    queue.add_handler(key(1), Collector::default().handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    assert_eq!(queue.rebalance(), 0, "one call proves nothing");
    let stats = queue.stats();
    assert!((stats.rebalances, stats.load_ratio) == (1, f64::INFINITY), "{stats:?}");
    release.open();
    shut_down(&queue);
}
