//! P1, P2, P3 while types come and go and producers put their items: no handler gets an item of
//! another type, nothing is lost or counted twice, and order per type and producer holds over all
//! lives of a type.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, Config, Failure, Handler, HandlerRef, PartitionPolicy, RetryPolicy, Wait,
};

use crate::support::{Sent, assert_conserved, config, key, sent, start};

const TYPES: usize = 6;
const PRODUCERS: usize = 2;

/// The items that the handlers of one type have seen, over all its lives.
#[derive(Debug, Default)]
struct History {
    /// The last number of each producer.
    last: Mutex<[Option<usize>; PRODUCERS]>,
    seen: AtomicUsize,
}

/// The handler of one life of a type.
struct Life {
    kind: usize,
    history: Arc<History>,
    is_inside: AtomicBool,
    /// The calls so far: the first try of every other batch fails.
    calls: AtomicUsize,
    closed: AtomicUsize,
}

impl Handler<Sent> for Life {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        assert!(!self.is_inside.swap(true, SeqCst), "two threads are inside");
        assert_eq!(self.closed.load(SeqCst), 0, "a batch after the last call");
        if self.calls.fetch_add(1, SeqCst) % 4 == 1 {
            self.is_inside.store(false, SeqCst);
            return Err(Failure::new("the first try"));
        }
        let mut last = self.history.last.lock().unwrap();
        for item in batch.drain() {
            assert_eq!(item.kind, self.kind, "an item of another type");
            let before = last[item.producer].replace(item.number);
            assert!(before.is_none_or(|before| before < item.number), "{before:?} before {item:?}");
            self.history.seen.fetch_add(1, SeqCst);
        }
        drop(last);
        self.is_inside.store(false, SeqCst);
        Ok(())
    }

    fn on_close(&self) -> Result<(), Failure> {
        assert_eq!(self.closed.fetch_add(1, SeqCst), 0, "two last calls");
        Ok(())
    }
}

fn produce(queue: &BatchQueue<Sent>, producer: usize, stop: &AtomicBool) -> usize {
    let mut random = fastrand::Rng::with_seed(producer as u64);
    let mut number = 0;
    while !stop.load(SeqCst) {
        let kind = random.usize(..TYPES);
        if random.bool() {
            queue.produce(sent(kind, producer, number)).unwrap();
            number += 1;
        } else {
            let count = random.usize(1..40);
            let item = |at| sent((kind + at / 5) % TYPES, producer, number + at);
            let items: Vec<Sent> = (0..count).map(item).collect();
            queue.produce_many(&mut items.into_iter(), None, &mut Wait).unwrap();
            number += count;
        }
        if random.usize(..50) == 0 {
            std::thread::sleep(Duration::from_micros(random.u64(..2_000)));
        }
    }
    number
}

fn run(config: Config, seed: u64) {
    let queue = start(config);
    let histories: Vec<_> = (0..TYPES).map(|_| Arc::new(History::default())).collect();
    let stop = AtomicBool::new(false);
    let accepted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let (queue, stop) = (&queue, &stop);
                scope.spawn(move || produce(queue, producer, stop))
            })
            .collect();
        let mut random = fastrand::Rng::with_seed(seed);
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(700) {
            let kind = random.usize(..TYPES);
            if random.bool() {
                let life = Life {
                    kind,
                    history: histories[kind].clone(),
                    is_inside: AtomicBool::new(false),
                    calls: AtomicUsize::new(0),
                    closed: AtomicUsize::new(0),
                };
                queue.add_handler(key(kind), HandlerRef::new(life)).unwrap();
            } else {
                queue.remove_handler(key(kind));
            }
            std::thread::sleep(Duration::from_micros(random.u64(..500)));
        }
        stop.store(true, SeqCst);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(queue.shutdown(None), 0);
    let stats = queue.stats();
    assert_eq!(stats.produced, accepted as u64);
    let handled: usize = histories.iter().map(|history| history.seen.load(SeqCst)).sum();
    assert_eq!(stats.consumed, handled as u64);
    assert_conserved(&stats);
    assert!(stats.consumed > 0 && stats.unhandled > 0);
}

fn quick(threads: usize, partitions: PartitionPolicy) -> Config {
    let backoff = Duration::from_micros(100);
    let retry = RetryPolicy { attempts: Some(3), backoff, ..RetryPolicy::default() };
    Config {
        partitions,
        retry: Some(retry),
        buffer_size: 256,
        max_batch_items: 32,
        min_idle: Duration::ZERO,
        ..config(threads)
    }
}

#[test]
fn types_with_their_own_partitions_come_and_go() {
    run(quick(2, PartitionPolicy::adaptive(25).unwrap()), 1);
}

#[test]
fn types_that_share_partitions_come_and_go() {
    run(quick(2, PartitionPolicy::fixed(3).unwrap()), 2);
}

#[test]
fn types_that_share_one_partition_come_and_go() {
    run(quick(1, PartitionPolicy::fixed(1).unwrap()), 3);
}
