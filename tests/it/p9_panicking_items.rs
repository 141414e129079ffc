//! P9: an item that panics when it is dropped ends neither its queue nor its handler: its outcome
//! still counts, and the other items are dropped too.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use batchqueue::{
    Batch, BatchQueue, Config, Failure, HandlerRef, Item, RetryPolicy, TypeKey, Wait,
};

use crate::support::{
    LONG, Latch, Lines, PATIENCE, assert_conserved, config, key, shut_down, wait_until,
};

/// The number of an item that weighs 2 and panics when it is cut.
const HEAVY: usize = 100;

/// An item, of which every third panics when it is dropped. All that are left share a reference.
#[derive(Debug)]
struct Fragile {
    number: usize,
    _left: Arc<()>,
}

impl Item for Fragile {
    fn type_key(&self) -> TypeKey {
        key(0)
    }

    fn weight(&self) -> usize {
        if self.number == HEAVY { 2 } else { 1 }
    }

    fn cut(self, weight: usize) -> (Self, Self) {
        resume_unwind(Box::new(format!("cut at {weight}")));
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        if self.number.is_multiple_of(3) {
            // A panic without the panic hook's message.
            resume_unwind(Box::new(format!("fragile {}", self.number)));
        }
    }
}

/// A queue of such items, its log, and the number of items left, plus one.
struct World {
    queue: BatchQueue<Fragile>,
    lines: Lines,
    left: Arc<()>,
}

impl World {
    fn new(config: Config) -> Self {
        let lines = Lines::default();
        let queue = BatchQueue::builder("fragile", config).host(lines.clone()).start().unwrap();
        Self { queue, lines, left: Arc::default() }
    }

    fn add_handler(
        &self,
        handle: impl Fn(&mut Batch<Fragile>) -> Result<(), Failure> + Send + Sync + 'static,
    ) {
        self.queue.add_handler(key(0), HandlerRef::new(Fallible(handle))).unwrap();
    }

    fn produce(&self, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            let item = Fragile { number, _left: self.left.clone() };
            self.queue.produce_weighted(item, None, &mut Wait).unwrap();
        }
    }

    /// Asserts that all items were dropped, and that the log reports how many drops panicked.
    fn assert_dropped(&self, panicked: u64) {
        wait_until("all items to be dropped", || Arc::strong_count(&self.left) == 1);
        wait_until("the end of the queue", || self.queue.has_ended());
        let text = "dropped";
        wait_until("the lines", || self.lines.count(text) >= panicked);
        assert_eq!(self.lines.count(text), panicked, "{:?}", self.lines);
        assert!(!self.lines.any("a drain thread panicked"), "{:?}", self.lines);
        assert_conserved(&self.queue.stats());
    }
}

/// A handler that may fail.
struct Fallible<F>(F);

impl<F: Fn(&mut Batch<Fragile>) -> Result<(), Failure> + Send + Sync> batchqueue::Handler<Fragile>
    for Fallible<F>
{
    fn consume(&self, batch: &mut Batch<Fragile>) -> Result<(), Failure> {
        (self.0)(batch)
    }
}

#[test]
fn a_queue_outlives_items_that_panic_when_they_are_dropped() {
    let world = World::new(Config { max_batch_items: 4, ..config(1) });
    world.add_handler(|_| Ok(()));
    world.produce(0..30);
    assert_eq!(world.queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
    assert_eq!(world.queue.stats().consumed, 30, "what a handler left counts as consumed");
    world.produce(30..60);
    shut_down(&world.queue);
    assert_eq!(world.queue.stats().consumed, 60);
    world.assert_dropped(20);
}

#[test]
fn a_batch_that_failed_is_dropped_and_counts_as_failed() {
    let world = World::new(config(1));
    world.add_handler(|_| Err(Failure::last("down")));
    world.produce(0..30);
    shut_down(&world.queue);
    assert_eq!(world.queue.stats().failed, 30);
    world.assert_dropped(10);
}

#[test]
fn items_without_a_handler_are_dropped_and_count_as_unhandled() {
    let world = World::new(config(1));
    world.produce(0..30);
    shut_down(&world.queue);
    assert_eq!(world.queue.stats().unhandled, 30);
    world.assert_dropped(10);
}

#[test]
fn items_are_dropped_behind_a_handler_that_hangs() {
    let world = World::new(Config { max_batch_items: 3, ..config(2) });
    let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let latches = (entered.clone(), release.clone());
    world.add_handler(move |_| {
        latches.0.open();
        latches.1.wait();
        Ok(())
    });
    world.produce(0..30);
    entered.wait();
    assert_eq!(world.queue.shutdown(Some(Instant::now())), 30);
    release.open();
    assert_eq!(world.queue.stats().abandoned, 30);
    world.assert_dropped(10);
}

#[test]
fn a_batch_whose_next_try_comes_too_late_is_dropped() {
    let retry = RetryPolicy { attempts: Some(5), backoff: LONG, ..RetryPolicy::default() };
    let world = World::new(Config { retry: Some(retry), ..config(1) });
    let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let latches = (entered.clone(), release.clone());
    world.add_handler(move |_| {
        latches.0.open();
        latches.1.wait();
        Err(Failure::new("down"))
    });
    world.produce(0..30);
    entered.wait();
    assert_eq!(world.queue.shutdown(Some(Instant::now())), 30);
    release.open();
    world.assert_dropped(10);
}

#[test]
fn a_handler_that_keeps_some_items_drops_the_others() {
    let world = World::new(Config { max_batch_items: 30, ..config(1) });
    let entered = Arc::new(Latch::default());
    let latch = entered.clone();
    world.add_handler(move |batch| {
        latch.wait();
        batch.keep(&[0, batch.len() - 1]);
        Ok(())
    });
    world.produce(0..31);
    entered.open();
    shut_down(&world.queue);
    let stats = world.queue.stats();
    assert_eq!(stats.consumed + stats.failed, 31, "the handler's own panics are its failures");
    wait_until("all items to be dropped", || Arc::strong_count(&world.left) == 1);
    assert!(!world.lines.any("a drain thread panicked"), "{:?}", world.lines);
}

#[test]
fn items_that_are_lost_when_their_batch_is_halved_are_dropped() {
    let retry = RetryPolicy { attempts: Some(1), bisect: true, ..RetryPolicy::default() };
    let world = World::new(Config { retry: Some(retry), ..config(1) });
    let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = (calls.clone(), entered.clone(), release.clone());
    world.add_handler(move |_| {
        seen.0.fetch_add(1, SeqCst);
        seen.1.open();
        seen.2.wait();
        Err(Failure::new("down"))
    });
    world.produce([1]);
    entered.wait();
    world.produce([0, 3, 6, HEAVY]);
    release.open();
    shut_down(&world.queue);
    assert_eq!(world.queue.stats().failed, 6);
    assert_eq!(calls.load(SeqCst), 2, "there are no halves");
    world.assert_dropped(3);
}
