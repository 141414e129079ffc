//! P2, P3: a batch that is retried keeps its position and counts once.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{Batch, Config, Failure, HandledType, Handler, HandlerRef, RetryPolicy, Wait};

use crate::support::{
    Collector, Lines, PATIENCE, Sent, assert_conserved, config, key, sent, shut_down, start,
    start_with, wait_until,
};

const LONG: Duration = Duration::from_secs(600);

fn retrying(attempts: u32, backoff: Duration) -> Config {
    let retry =
        RetryPolicy { attempts, backoff, factor: 1.0, max_backoff: LONG, ..RetryPolicy::default() };
    Config { retry: Some(retry), ..config(1) }
}

/// The items of a call, and whether it was the last attempt.
type Call = (Vec<usize>, bool);

/// Fails its first `failures` calls with `failure`, and records every call.
#[derive(Clone)]
struct Fickle {
    failures: usize,
    failure: fn(&mut Batch<Sent>) -> Failure,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Fickle {
    fn new(failures: usize, failure: fn(&mut Batch<Sent>) -> Failure) -> Self {
        Self { failures, failure, calls: Arc::default() }
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }
}

impl Handler<Sent> for Fickle {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        let numbers = batch.iter().map(|item| item.number).collect();
        let call = {
            let mut calls = self.calls.lock().unwrap();
            calls.push((numbers, batch.is_last_attempt()));
            calls.len()
        };
        if call <= self.failures {
            return Err((self.failure)(batch));
        }
        drop(batch.drain());
        Ok(())
    }
}

fn again(_: &mut Batch<Sent>) -> Failure {
    Failure::new("not now")
}

#[test]
fn a_batch_is_retried_up_to_the_limit_and_counts_once() {
    let (queue, fickle) = (start(retrying(3, Duration::ZERO)), Fickle::new(2, again));
    queue.add_handler(key(0), HandlerRef::new(fickle.clone())).unwrap();
    queue.produce(sent(0, 0, 7)).unwrap();
    shut_down(&queue);
    assert_eq!(fickle.calls(), [(vec![7], false), (vec![7], false), (vec![7], true)]);
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.failed, stats.handlers[0].batches), (1, 0, 1));
    assert_conserved(&stats);
}

#[test]
fn after_the_last_attempt_a_batch_has_failed_once() {
    let (queue, fickle, lines) =
        (retrying(3, Duration::ZERO), Fickle::new(usize::MAX, again), Lines::default());
    let queue = start_with(&lines, queue);
    queue
        .add_handler(
            HandledType { name: "Fickle".into(), ..key(0).into() },
            HandlerRef::new(fickle.clone()),
        )
        .unwrap();
    for number in 0..2 {
        queue.produce(sent(0, 0, number)).unwrap();
        assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
    }
    shut_down(&queue);
    assert_eq!(fickle.calls().len(), 6);
    assert_eq!((queue.stats().consumed, queue.stats().failed), (0, 2));
    assert!(lines.any("1 item failed in handler Fickle: not now"), "{lines:?}");
    assert_conserved(&queue.stats());
}

#[test]
fn without_a_policy_a_batch_is_attempted_once() {
    let (queue, fickle) = (start(config(1)), Fickle::new(1, again));
    queue.add_handler(key(0), HandlerRef::new(fickle.clone())).unwrap();
    queue.produce(sent(0, 0, 7)).unwrap();
    shut_down(&queue);
    assert_eq!((fickle.calls(), queue.stats().failed), (vec![(vec![7], true)], 1));
}

#[test]
fn a_batch_is_not_retried_if_a_retry_cannot_help() {
    let panics: fn(&mut Batch<Sent>) -> Failure = |_| panic!("moody");
    let gives_up: fn(&mut Batch<Sent>) -> Failure = |_| Failure::last("no use");
    let loses_items: fn(&mut Batch<Sent>) -> Failure = |batch| {
        drop(batch.drain());
        Failure::new("the items are gone")
    };
    for failure in [panics, gives_up, loses_items] {
        let (queue, fickle) = (start(retrying(3, Duration::ZERO)), Fickle::new(1, failure));
        queue.add_handler(key(0), HandlerRef::new(fickle.clone())).unwrap();
        queue.produce(sent(0, 0, 0)).unwrap();
        shut_down(&queue);
        assert_eq!((fickle.calls(), queue.stats().failed), (vec![(vec![0], false)], 1));
        assert_conserved(&queue.stats());
    }
}

/// While a batch waits for its next attempt, the items behind it wait too, including those of
/// another type that were taken in the same cycle.
#[test]
fn order_is_kept_across_retries() {
    let (queue, fickle) = (
        start(Config { max_batch_items: 2, ..retrying(4, Duration::from_millis(1)) }),
        Fickle::new(3, again),
    );
    queue.add_handler(key(0), HandlerRef::new(fickle.clone())).unwrap();
    for number in 0..20 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    shut_down(&queue);
    let calls = fickle.calls();
    assert!(
        calls[..3].iter().all(|call| call.0 == calls[0].0),
        "the same batch is retried first: {calls:?}"
    );
    let handled: Vec<usize> = calls[3..].iter().flat_map(|call| call.0.clone()).collect();
    assert_eq!(handled, (0..20).collect::<Vec<_>>());
}

#[test]
fn another_thread_can_enter_the_handler_between_attempts() {
    // One instance on two threads: the first thread's batch fails and waits outside the handler,
    // practically for ever.
    let config = Config { partitions: batchqueue::PartitionPolicy::Fixed(2), ..retrying(2, LONG) };
    let queue = start(Config { threads: batchqueue::ThreadPolicy::Fixed(2), ..config });
    let fickle = Fickle::new(1, again);
    let handler = HandlerRef::new(fickle.clone());
    for kind in 0..2 {
        queue.add_handler(key(kind), handler.clone()).unwrap();
    }
    queue.produce(sent(0, 0, 0)).unwrap();
    wait_until("the first attempt", || fickle.calls().len() == 1);
    queue.produce(sent(1, 0, 1)).unwrap();
    wait_until("the other thread's batch", || queue.stats().consumed == 1);
    assert_eq!(fickle.calls()[1].0, [1]);
    // The close ends the back-off of ten minutes, and the remaining attempt follows immediately.
    shut_down(&queue);
    assert_eq!((fickle.calls().len(), queue.stats().consumed), (3, 2));
}

#[test]
fn a_back_off_does_not_block_other_threads() {
    let queue = start(Config { threads: batchqueue::ThreadPolicy::Fixed(2), ..retrying(2, LONG) });
    let (fickle, collector) = (Fickle::new(1, again), Collector::default());
    queue.add_handler(key(0), HandlerRef::new(fickle.clone())).unwrap();
    queue.add_handler(key(1), collector.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    wait_until("the first attempt", || fickle.calls().len() == 1);
    for number in 0..100 {
        queue.produce(sent(1, 0, number)).unwrap();
    }
    wait_until("the other type", || collector.items().len() == 100);
    // A batch that waits is not inside a handler, so none counts as stuck; its item is in flight.
    wait_until("the other type's cycle to end", || queue.stats().held == 1);
    assert_eq!(queue.stats().stuck_handlers.len(), 0);
    shut_down(&queue);
    assert_conserved(&queue.stats());
}
