//! P9: an item whose type, weight or cut panics while it is queued ends neither its queue nor
//! others' use of its handler.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use batchqueue::{
    Batch, BatchQueue, Config, HandlerRef, Item, PartitionPolicy, Selector, TypeKey, Wait,
};

use crate::support::{Latch, Lines, PATIENCE, assert_conserved, config, key, shut_down};

/// The calls in which unsound items panic.
#[derive(Debug, Default)]
struct Panics {
    in_type_key: AtomicBool,
    in_weight: AtomicBool,
}

#[derive(Debug)]
struct Shaky {
    kind: usize,
    weight: usize,
    sound: bool,
    panics: Arc<Panics>,
}

impl Shaky {
    fn check(&self, panics: &AtomicBool) {
        if !self.sound && panics.load(SeqCst) {
            // A panic without the panic hook's message.
            resume_unwind(Box::new("shaky"));
        }
    }
}

impl Item for Shaky {
    fn type_key(&self) -> TypeKey {
        self.check(&self.panics.in_type_key);
        key(self.kind)
    }

    fn weight(&self) -> usize {
        self.check(&self.panics.in_weight);
        self.weight
    }

    fn cut(self, weight: usize) -> (Self, Self) {
        let part = |weight| Self { weight, panics: self.panics.clone(), ..self };
        (part(weight), part(self.weight - weight))
    }
}

/// A queue of such items, and the sizes of its handler's batches. The first call waits for a
/// release.
struct World {
    queue: BatchQueue<Shaky>,
    lines: Lines,
    handler: HandlerRef<Shaky>,
    sizes: Arc<Mutex<Vec<usize>>>,
    panics: Arc<Panics>,
    entered: Arc<Latch>,
    release: Arc<Latch>,
}

fn start(lines: &Lines, config: Config) -> BatchQueue<Shaky> {
    BatchQueue::builder("shaky", config).host(lines.clone()).start().unwrap()
}

impl World {
    fn new(config: Config) -> Self {
        let (lines, sizes) = (Lines::default(), Arc::<Mutex<Vec<usize>>>::default());
        let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
        let seen = (sizes.clone(), entered.clone(), release.clone());
        let handler = HandlerRef::new(move |batch: &mut Batch<Shaky>| {
            seen.1.open();
            seen.2.wait();
            seen.0.lock().unwrap().push(batch.len());
        });
        let queue = start(&lines, config);
        for kind in 0..2 {
            queue.add_handler(key(kind), handler.clone()).unwrap();
        }
        Self { queue, lines, handler, sizes, panics: Arc::default(), entered, release }
    }

    fn produce(&self, kind: usize, weight: usize, sound: bool) {
        let item = Shaky { kind, weight, sound, panics: self.panics.clone() };
        self.queue.produce_weighted(item, None, &mut Wait).unwrap();
    }

    /// Produces while the handler is in a call, so that one later turn takes all the items.
    fn produce_behind_a_call(&self, items: &[(usize, usize, bool)]) {
        self.produce(0, 1, true);
        self.entered.wait();
        for &(kind, weight, sound) in items {
            self.produce(kind, weight, sound);
        }
    }

    fn flush(&self) {
        assert_eq!(self.queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
    }

    /// Asserts that the queue still works, and ends as it should.
    fn assert_works(&self) {
        self.flush();
        self.panics.in_type_key.store(false, SeqCst);
        self.panics.in_weight.store(false, SeqCst);
        let before = self.queue.stats().consumed;
        self.produce(1, 2, false);
        shut_down(&self.queue);
        let stats = self.queue.stats();
        assert_eq!(stats.consumed, before + 2, "{stats:?}");
        assert_conserved(&stats);
        assert!(!self.lines.any("a drain thread panicked"), "{:?}", self.lines);
    }
}

fn one_partition() -> Config {
    let (selector, partitions) = (Selector::RoundRobin, PartitionPolicy::fixed(1).unwrap());
    Config { selector, partitions, ..config(1) }
}

#[test]
fn items_that_do_not_say_their_type_count_as_unhandled() {
    for config in [config(1), one_partition()] {
        let world = World::new(config);
        world.produce_behind_a_call(&[(0, 1, false), (0, 1, true), (0, 3, false), (0, 2, true)]);
        world.panics.in_type_key.store(true, SeqCst);
        world.release.open();
        world.flush();
        let stats = world.queue.stats();
        assert_eq!((stats.consumed, stats.unhandled), (4, 4), "{stats:?}");
        world.assert_works();
        assert!(world.lines.any("4 items had no handler"), "{:?}", world.lines);
    }
}

#[test]
fn a_batch_with_an_item_that_does_not_say_its_weight_fails() {
    let world = World::new(Config { max_batch_items: 4, ..config(1) });
    world.produce_behind_a_call(&[(0, 3, true), (0, 3, false), (0, 3, true)]);
    world.panics.in_weight.store(true, SeqCst);
    world.release.open();
    world.flush();
    let stats = world.queue.stats();
    assert_eq!((stats.consumed, stats.failed), (1, 9), "{stats:?}");
    assert_eq!(*world.sizes.lock().unwrap(), [1], "no batch is larger than its limit");
    // The handler lock is free.
    let other = start(&world.lines, config(1));
    other.add_handler(key(0), world.handler.clone()).unwrap();
    let panics = world.panics.clone();
    other.produce(Shaky { kind: 0, weight: 1, sound: true, panics }).unwrap();
    shut_down(&other);
    assert_eq!(other.stats().consumed, 1);
    world.assert_works();
}

#[test]
fn items_of_several_types_that_do_not_say_their_weight_count_as_unhandled() {
    let world = World::new(one_partition());
    world.produce_behind_a_call(&[(0, 2, true), (1, 3, false), (1, 5, true), (0, 7, false)]);
    world.panics.in_weight.store(true, SeqCst);
    world.release.open();
    world.flush();
    let stats = world.queue.stats();
    assert_eq!((stats.consumed, stats.unhandled), (8, 10), "{stats:?}");
    world.assert_works();
}

#[test]
fn no_item_is_asked_for_its_weight_where_nothing_has_to_be_cut() {
    let world = World::new(config(1));
    world.produce_behind_a_call(&[(0, 3, false), (0, 4, true)]);
    world.panics.in_weight.store(true, SeqCst);
    world.release.open();
    world.flush();
    assert_eq!(world.queue.stats().consumed, 8);
    world.assert_works();
}
