//! P2: if a part of a batch fails, the other items count as consumed immediately, and only the
//! failed ones are tried again.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, Config, Failure, HandledType, Handler, HandlerRef, PartitionPolicy,
    RetryPolicy, Selector, Wait,
};

use crate::support::{
    LONG, Latch, Lines, PATIENCE, Rows, Sent, assert_conserved, config, key, sent, shut_down,
    start, start_with, try_once_more, wait_until,
};

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

/// Fails the numbers for which `is_bad` holds in a given try, and records the numbers of each call.
#[derive(Clone)]
struct Picky {
    is_bad: fn(number: usize, call: usize) -> bool,
    calls: Arc<Mutex<Vec<Vec<usize>>>>,
    release: Arc<Latch>,
    inside: Arc<Latch>,
}

impl Picky {
    fn new(is_bad: fn(usize, usize) -> bool) -> Self {
        Self { is_bad, calls: Arc::default(), release: Arc::default(), inside: Arc::default() }
    }

    fn handler(&self) -> HandlerRef<Sent> {
        HandlerRef::new(self.clone())
    }

    fn calls(&self) -> Vec<Vec<usize>> {
        self.calls.lock().unwrap().clone()
    }
}

impl Handler<Sent> for Picky {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        let numbers: Vec<usize> = batch.iter().map(|item| item.number).collect();
        let mut calls = self.calls.lock().unwrap();
        let bad = |&position: &usize| (self.is_bad)(numbers[position], calls.len());
        let failed: Vec<usize> = (0..numbers.len()).filter(bad).collect();
        calls.push(numbers);
        drop(calls);
        self.inside.open();
        self.release.wait();
        batch.keep(&failed);
        Err(Failure::of_rest("bad"))
    }
}

/// Puts 0 alone, and 1 to 5 behind it, so that they are one batch.
fn put_six(queue: &BatchQueue<Sent>, picky: &Picky) {
    let partition = (queue.stats().partitions.len() == 1).then_some(0);
    let put = |number| {
        queue.produce_with(sent(0, 0, number), partition, None, &mut Wait).unwrap();
    };
    put(0);
    picky.inside.wait();
    (1..6).for_each(put);
    picky.release.open();
}

#[test]
fn without_a_retry_what_failed_counts_as_failed_and_the_rest_as_consumed() {
    let (lines, picky) = (Lines::default(), Picky::new(|number, _| number % 2 == 1));
    let queue = start_with(&lines, config(1));
    let named = HandledType { name: "Picky".into(), ..key(0).into() };
    queue.add_handler(named, picky.handler()).unwrap();
    put_six(&queue, &picky);
    shut_down(&queue);
    assert_eq!(picky.calls(), [vec![0], vec![1, 2, 3, 4, 5]]);
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.failed), (3, 3));
    let handler = &stats.handlers[0];
    assert_eq!((handler.consumed, handler.failed, handler.batches), (3, 3, 2));
    assert!(lines.any("3 items failed in handler Picky: bad"));
    assert_conserved(&stats);
}

#[test]
fn only_what_failed_is_tried_again_and_later_items_wait_for_it() {
    for selector in [Selector::ByType, Selector::RoundRobin, Selector::Given] {
        let partitions = PartitionPolicy::fixed(1).unwrap();
        let queue = start(Config { selector, partitions, ..retrying(3, Duration::from_millis(1)) });
        let picky =
            Picky::new(|number, call| (number == 2 && call < 3) || (number == 4 && call < 2));
        queue.add_handler(key(0), picky.handler()).unwrap();
        put_six(&queue, &picky);
        assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
        assert_eq!(picky.calls(), [vec![0], vec![1, 2, 3, 4, 5], vec![2, 4], vec![2]]);
        let stats = queue.stats();
        assert_eq!((stats.consumed, stats.failed), (6, 0));
        shut_down(&queue);
        assert_conserved(&queue.stats());
    }
}

#[test]
fn what_fails_for_good_counts_once() {
    let queue = start(retrying(3, Duration::from_millis(1)));
    let picky = Picky::new(|number, _| number == 2);
    queue.add_handler(key(0), picky.handler()).unwrap();
    put_six(&queue, &picky);
    shut_down(&queue);
    assert_eq!(picky.calls(), [vec![0], vec![1, 2, 3, 4, 5], vec![2], vec![2]]);
    assert_eq!((queue.stats().consumed, queue.stats().failed), (5, 1));
}

#[test]
fn while_a_part_backs_off_the_rest_is_consumed_and_the_counts_add_up() {
    let queue = start(retrying(2, LONG));
    let picky = Picky::new(|number, call| number == 3 && call == 1);
    queue.add_handler(key(0), picky.handler()).unwrap();
    put_six(&queue, &picky);
    wait_until("the part", || queue.stats().consumed == 5);
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.queued, stats.held, stats.produced), (5, 0, 1, 6));
    try_once_more(&queue);
    assert_eq!(picky.calls(), [vec![0], vec![1, 2, 3, 4, 5], vec![3]]);
    assert_eq!(queue.stats().consumed, 6);
}

#[test]
fn a_failure_of_nothing_is_a_success() {
    let (lines, picky) = (Lines::default(), Picky::new(|_, _| false));
    let queue = start_with(&lines, retrying(3, LONG));
    queue.add_handler(key(0), picky.handler()).unwrap();
    put_six(&queue, &picky);
    shut_down(&queue);
    assert_eq!((queue.stats().consumed, queue.stats().failed), (6, 0));
    assert!(!lines.any("failed"));
}

#[test]
fn a_part_that_fails_after_the_end_of_time_was_abandoned() {
    let (queue, picky) = (start(retrying(3, LONG)), Picky::new(|number, _| number == 2));
    queue.add_handler(key(0), picky.handler()).unwrap();
    (0..6).for_each(|number| queue.produce(sent(0, 0, number)).unwrap());
    picky.inside.wait();
    assert_eq!(queue.shutdown(Some(Instant::now())), 6);
    picky.release.open();
    wait_until("the end", || queue.has_ended());
    let stats = queue.stats();
    assert_eq!((stats.abandoned, stats.consumed, stats.failed), (6, 0, 0));
    assert_conserved(&stats);
}

#[test]
fn positions_that_are_not_in_the_batch_fail_all_of_it() {
    for positions in [&[6][..], &[1, 1], &[2, 1]] {
        let queue = start(config(1));
        let handler = move |batch: &mut Batch<Sent>| batch.keep(positions);
        queue.add_handler(key(0), HandlerRef::new(handler)).unwrap();
        queue.produce(sent(0, 0, 0)).unwrap();
        shut_down(&queue);
        assert_eq!((queue.stats().consumed, queue.stats().failed), (0, 1), "{positions:?}");
    }
}

/// Fails some rows in its second call, and records the rows of later calls.
struct Rejecting {
    failed: Vec<usize>,
    calls: AtomicUsize,
    seen: Mutex<Vec<usize>>,
    inside: Latch,
    release: Latch,
}

impl Handler<Rows> for Arc<Rejecting> {
    fn consume(&self, batch: &mut Batch<Rows>) -> Result<(), Failure> {
        self.inside.open();
        self.release.wait();
        match self.calls.fetch_add(1, SeqCst) {
            0 => Ok(()),
            1 => {
                batch.keep(&self.failed);
                Err(Failure::of_rest("some rows"))
            }
            _ => {
                self.seen.lock().unwrap().extend(batch.drain().flat_map(|rows| rows.0));
                Ok(())
            }
        }
    }
}

/// Every set of failed rows of a few items.
#[test]
fn items_of_rows_are_cut_where_rows_failed() {
    for bits in 0_usize..1 << 9 {
        let queue = BatchQueue::builder("rows", retrying(2, Duration::ZERO)).start().unwrap();
        let handler = Arc::new(Rejecting {
            failed: (0..9).filter(|row| bits >> row & 1 == 1).collect(),
            calls: AtomicUsize::new(0),
            seen: Mutex::default(),
            inside: Latch::default(),
            release: Latch::default(),
        });
        queue.add_handler(key(0), HandlerRef::new(handler.clone())).unwrap();
        let put = |rows| queue.produce_weighted(Rows(rows), None, &mut Wait).unwrap();
        put(100..101);
        handler.inside.wait();
        [0..3, 3..4, 4..8, 8..9].into_iter().for_each(put);
        handler.release.open();
        assert_eq!(queue.shutdown(Some(Instant::now() + PATIENCE)), 0);
        assert_eq!(*handler.seen.lock().unwrap(), handler.failed);
        assert_eq!((queue.stats().consumed, queue.stats().failed), (10, 0));
    }
}
