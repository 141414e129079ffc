//! P2, P3: a batch whose tries are used up is halved until failing items stand alone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, Config, Failure, Handler, HandlerRef, Item, PartitionPolicy, Pause,
    RetryPolicy, Selector, Wait,
};

use crate::support::{
    Latch, PATIENCE, Rows, Sent, assert_conserved, config, key, sent, shut_down, start,
};

fn bisecting(attempts: u32) -> Config {
    let retry = RetryPolicy {
        attempts: Some(attempts),
        backoff: Duration::ZERO,
        bisect: true,
        ..RetryPolicy::default()
    };
    Config { retry: Some(retry), ..config(1) }
}

/// Fails each batch with a bad number in it, and records the numbers of all calls.
struct Picky {
    bad: BTreeSet<usize>,
    calls: Mutex<Vec<Vec<usize>>>,
    inside: Latch,
    release: Latch,
}

impl Picky {
    fn new(bad: impl IntoIterator<Item = usize>) -> Arc<Self> {
        Arc::new(Self {
            bad: bad.into_iter().collect(),
            calls: Mutex::default(),
            inside: Latch::default(),
            release: Latch::default(),
        })
    }

    fn handler<T: Item>(
        self: &Arc<Self>,
        numbers: fn(&T) -> std::ops::Range<usize>,
    ) -> HandlerRef<T> {
        HandlerRef::new(Entrance(self.clone(), numbers))
    }

    fn calls(&self) -> Vec<Vec<usize>> {
        self.calls.lock().unwrap().clone()
    }
}

struct Entrance<T>(Arc<Picky>, fn(&T) -> std::ops::Range<usize>);

impl<T: Item> Handler<T> for Entrance<T> {
    fn consume(&self, batch: &mut Batch<T>) -> Result<(), Failure> {
        let Self(picky, numbers) = self;
        picky.inside.open();
        picky.release.wait();
        let numbers: Vec<usize> = batch.iter().flat_map(numbers).collect();
        let fails = numbers.iter().any(|number| picky.bad.contains(number));
        picky.calls.lock().unwrap().push(numbers);
        if fails { Err(Failure::new("a bad one")) } else { Ok(()) }
    }
}

fn number_of(item: &Sent) -> std::ops::Range<usize> {
    item.number..item.number + 1
}

/// The items `0..count` in one batch, behind an item with the number `count`.
fn run(config: Config, picky: &Arc<Picky>, count: usize) -> BatchQueue<Sent> {
    let partition = (config.selector == Selector::Given).then_some(0);
    let queue = start(config);
    queue.add_handler(key(0), picky.handler(number_of)).unwrap();
    let put = |number| {
        queue.produce_with(sent(0, 0, number), partition, None, &mut Wait).unwrap();
    };
    put(count);
    picky.inside.wait();
    (0..count).for_each(put);
    queue
}

#[test]
fn the_left_half_comes_first_and_bad_items_stand_alone_in_the_end() {
    for selector in [Selector::ByType, Selector::RoundRobin, Selector::Given] {
        for attempts in [1, 3] {
            let partitions = PartitionPolicy::fixed(1).unwrap();
            let picky = Picky::new([5]);
            let queue = run(Config { selector, partitions, ..bisecting(attempts) }, &picky, 8);
            picky.release.open();
            shut_down(&queue);
            let mut wanted = vec![vec![8]];
            wanted.extend(vec![(0..8).collect::<Vec<_>>(); attempts as usize]);
            wanted.push(vec![0, 1, 2, 3]);
            wanted.push(vec![4, 5, 6, 7]);
            wanted.extend([vec![4, 5], vec![4], vec![5], vec![6, 7]]);
            assert_eq!(picky.calls(), wanted);
            assert_eq!((queue.stats().consumed, queue.stats().failed), (8, 1));
            assert_conserved(&queue.stats());
        }
    }
}

/// Few, many and all bad items in batches of each size.
#[test]
fn bad_items_fail_alone_in_few_calls_and_in_order() {
    for count in 1..40_usize {
        for (step, offset) in [(count, 0), (count, count - 1), (3, 1), (7, 2), (2, 0), (1, 0)] {
            let bad: BTreeSet<usize> = (offset..count).step_by(step).collect();
            let picky = Picky::new(bad.clone());
            let config = Config { max_batch_items: count, ..bisecting(1) };
            let queue = run(config, &picky, count);
            // This item is behind the batch, and handled after all of it.
            queue.produce(sent(0, 0, 1_000)).unwrap();
            picky.release.open();
            shut_down(&queue);
            let calls = picky.calls();
            assert_eq!((&calls[0], &calls[calls.len() - 1][..]), (&vec![count], &[1_000][..]));
            let is_bad = |number: &usize| bad.contains(number);
            let ended =
                calls[1..].iter().filter(|call| call.len() == 1 || !call.iter().any(is_bad));
            let ended: Vec<usize> =
                ended.flatten().copied().filter(|&number| number < count).collect();
            assert_eq!(ended, (0..count).collect::<Vec<_>>());
            let stats = queue.stats();
            let wanted = ((count - bad.len() + 2) as u64, bad.len() as u64);
            assert_eq!((stats.consumed, stats.failed), wanted);
            let further = calls.len() - 3;
            assert!(further <= most_calls(count, bad.len()), "{further} for {bad:?} of {count}");
        }
    }
}

/// 2k (1 + log2(n / k)), for k bad items of n.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn most_calls(items: usize, bad: usize) -> usize {
    let (n, k) = (items as f64, bad as f64);
    if bad == 0 { 0 } else { (2.0 * k * (1.0 + (n / k).log2())).floor() as usize }
}

#[test]
fn an_item_of_rows_is_halved_as_well() {
    let queue = BatchQueue::builder("rows", bisecting(1)).start().unwrap();
    let picky = Picky::new([6]);
    queue.add_handler(key(0), picky.handler(|rows: &Rows| rows.0.clone())).unwrap();
    let put = |rows| queue.produce_weighted(Rows(rows), None, &mut Wait).unwrap();
    put(100..101);
    picky.inside.wait();
    [0..1, 1..7, 7..8].into_iter().for_each(put);
    picky.release.open();
    assert_eq!(queue.shutdown(Some(Instant::now() + PATIENCE)), 0);
    let wanted =
        [&[100][..], &[0, 1, 2, 3, 4, 5, 6, 7], &[0, 1, 2, 3], &[4, 5, 6, 7], &[4, 5], &[6, 7]];
    assert_eq!(picky.calls()[..6], wanted);
    assert_eq!(picky.calls()[6..], [&[6][..], &[7]]);
    assert_eq!((queue.stats().consumed, queue.stats().failed), (8, 1));
}

/// Fails all but single items, and removes its type in a call with two.
struct Removing {
    queue: Arc<BatchQueue<Sent>>,
    calls: Mutex<Vec<usize>>,
    inside: Latch,
    release: Latch,
}

impl Handler<Sent> for Arc<Removing> {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        self.inside.open();
        self.release.wait();
        self.calls.lock().unwrap().push(batch.len());
        if batch.len() == 2 {
            assert!(self.queue.remove_handler(key(0)));
        }
        if batch.len() == 1 { Ok(()) } else { Err(Failure::new("bad")) }
    }
}

#[test]
fn after_a_removal_the_pieces_fail_without_a_try() {
    let queue = Arc::new(start(bisecting(1)));
    let handler = Arc::new(Removing {
        queue: queue.clone(),
        calls: Mutex::default(),
        inside: Latch::default(),
        release: Latch::default(),
    });
    queue.add_handler(key(0), HandlerRef::new(handler.clone())).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    handler.inside.wait();
    (0..8).for_each(|number| queue.produce(sent(0, 0, number)).unwrap());
    handler.release.open();
    assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
    assert_eq!(*handler.calls.lock().unwrap(), [1, 8, 4, 2]);
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.failed, stats.unhandled), (1, 8, 0));
    shut_down(&queue);
}

#[test]
fn a_shutdown_with_little_time_left_is_not_spent_on_halving() {
    const TIME: Duration = Duration::from_millis(300);
    let picky = Picky::new(0..8);
    let queue = run(bisecting(1), &picky, 8);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let shutdown = scope.spawn(|| queue.shutdown(Some(began + TIME)));
        while began.elapsed() < TIME * 95 / 100 || queue.is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
        picky.release.open();
        let abandoned = shutdown.join().unwrap();
        let stats = queue.stats();
        assert_eq!(stats.consumed + stats.failed + abandoned, 9);
    });
    assert!(picky.calls().len() <= 2, "{:?}", picky.calls());
}

/// Ends each wait before it begins.
struct Never;
impl Pause for Never {
    type Interrupt = ();

    fn pause(&mut self, _: &mut (dyn FnMut(Option<Duration>) + Send)) -> Result<(), ()> {
        Err(())
    }
}

/// A deadline counts only while its shutdown waits.
#[test]
fn a_shutdown_that_was_interrupted_leaves_time_for_halving() {
    let picky = Picky::new([5]);
    let queue = run(bisecting(1), &picky, 8);
    let soon = Instant::now() + Duration::from_secs(2);
    assert_eq!(queue.shutdown_with(Some(soon), &mut Never), Err(()));
    std::thread::sleep(soon.saturating_duration_since(Instant::now()));
    picky.release.open();
    shut_down(&queue);
    assert_eq!((queue.stats().consumed, queue.stats().failed), (8, 1));
}

/// Fails a part of each batch with several items.
struct Parts {
    failed: Vec<usize>,
    calls: Arc<Mutex<Vec<usize>>>,
    inside: Arc<Latch>,
    release: Arc<Latch>,
}

impl Handler<Sent> for Parts {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        self.inside.open();
        self.release.wait();
        self.calls.lock().unwrap().push(batch.len());
        if batch.len() == 1 {
            return Ok(());
        }
        batch.keep(&self.failed);
        Err(Failure::of_rest("these"))
    }
}

#[test]
fn a_part_that_a_handler_names_is_not_halved() {
    for failed in [vec![3], vec![0, 1], (0..8).collect()] {
        let queue = start(bisecting(1));
        let (inside, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let parts = Parts {
            failed: failed.clone(),
            calls: calls.clone(),
            inside: inside.clone(),
            release: release.clone(),
        };
        queue.add_handler(key(0), HandlerRef::new(parts)).unwrap();
        queue.produce(sent(0, 0, 0)).unwrap();
        inside.wait();
        (0..8).for_each(|number| queue.produce(sent(0, 0, number)).unwrap());
        release.open();
        shut_down(&queue);
        assert_eq!(*calls.lock().unwrap(), [1, 8]);
        let failed = failed.len() as u64;
        assert_eq!((queue.stats().consumed, queue.stats().failed), (9 - failed, failed));
    }
}
