//! How long visits continue, and how spare threads come and go.

use crate::config::{Config, PartitionPolicy, ThreadPolicy};
use crate::flow::batch::{Batch, Failure};
use crate::flow::handler::{Handler, HandlerRef};
use crate::item::{Item, TypeKey};
use crate::queue::BatchQueue;
use crate::sync::{Arc, Duration, Instant, Mutex};
use crate::testing::threads::PATIENCE;
use crate::threads::agenda::Visits;

#[derive(Debug)]
struct Number(TypeKey);

impl Item for Number {
    fn type_key(&self) -> TypeKey {
        self.0
    }
}

/// A hook called in each idle cycle.
struct Idle;

impl Handler<Number> for Idle {
    fn consume(&self, batch: &mut Batch<Number>) -> Result<(), Failure> {
        drop(batch.drain());
        Ok(())
    }

    fn has_on_idle(&self) -> bool {
        true
    }
}

fn wait_until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "the condition did not come true");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_spare_thread_leaves_when_it_has_nothing_to_do_and_can_be_started_again() {
    let threads = ThreadPolicy::fixed(1).unwrap();
    let config = Config { threads, spare_threads: Some(1), ..Config::default() };
    let partitions = PartitionPolicy::fixed(2).unwrap();
    let queue = BatchQueue::builder("q", Config { partitions, ..config }).start().unwrap();
    let (entered, release) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(())));
    let handler = {
        let (entered, release) = (entered.clone(), release.clone());
        HandlerRef::new(move |_: &mut Batch<Number>| {
            *entered.lock() += 1;
            drop(release.lock());
        })
    };
    queue.add_handler(TypeKey(16), handler).unwrap();
    queue.add_handler(TypeKey(32), HandlerRef::new(|_: &mut Batch<Number>| ())).unwrap();
    let is_running = || queue.flow.threads[1].is_running();
    for round in 1..=2 {
        let hold = release.lock();
        queue.produce(Number(TypeKey(16))).unwrap();
        wait_until(|| *entered.lock() == round);
        queue.produce(Number(TypeKey(32))).unwrap();
        wait_until(|| queue.stats().consumed == 2 * round - 1);
        assert!(is_running());
        drop(hold);
        wait_until(|| !is_running());
    }
    assert_eq!(queue.shutdown(None), 0);
    assert_eq!(queue.stats().consumed, 4);
}

#[test]
fn a_queue_without_turns_is_visited_no_more_even_if_it_has_idle_handlers() {
    let threads = ThreadPolicy::fixed(2).unwrap();
    let partitions = PartitionPolicy::fixed(2).unwrap();
    let config = Config { threads, partitions, ..Config::default() };
    let queue = BatchQueue::builder("q", config).start().unwrap();
    queue.add_handler(TypeKey(16), HandlerRef::new(Idle)).unwrap();
    let is_armed = || queue.flow.arming.has(Visits::Rare);
    for _ in 0..2 {
        queue.produce(Number(TypeKey(16))).unwrap();
        wait_until(is_armed);
        wait_until(|| !is_armed());
    }
    queue.shutdown(None);
}

/// They move before the call, while the thread has another partition with an item.
#[test]
fn a_thread_that_calls_a_slow_handler_leaves_its_partitions_before() {
    const HOLD: TypeKey = TypeKey(16);
    const SLOW: TypeKey = TypeKey(32);
    const QUICK: TypeKey = TypeKey(48);
    let threads = ThreadPolicy::fixed(2).unwrap();
    let partitions = PartitionPolicy::fixed(6).unwrap();
    let config = Config { threads, partitions, ..Config::default() };
    let queue = Arc::new(BatchQueue::builder("q", config).start().unwrap());
    let (release, has_left) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(false)));
    let hold = {
        let release = release.clone();
        HandlerRef::new(move |_: &mut Batch<Number>| drop(release.lock()))
    };
    let slow = {
        let (queue, has_left) = (Arc::downgrade(&queue), has_left.clone());
        HandlerRef::new(move |_: &mut Batch<Number>| {
            let owner = queue.upgrade().map(|queue| queue.flow.route.owner(4).load().wanted());
            *has_left.lock() |= owner == Some(1);
        })
    };
    let quick = HandlerRef::new(|_: &mut Batch<Number>| ());
    // The first thread has partitions 0, 2 and 4.
    for (number, handler) in
        [hold, quick.clone(), slow.clone(), quick.clone(), quick.clone()].into_iter().enumerate()
    {
        let key = [HOLD, TypeKey(64), SLOW, TypeKey(80), QUICK][number];
        queue.add_handler(key, handler).unwrap();
    }
    // A visit at the wrong moment, or another thread that lacks CPU time, leaves the take-over to
    // the next round.
    let start = Instant::now();
    for round in 1.. {
        let shut = release.lock();
        queue.produce(Number(HOLD)).unwrap();
        wait_until(|| queue.stats().in_flight == 1);
        slow.lock.note_slow(true);
        queue.produce(Number(SLOW)).unwrap();
        queue.produce(Number(QUICK)).unwrap();
        drop(shut);
        wait_until(|| queue.stats().consumed == 3 * round);
        if *has_left.lock() {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "none of {round} calls moved the partitions before");
    }
    assert_eq!(queue.shutdown(None), 0);
}
