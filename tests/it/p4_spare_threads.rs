//! P4: spare drain threads serve the others while all threads of a queue are held up.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use batchqueue::{BatchQueue, Config, DrainBalancer, ThreadPolicy};

use crate::p4_take_over::{TYPES, by_type, serve};
use crate::support::{
    Collector, Latch, Lines, Sent, assert_conserved, holding, key, owners, sent, shut_down,
    start_with, wait_until,
};

/// A queue whose first two types hang in a call each, on all its threads.
struct AllHeldUp {
    queue: BatchQueue<Sent>,
    healthy: Collector,
    releases: Vec<Arc<Latch>>,
}

fn all_held_up(config: Config, threads: usize, lines: &Lines) -> AllHeldUp {
    hold_up(start_with(lines, config), threads)
}

fn hold_up(queue: BatchQueue<Sent>, threads: usize) -> AllHeldUp {
    let (healthy, mut releases) = (Collector::default(), Vec::new());
    for kind in 0..TYPES {
        if kind >= threads {
            queue.add_handler(key(kind), healthy.handler()).unwrap();
            continue;
        }
        let (hold, entered, release) = holding();
        queue.add_handler(key(kind), hold).unwrap();
        queue.produce(sent(kind, 0, 0)).unwrap();
        entered.wait();
        releases.push(release);
    }
    AllHeldUp { queue, healthy, releases }
}

impl AllHeldUp {
    fn put_healthy(&self, number: usize) {
        for kind in self.releases.len()..TYPES {
            self.queue.produce(sent(kind, 0, number)).unwrap();
        }
    }

    fn serve_healthy(&self) {
        serve(&self.queue, &self.healthy, self.releases.len());
    }

    fn release(&self) {
        self.releases.iter().for_each(|release| release.open());
    }
}

#[test]
fn a_line_says_that_no_thread_is_left() {
    let lines = Lines::default();
    let config = Config { spare_threads: Some(0), ..by_type(2) };
    let held_up = all_held_up(config, 2, &lines);
    wait_until("the line", || lines.any("no other is free: raise threads or spare_threads"));
    held_up.release();
    shut_down(&held_up.queue);
}

#[test]
fn a_spare_thread_serves_the_others_while_all_threads_hang() {
    for balancer in [None, Some(DrainBalancer::throughput_weighted())] {
        let (lines, rebalance_interval) = (Lines::default(), Duration::from_millis(5));
        let config = Config { balancer, rebalance_interval, ..by_type(2) };
        let held_up = all_held_up(config, 2, &lines);
        let before = owners(&held_up.queue);
        held_up.serve_healthy();
        let stats = held_up.queue.stats();
        assert_eq!((stats.thread_count, stats.drain_threads.len()), (2, 3));
        assert_eq!(stats.drain_threads[2].items, 400);
        wait_until("the line", || lines.any("1 of 2 spare threads run"));
        held_up.release();
        wait_until("the owners before", || {
            owners(&held_up.queue).iter().all(|owner| *owner < 2) && before.len() == TYPES
        });
        held_up.put_healthy(100);
        shut_down(&held_up.queue);
        assert_conserved(&held_up.queue.stats());
    }
}

#[test]
fn a_queue_of_one_thread_has_the_spare_threads_that_it_asks_for() {
    let config = Config { spare_threads: Some(1), ..by_type(1) };
    let held_up = all_held_up(config, 1, &Lines::default());
    held_up.serve_healthy();
    held_up.release();
    shut_down(&held_up.queue);
    assert_conserved(&held_up.queue.stats());
}

/// The queue's drain task occupies the only worker; the spare thread is not one of the pool.
#[test]
fn a_queue_on_a_shared_pool_has_the_spare_threads_that_it_asks_for() {
    let config = Config { spare_threads: Some(1), ..by_type(1) };
    let size = ThreadPolicy::fixed(1).unwrap();
    let queue = BatchQueue::builder("held up", config).shared_scheduler("spares", size).start();
    let held_up = hold_up(queue.unwrap(), 1);
    held_up.serve_healthy();
    assert_eq!(held_up.queue.stats().drain_threads.len(), 2);
    held_up.release();
    wait_until("the worker to serve them again", || owners(&held_up.queue) == [0; TYPES]);
    shut_down(&held_up.queue);
    assert_conserved(&held_up.queue.stats());
}

/// The queue's task waits for the only worker, and is inside no handler.
#[test]
fn a_queue_that_waits_for_its_pool_starts_no_spare_thread() {
    let size = ThreadPolicy::fixed(1).unwrap();
    let start = |config| {
        BatchQueue::builder("beside", config).shared_scheduler("waiting", size).start().unwrap()
    };
    let config = Config { spare_threads: Some(1), min_idle: Duration::ZERO, ..by_type(1) };
    let queue = start(config);
    let healthy = Collector::default();
    queue.add_handler(key(0), healthy.handler()).unwrap();
    // The queue is supervised from its first item on.
    queue.produce(sent(0, 0, 0)).unwrap();
    wait_until("the item", || healthy.items().len() == 1);
    let neighbour = hold_up(start(by_type(1)), 1);
    queue.produce(sent(0, 0, 1)).unwrap();
    // Many times the length of a call that others take over from.
    sleep(Duration::from_millis(500));
    assert_eq!(queue.stats().drain_threads.len(), 1);
    neighbour.release();
    shut_down(&queue);
    shut_down(&neighbour.queue);
    assert_eq!(healthy.items().len(), 2);
}

#[test]
fn a_shutdown_with_all_threads_hung_delivers_the_items_of_the_others() {
    let held_up = all_held_up(by_type(2), 2, &Lines::default());
    held_up.put_healthy(0);
    let queue = &held_up.queue;
    assert_eq!(queue.shutdown(Some(Instant::now() + Duration::from_secs(4))), 2);
    assert_eq!(held_up.healthy.items().len(), TYPES - 2);
    held_up.release();
}

#[test]
fn spare_threads_need_handlers_that_any_thread_can_call() {
    let config = Config { spare_threads: Some(3), ..by_type(2) };
    let healthy = Collector::default();
    let queue =
        BatchQueue::builder("test", config).consumer_per_thread(move |_| healthy.handler()).start();
    let Err(error) = queue else { panic!("a spare thread has no consumer") };
    assert!(error.to_string().contains("spare_threads is 3"), "{error}");
}
