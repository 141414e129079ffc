//! The protocols between threads under loom: the real queue, its real drain threads, every
//! interleaving up to a bound.
//!
//! Run with `make loom`. Sleeps do not end by themselves in the model (see `sync`), so a lost
//! wake-up is a deadlock that loom reports. Each test names the race; the number beside `model`
//! says how many times a thread may be interrupted at a point where it could have gone on, chosen
//! so that a test ends within a minute.

use loom::cell::UnsafeCell;
use loom::thread;

use crate::config::{Config, PartitionPolicy, ThreadPolicy};
use crate::sync::{Arc, Condvar, Duration, Mutex, wait_for};
use crate::{Batch, BatchQueue, HandlerRef, Item, TypeKey, Wait};

pub(crate) const ONE: TypeKey = TypeKey(1 << 4);
pub(crate) const TWO: TypeKey = TypeKey(2 << 4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) TypeKey, pub(crate) u32);

impl Item for Number {
    fn type_key(&self) -> TypeKey {
        self.0
    }
}

/// What the handlers saw, in order. loom reports two threads in `inside` at once.
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

// SAFETY: test code; the cell is there so that loom reports what a data race would be.
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

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.numbers.lock().clone()
    }

    /// Waits until the handlers have seen `count` numbers, without a word to the queue.
    pub(crate) fn wait_for(&self, count: usize) {
        let mut numbers = self.numbers.lock();
        while numbers.len() < count {
            numbers = wait_for(&self.more, numbers, None);
        }
    }
}

/// Opens once.
pub(crate) struct Latch(Mutex<bool>, Condvar);

impl Default for Latch {
    fn default() -> Self {
        Self(Mutex::new(false), Condvar::new())
    }
}

impl Latch {
    pub(crate) fn open(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }

    pub(crate) fn wait(&self) {
        let mut open = self.0.lock();
        while !*open {
            open = wait_for(&self.1, open, None);
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

pub(crate) fn model(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

/// Ready set with sleep and wake (rules 1, 3 and 10): a put while the owner goes to sleep wakes it.
#[test]
fn loom_put_while_the_owner_goes_to_sleep() {
    model(3, || {
        let seen = Arc::new(Seen::default());
        let queue = BatchQueue::builder("q", config(1)).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        // Nothing but the put's own wake-up ends this wait: a flush wakes nobody who was awake when
        // it began.
        seen.wait_for(1);
        queue.shutdown(None);
    });
}

/// A rest does not end with the first item, but with the pressure of a partition that is half full:
/// here the first item is both. The rest is as endless as the sleep.
#[test]
fn loom_pressure_while_the_owner_goes_to_rest() {
    model(3, || {
        let seen = Arc::new(Seen::default());
        let resting = Config { min_idle: Duration::from_millis(1), buffer_size: 2, ..config(1) };
        let queue = BatchQueue::builder("q", resting).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        seen.wait_for(1);
        queue.shutdown(None);
    });
}

/// Two items: the second finds the partition empty, not empty, or in between.
#[test]
fn loom_second_put_while_the_owner_takes_the_first() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue = BatchQueue::builder("q", config(1)).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        queue.produce(Number(ONE, 2)).unwrap();
        seen.wait_for(2);
        assert_eq!(seen.numbers(), [1, 2]);
        queue.shutdown(None);
    });
}

/// Seal and take (rule 4): the third put fills a segment and seals it while the owner takes. The
/// second one is plain.
#[test]
fn loom_seal_while_the_owner_takes() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        // Segments of three; the fourth item stays open.
        let queue =
            BatchQueue::builder("q", Config { buffer_size: 12, ..config(1) }).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        for number in 1..=4 {
            queue.produce(Number(ONE, number)).unwrap();
        }
        seen.wait_for(4);
        assert_eq!(seen.numbers(), [1, 2, 3, 4]);
        queue.shutdown(None);
    });
}

/// A take that stops at its budget (rule 5): what it leaves behind is found again.
#[test]
fn loom_put_while_a_take_stops_at_its_budget() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        // Segments of three, as many as a take takes; the second put is plain.
        let small = Config { max_batch_items: 3, buffer_size: 12, ..config(1) };
        let queue = BatchQueue::builder("q", small).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        for number in 1..=4 {
            queue.produce(Number(ONE, number)).unwrap();
        }
        seen.wait_for(4);
        assert_eq!(seen.numbers(), [1, 2, 3, 4]);
        queue.shutdown(None);
    });
}

/// A close finds more than a take takes (rule 14): a partition is finished when it is empty.
#[test]
fn loom_close_while_a_take_stops_at_its_budget() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let small = Config { max_batch_items: 1, buffer_size: 2, ..config(1) };
        let queue = BatchQueue::builder("q", small).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        queue.produce(Number(ONE, 2)).unwrap();
        assert_eq!(queue.shutdown(None), 0);
        assert_eq!(seen.numbers(), [1, 2]);
    });
}

/// Bounded, with a producer that waits (rule 2): space wakes it.
#[test]
fn loom_space_while_a_producer_goes_to_wait() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue =
            BatchQueue::builder("q", Config { buffer_size: 1, ..config(1) }).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        queue.produce(Number(ONE, 2)).unwrap();
        queue.shutdown(None);
        assert_eq!(seen.numbers(), [1, 2]);
    });
}

/// Shutdown against a producer (rules 13 and 14): accepted is handled, the rest is refused.
#[test]
fn loom_close_while_a_producer_puts() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
        queue.add_handler(ONE, seen.handler()).unwrap();
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || queue.produce(Number(ONE, 1)).is_ok())
        };
        queue.shutdown(None);
        // Before the join: what was accepted is handled when the shutdown returns, whoever is still
        // running.
        let handled = seen.numbers().len();
        let accepted = producer.join().unwrap();
        assert_eq!(handled, usize::from(accepted));
    });
}

/// The same where the open segment holds an item already, so that the put has nothing to look at.
#[test]
fn loom_close_while_a_producer_adds_to_a_segment() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || queue.produce(Number(ONE, 2)).is_ok())
        };
        queue.shutdown(None);
        let handled = seen.numbers().len();
        let accepted = producer.join().unwrap();
        assert_eq!(handled, 1 + usize::from(accepted));
    });
}

/// A handler puts an item into its own queue while that closes, into the partition of another
/// thread that is about to end: accepted, it is handled; refused, the handler knows.
#[test]
fn loom_close_while_a_handler_produces() {
    model(1, || {
        let (seen, own) =
            (Arc::new(Seen::default()), Arc::new(Mutex::new(None::<Arc<BatchQueue<Number>>>)));
        let accepted = Arc::new(Mutex::new(0));
        let handler = {
            let (seen, own, accepted) = (seen.clone(), own.clone(), accepted.clone());
            HandlerRef::new(move |batch: &mut Batch<Number>| {
                let first = batch.iter().any(|number| number.1 == 1);
                seen.note(batch);
                let queue = own.lock().clone();
                if first && let Some(queue) = queue {
                    *accepted.lock() += usize::from(queue.produce(Number(TWO, 2)).is_ok());
                }
            })
        };
        let queue = Arc::new(BatchQueue::builder("q", config(2)).start().unwrap());
        *own.lock() = Some(queue.clone());
        queue.add_handler(ONE, handler).unwrap();
        let other = seen.clone();
        queue
            .add_handler(TWO, HandlerRef::new(move |batch: &mut Batch<Number>| other.note(batch)))
            .unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        assert_eq!(queue.shutdown(None), 0);
        assert_eq!(seen.numbers().len(), 1 + *accepted.lock());
        own.lock().take();
    });
}

/// Shutdown against growth (rule 11): a type that comes too late is refused, and so are its items.
#[test]
fn loom_close_while_a_type_is_added() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let adaptive =
            Config { partitions: PartitionPolicy::Adaptive { multiplier: 25 }, ..config(1) };
        let queue = Arc::new(BatchQueue::builder("q", adaptive).start().unwrap());
        queue.add_handler(ONE, seen.handler()).unwrap();
        let producer = {
            let (queue, seen) = (queue.clone(), seen.clone());
            thread::spawn(move || {
                let _ = queue.add_handler(TWO, seen.handler());
                queue.produce(Number(TWO, 2)).is_ok()
            })
        };
        queue.shutdown(None);
        let stats = queue.stats();
        let accepted = producer.join().unwrap();
        assert_eq!(stats.consumed + stats.unhandled, u64::from(accepted));
    });
}

/// Shutdown against a producer that waits in a full partition: it is told, and nobody hangs.
#[test]
fn loom_close_while_a_producer_waits() {
    model(2, || {
        let queue = Arc::new(
            BatchQueue::builder("q", Config { buffer_size: 1, ..config(1) }).start().unwrap(),
        );
        let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
        let handler = {
            let (entered, release) = (entered.clone(), release.clone());
            HandlerRef::new(move |batch: &mut Batch<Number>| {
                drop(batch.drain());
                entered.open();
                release.wait();
            })
        };
        queue.add_handler(ONE, handler).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        entered.wait();
        queue.produce(Number(ONE, 2)).unwrap();
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || queue.produce(Number(ONE, 3)).is_ok())
        };
        // The handler is inside and the partition full: only the close can end the producer's wait.
        queue.close();
        assert!(!producer.join().unwrap());
        release.open();
        queue.shutdown(None);
    });
}

/// One instance, two types, two partitions, two drain threads.
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

/// The entry token keeps the second one out.
#[test]
fn loom_two_owners_meet_at_one_handler() {
    model(1, || {
        let seen = Arc::new(Seen::default());
        two_owners_meet(
            &BatchQueue::builder("q", config(2)).start().unwrap(),
            &seen.handler(),
            &seen,
        );
    });
}

/// Growth while the owner of the new partition goes to sleep (rules 6, 10 and 11).
#[test]
fn loom_growth_while_the_owner_goes_to_sleep() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let adaptive =
            Config { partitions: PartitionPolicy::Adaptive { multiplier: 25 }, ..config(1) };
        let queue = BatchQueue::builder("q", adaptive).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.add_handler(TWO, seen.handler()).unwrap();
        assert_eq!(queue.partition_count(), 2);
        queue.produce(Number(TWO, 2)).unwrap();
        seen.wait_for(1);
        queue.shutdown(None);
    });
}

/// A flush against the cycle that handles the last item (rule 7).
#[test]
fn loom_flush_while_the_cycle_ends() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue = BatchQueue::builder("q", config(1)).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        assert_eq!(queue.flush(None, &mut Wait), Ok(true));
        assert_eq!(seen.numbers(), [1]);
        queue.shutdown(None);
    });
}
