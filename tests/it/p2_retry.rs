//! P2, P3: a batch that is retried keeps its position and counts once.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{Batch, Config, Failure, HandledType, Handler, HandlerRef, RetryPolicy, Wait};

use crate::support::{
    Collector, Latch, Lines, PATIENCE, Sent, Sink, assert_conserved, config, key, sent, shut_down,
    start, start_with, try_once_more, wait_until,
};

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(20);

fn retrying(attempts: u32, backoff: Duration) -> Config {
    let retry = RetryPolicy {
        attempts: Some(attempts),
        backoff,
        factor: 1.0,
        max_backoff: LONG,
        ..RetryPolicy::default()
    };
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
    // practically forever.
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
    try_once_more(&queue);
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
    try_once_more(&queue);
    assert_conserved(&queue.stats());
}

/// Shuts the queue down in another thread, which returns the number of abandoned items.
fn closing(
    queue: &Arc<batchqueue::BatchQueue<Sent>>,
    deadline: Option<Instant>,
) -> std::thread::JoinHandle<u64> {
    let closing = queue.clone();
    let shutdown = std::thread::spawn(move || closing.shutdown(deadline));
    wait_until("the close", || !queue.is_running());
    shutdown
}

/// With a deadline that is far away, and without one.
#[test]
fn a_shutdown_leaves_back_offs_their_length_while_there_is_time() {
    for deadline in [Some(Instant::now() + LONG), None] {
        for attempts in [Some(1_000_000), None] {
            let retry =
                RetryPolicy { attempts, backoff: SHORT, factor: 1.0, ..RetryPolicy::default() };
            let queue = Arc::new(start(Config { retry: Some(retry), ..config(1) }));
            let sink = Sink::default();
            queue.add_handler(key(0), sink.handler()).unwrap();
            queue.produce(sent(0, 0, 7)).unwrap();
            sink.wait_for_a_try();
            let began = Instant::now();
            let shutdown = closing(&queue, deadline);
            let tries = sink.tries.load(SeqCst);
            wait_until("ten tries", || sink.tries.load(SeqCst) >= tries + 10);
            assert!(began.elapsed() >= 9 * SHORT, "{:?}", began.elapsed());
            sink.is_up.store(true, SeqCst);
            assert_eq!(shutdown.join().unwrap(), 0);
            assert_eq!((sink.numbers(), queue.stats().failed), (vec![7], 0));
            assert_conserved(&queue.stats());
        }
    }
}

/// The second shutdown has a deadline, the first one has none or a later one.
#[test]
fn a_deadline_that_comes_nearer_ends_a_back_off_in_time() {
    for first in [Some(Instant::now() + LONG), None] {
        let retry = RetryPolicy {
            attempts: None,
            backoff: LONG,
            max_backoff: LONG,
            ..RetryPolicy::default()
        };
        let queue = Arc::new(start(Config { retry: Some(retry), ..config(1) }));
        let fickle = Fickle::new(usize::MAX, again);
        queue.add_handler(key(0), HandlerRef::new(fickle.clone())).unwrap();
        queue.produce(sent(0, 0, 7)).unwrap();
        wait_until("the first attempt", || fickle.calls().len() == 1);
        let shutdown = closing(&queue, first);
        let second = closing(&queue, Some(Instant::now() + Duration::from_secs(1)));
        // On a busy machine the last attempt may end too late, which abandons its item.
        let abandoned = shutdown.join().unwrap();
        assert_eq!(second.join().unwrap(), abandoned);
        wait_until("the end", || queue.has_ended());
        assert_eq!(fickle.calls(), [(vec![7], false), (vec![7], true)]);
        assert_eq!(queue.stats().failed, 1 - abandoned);
        assert_conserved(&queue.stats());
    }
}

/// A hung handler holds up its own items, but no last attempt of others.
#[test]
fn a_last_attempt_comes_beside_a_handler_that_hangs() {
    let retry =
        RetryPolicy { attempts: None, backoff: LONG, max_backoff: LONG, ..RetryPolicy::default() };
    let threads = batchqueue::ThreadPolicy::Fixed(2);
    let queue = Arc::new(start(Config { retry: Some(retry), threads, ..config(2) }));
    let (sink, latch) = (Sink::default(), Arc::new(Latch::default()));
    let hangs = latch.clone();
    queue.add_handler(key(0), sink.handler()).unwrap();
    queue.add_handler(key(1), HandlerRef::new(move |_: &mut Batch<Sent>| hangs.wait())).unwrap();
    queue.produce(sent(1, 0, 0)).unwrap();
    queue.produce(sent(0, 0, 7)).unwrap();
    sink.wait_for_a_try();
    sink.is_up.store(true, SeqCst);
    queue.close_to_outside(Some(Instant::now()));
    wait_until("the last attempt", || queue.stats().consumed == 1);
    assert_eq!(queue.shutdown(Some(Instant::now())), 1);
    latch.open();
    wait_until("the end", || queue.has_ended());
}

/// The second stage is closed to outside threads, and ends after the one that feeds it, when the
/// time is over. Its items have had their last attempt by then.
#[test]
fn a_stage_makes_its_last_attempt_although_the_one_before_it_takes_all_the_time() {
    let retry =
        RetryPolicy { attempts: None, backoff: LONG, max_backoff: LONG, ..RetryPolicy::default() };
    let behind = Arc::new(start(Config { retry: Some(retry), ..config(1) }));
    let fickle = Fickle::new(usize::MAX, again);
    behind.add_handler(key(0), HandlerRef::new(fickle.clone())).unwrap();
    let (latch, before) = (Arc::new(Latch::default()), start(config(1)));
    let (hangs, into) = (latch.clone(), behind.clone());
    let feeds = move |batch: &mut Batch<Sent>| {
        batch.drain().for_each(|item| into.produce(item).unwrap());
        hangs.wait();
    };
    before.add_handler(key(0), HandlerRef::new(feeds)).unwrap();
    before.produce(sent(0, 0, 7)).unwrap();
    wait_until("the first attempt", || fickle.calls().len() == 1);
    let deadline = Some(Instant::now());
    behind.close_to_outside(deadline);
    assert_eq!(before.shutdown(deadline), 1);
    wait_until("the last attempt", || behind.stats().failed == 1);
    assert_eq!(behind.shutdown(deadline), 0);
    latch.open();
}
