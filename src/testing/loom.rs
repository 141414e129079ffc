//! What the loom tests share: items, handlers that note what they see, latches, and the model.
//!
//! The tests stand beside their protocols and run the real queue with its real drain threads
//! through every interleaving up to a bound; run them with `make loom`. Sleeps never time out in
//! the model (see `sync`), so a lost wake-up is a deadlock that loom reports. Each test names the
//! race.
//!
//! # Bounds
//!
//! The number beside `model` is the bound on preemptions: how many times threads may be interrupted
//! where they could have continued. All else is unbounded: which thread runs after one that waits
//! or ends, and which of its values a weak load returns. A race needs one preemption to get between
//! two steps of a thread, and a second one if the other thread must not finish there; so a model
//! with one drain thread has two, or three where a third party takes part. A model with two drain
//! threads has many times more steps, and most of its switches are waits, which are free: one
//! preemption gets between any two steps of any thread, and a second one takes minutes to hours.
//! `make faults` is the proof that the bounds suffice: with a rule turned off, the models that
//! guard it fail within them. `make loom-full` explores every bounded model with one preemption
//! more, for at most ten minutes each.

use loom::cell::UnsafeCell;

use crate::config::{Config, PartitionPolicy, ThreadPolicy};
use crate::flow::batch::Batch;
use crate::flow::handler::HandlerRef;
use crate::item::{Item, TypeKey};
use crate::queue::BatchQueue;
use crate::sync::{Arc, Condvar, Duration, Mutex, wait_for};

pub(crate) const ONE: TypeKey = TypeKey(1 << 4);

pub(crate) const TWO: TypeKey = TypeKey(2 << 4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) TypeKey, pub(crate) u32);

impl Item for Number {
    fn type_key(&self) -> TypeKey {
        self.0
    }
}

/// What the handlers saw, in order. loom reports it if two threads are in `inside` at the same
/// time.
pub(crate) struct Seen {
    pub(crate) inside: UnsafeCell<()>,
    numbers: Mutex<Vec<u32>>,
    more: Condvar,
}

impl Default for Seen {
    fn default() -> Self {
        Self { inside: UnsafeCell::new(()), numbers: Mutex::new(Vec::new()), more: Condvar::new() }
    }
}

// SAFETY: test code; the cell exists so that loom reports what would be a data race.
unsafe impl Sync for Seen {}

impl Seen {
    pub(crate) fn handler(self: &Arc<Self>) -> HandlerRef<Number> {
        let seen = self.clone();
        HandlerRef::new(move |batch: &mut Batch<Number>| {
            let batch: Vec<u32> =
                seen.inside.with_mut(|_| batch.drain().map(|number| number.1).collect());
            seen.numbers.lock().extend(batch);
            seen.more.notify_all();
        })
    }

    pub(crate) fn note(&self, batch: &mut Batch<Number>) {
        self.numbers.lock().extend(batch.drain().map(|number| number.1));
        self.more.notify_all();
    }

    /// Notes a call without items.
    pub(crate) fn note_call(&self) {
        self.numbers.lock().push(0);
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.numbers.lock().clone()
    }

    /// Waits until the handlers have seen `count` numbers, without a call to the queue.
    pub(crate) fn wait_for(&self, count: usize) {
        let mut numbers = self.numbers.lock();
        while numbers.len() < count {
            numbers = wait_for(&self.more, numbers, None);
        }
    }
}

pub(crate) fn config(threads: usize) -> Config {
    Config {
        threads: ThreadPolicy::Fixed(threads),
        partitions: PartitionPolicy::Fixed(threads),
        min_idle: Duration::ZERO,
        ..Config::default()
    }
}

/// Explores `body` with at most so many preemptions.
pub(crate) fn model(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let more = usize::from(std::env::var_os("BATCHQUEUE_LOOM_FULL").is_some());
    explore(Some(preemptions + more), body);
}

/// Into how many parts the slowest models are cut.
const TURNS: usize = 12;

/// The same, but `make test` explores a twelfth of these models, another one with each commit:
/// together they take most of the time. `make loom` explores all of them.
pub(crate) fn model_by_turns(
    number: usize,
    preemptions: usize,
    body: impl Fn() + Send + Sync + 'static,
) {
    assert!(number < TURNS, "the model would never have its turn");
    let turn = std::env::var("BATCHQUEUE_TEST_MATRIX").ok();
    let turn = turn.and_then(|turn| turn.parse::<usize>().ok());
    if turn.is_none_or(|turn| turn % TURNS == number) {
        model(preemptions, body);
    }
}

/// Explores every interleaving of `body`.
pub(crate) fn model_unbounded(body: impl Fn() + Send + Sync + 'static) {
    explore(None, body);
}

fn explore(preemptions: Option<usize>, body: impl Fn() + Send + Sync + 'static) {
    // `new` reads `LOOM_MAX_DURATION`, which `make loom-full` sets.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(body);
}

/// Two drain threads, each with a partition of another type, meet at one handler instance.
pub(crate) fn two_owners_meet(
    queue: &BatchQueue<Number>,
    handler: &HandlerRef<Number>,
    seen: &Seen,
) {
    queue.add_handler(ONE, handler.clone()).unwrap();
    queue.add_handler(TWO, handler.clone()).unwrap();
    queue.produce(Number(ONE, 1)).unwrap();
    queue.produce(Number(TWO, 2)).unwrap();
    queue.shutdown(None);
    let mut numbers = seen.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
}
