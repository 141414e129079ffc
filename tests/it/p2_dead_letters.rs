//! P2: items that fail for good go to the handler of dead letters, once, and hold up nothing else.

mod room;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, Cause, Config, DeadLetters, Failure, Handler, HandlerRef, Handlers,
    PartitionPolicy, RetryPolicy, Selector, ThreadPolicy, Wait,
};

use crate::support::{
    Collector, LONG, Latch, Lines, PATIENCE, Sent, assert_conserved, config, key, sent, shut_down,
    wait_until,
};

/// Fails the items that a test chooses.
struct Picky(fn(&Sent) -> bool);

impl Handler<Sent> for Picky {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        if batch.iter().any(self.0) {
            let cause = Some(Cause::new("cause"));
            return Err(Failure { cause, ..Failure::new("picky") });
        }
        drop(batch.drain());
        Ok(())
    }
}

/// Records the numbers of its letters, with their attempts.
#[derive(Default)]
struct Keeper {
    kept: Mutex<Vec<(usize, usize, u32)>>,
    calls: AtomicUsize,
    inside: AtomicBool,
    entered: Latch,
    release: Option<Latch>,
    fails: bool,
    closed: AtomicUsize,
}

impl Keeper {
    fn numbers(&self) -> Vec<usize> {
        self.kept.lock().unwrap().iter().map(|(_, number, _)| *number).collect()
    }

    fn handler(self: &Arc<Self>) -> HandlerRef<Sent> {
        HandlerRef::new(Kept(self.clone()))
    }
}

struct Kept(Arc<Keeper>);

impl Handler<Sent> for Kept {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        drop(batch.drain());
        Ok(())
    }

    fn consume_dead_letters(&self, letters: &mut Vec<DeadLetters<Sent>>) -> Result<(), Failure> {
        let keeper = &self.0;
        assert!(!keeper.inside.swap(true, SeqCst), "two calls at the same time");
        assert_eq!(keeper.closed.load(SeqCst), 0);
        keeper.calls.fetch_add(1, SeqCst);
        keeper.entered.open();
        if let Some(release) = &keeper.release {
            release.wait();
        }
        let mut kept = keeper.kept.lock().unwrap();
        for mut letter in letters.drain(..) {
            let attempts = letter.attempts;
            let expected = ["picky", "its handler was removed before the next attempt"];
            assert!(expected.contains(&&*letter.failure.message), "{letter:?}");
            kept.extend(letter.items.drain().map(|item| (item.kind, item.number, attempts)));
        }
        keeper.inside.store(false, SeqCst);
        if keeper.fails { Err(Failure::new("full disk")) } else { Ok(()) }
    }

    fn on_close(&self) -> Result<(), Failure> {
        self.0.closed.fetch_add(1, SeqCst);
        Ok(())
    }

    fn name(&self) -> String {
        "Keeper".to_owned()
    }
}

fn start(config: Config, keeper: &Arc<Keeper>) -> BatchQueue<Sent> {
    BatchQueue::builder("test", config).dead_letter(keeper.handler()).start().unwrap()
}

fn retry(attempts: u32, bisect: bool) -> RetryPolicy {
    RetryPolicy {
        attempts: Some(attempts),
        backoff: Duration::ZERO,
        bisect,
        ..RetryPolicy::default()
    }
}

fn odd(item: &Sent) -> bool {
    item.number % 2 == 1
}

#[test]
fn what_fails_for_good_is_kept_with_its_attempts_and_its_cause() {
    for selector in [Selector::ByType, Selector::RoundRobin] {
        let keeper = Arc::new(Keeper::default());
        let queue = start(Config { selector, retry: Some(retry(3, false)), ..config(1) }, &keeper);
        queue.add_handler(key(0), HandlerRef::new(Picky(|_| true))).unwrap();
        queue.produce(sent(0, 0, 7)).unwrap();
        assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
        assert_eq!(*keeper.kept.lock().unwrap(), [(0, 7, 3)], "{selector:?}");
        shut_down(&queue);
        let stats = queue.stats();
        assert_eq!((stats.dead_lettered, stats.failed), (1, 0));
        assert_conserved(&stats);
        assert_eq!(keeper.closed.load(SeqCst), 1);
    }
}

#[test]
fn bad_items_are_kept_one_by_one_and_good_ones_consumed() {
    let keeper = Arc::new(Keeper::default());
    let queue = start(Config { retry: Some(retry(1, true)), ..config(2) }, &keeper);
    queue.add_handler(key(0), HandlerRef::new(Picky(odd))).unwrap();
    (0..100).for_each(|number| queue.produce(sent(0, 0, number)).unwrap());
    shut_down(&queue);
    assert_eq!(keeper.numbers(), (0..100).filter(|number| number % 2 == 1).collect::<Vec<_>>());
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.dead_lettered, stats.failed), (50, 50, 0));
    assert_conserved(&stats);
}

#[test]
fn a_type_has_its_own_keeper() {
    let (of_queue, of_type) = (Arc::new(Keeper::default()), Arc::new(Keeper::default()));
    let queue = start(config(1), &of_queue);
    queue.add_handler(key(0), HandlerRef::new(Picky(|_| true))).unwrap();
    let own = Handlers {
        instances: vec![HandlerRef::new(Picky(|_| true))],
        dead_letter: Some(of_type.handler()),
    };
    queue.add_handler_with(key(1), own, &mut Wait).unwrap();
    for kind in 0..2 {
        queue.produce(sent(kind, 0, kind)).unwrap();
    }
    assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
    assert_eq!((of_queue.numbers(), of_type.numbers()), (vec![0], vec![1]));
    assert!(queue.remove_handler(key(1)));
    assert_eq!(of_type.closed.load(SeqCst), 1, "with the last type that it keeps letters for");
    shut_down(&queue);
    assert_eq!((of_queue.closed.load(SeqCst), of_type.closed.load(SeqCst)), (1, 1));
}

#[test]
fn a_consumer_has_the_keeper_of_its_queue() {
    let keeper = Arc::new(Keeper::default());
    let queue = BatchQueue::builder("test", config(1))
        .consumer(HandlerRef::new(Picky(|_| true)))
        .dead_letter(keeper.handler())
        .start()
        .unwrap();
    queue.produce(sent(3, 0, 1)).unwrap();
    shut_down(&queue);
    assert_eq!(*keeper.kept.lock().unwrap(), [(3, 1, 1)]);
}

#[test]
fn a_keeper_that_fails_has_one_attempt_and_its_items_count_as_failed() {
    let keeper = Arc::new(Keeper { fails: true, ..Keeper::default() });
    let lines = Lines::default();
    let queue = BatchQueue::builder("test", Config { retry: Some(retry(5, false)), ..config(1) })
        .dead_letter(keeper.handler())
        .host(lines.clone())
        .start()
        .unwrap();
    queue.add_handler(key(0), HandlerRef::new(Picky(|_| true))).unwrap();
    for number in 0..3 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    shut_down(&queue);
    let stats = queue.stats();
    assert_eq!((stats.dead_lettered, stats.failed), (0, 3));
    assert_eq!(keeper.numbers().len(), 3, "each once");
    assert_conserved(&stats);
    assert_eq!(lines.count("in the handler of dead letters"), 3);
}

#[test]
fn the_queue_keeps_what_lost_its_handler_between_two_attempts() {
    struct Signals(Arc<Latch>);
    impl Handler<Sent> for Signals {
        fn consume(&self, _batch: &mut Batch<Sent>) -> Result<(), Failure> {
            self.0.open();
            Err(Failure::new("down"))
        }
    }

    let keeper = Arc::new(Keeper::default());
    let long = RetryPolicy { backoff: LONG, max_backoff: LONG, ..RetryPolicy::default() };
    let queue = start(Config { retry: Some(long), ..config(1) }, &keeper);
    let tried = Arc::new(Latch::default());
    queue.add_handler(key(0), HandlerRef::new(Signals(tried.clone()))).unwrap();
    queue.produce(sent(0, 0, 5)).unwrap();
    tried.wait();
    assert!(queue.remove_handler(key(0)));
    assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
    assert_eq!(*keeper.kept.lock().unwrap(), [(0, 5, 1)]);
    shut_down(&queue);
    assert_conserved(&queue.stats());
}

/// The same instance is a handler of the queue and its keeper: only one thread is inside.
#[test]
fn an_instance_that_is_also_a_handler_is_entered_by_one_thread_at_a_time() {
    struct Both(AtomicBool, Mutex<Vec<usize>>);
    impl Both {
        fn enter(&self, numbers: impl Iterator<Item = usize>) {
            assert!(!self.0.swap(true, SeqCst), "two calls at the same time");
            self.1.lock().unwrap().extend(numbers);
            std::thread::yield_now();
            self.0.store(false, SeqCst);
        }
    }
    impl Handler<Sent> for Both {
        fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
            let numbers: Vec<_> = batch.drain().map(|item| item.number).collect();
            self.enter(numbers.into_iter());
            Ok(())
        }

        fn consume_dead_letters(
            &self,
            letters: &mut Vec<DeadLetters<Sent>>,
        ) -> Result<(), Failure> {
            for mut letter in letters.drain(..) {
                let numbers: Vec<_> = letter.items.drain().map(|item| item.number).collect();
                self.enter(numbers.into_iter());
            }
            Ok(())
        }
    }
    let both = HandlerRef::new(Both(AtomicBool::new(false), Mutex::default()));
    let queue = BatchQueue::builder("test", Config { max_batch_items: 3, ..config(4) })
        .dead_letter(both.clone())
        .start()
        .unwrap();
    queue.add_handler(key(0), both).unwrap();
    for kind in 1..4 {
        queue.add_handler(key(kind), HandlerRef::new(Picky(odd))).unwrap();
    }
    for number in 0..4_000 {
        queue.produce(sent(number % 4, 0, number)).unwrap();
    }
    shut_down(&queue);
    let stats = queue.stats();
    assert_eq!(stats.failed, 0, "{stats:?}");
    assert!(stats.dead_lettered > 0);
    assert_conserved(&stats);
}

/// Another queue is inside the handler when the letter arrives: the release wakes the letter's
/// queue.
#[test]
fn letters_for_a_handler_that_is_inside_for_another_queue_are_kept_afterwards() {
    struct Holding(Arc<Latch>, Arc<Latch>);
    impl Handler<Sent> for Holding {
        fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
            drop(batch.drain());
            self.0.open();
            self.1.wait();
            Ok(())
        }

        fn consume_dead_letters(&self, _: &mut Vec<DeadLetters<Sent>>) -> Result<(), Failure> {
            Ok(())
        }
    }

    let (inside, leave) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let (entered, release) = (inside.clone(), leave.clone());
    let both = HandlerRef::new(Holding(entered, release));
    let other = BatchQueue::builder("other", config(1)).start().unwrap();
    other.add_handler(key(0), both.clone()).unwrap();
    other.produce(sent(0, 0, 0)).unwrap();
    inside.wait();
    let queue = BatchQueue::builder("test", config(1)).dead_letter(both).start().unwrap();
    queue.add_handler(key(0), HandlerRef::new(Picky(|_| true))).unwrap();
    queue.produce(sent(0, 0, 1)).unwrap();
    wait_until("the letter", || queue.stats().held == 1);
    let cycles = || queue.stats().drain_threads[0].cycles;
    wait_until("the thread to sleep", || {
        let before = cycles();
        (0..10_000).all(|_| {
            std::thread::yield_now();
            cycles() == before
        })
    });
    leave.open();
    // Not a flush: that would wake the drain thread as well.
    wait_until("the letter is kept", || queue.stats().dead_lettered == 1);
    shut_down(&queue);
    shut_down(&other);
}
