//! P1: calls of one handler instance never overlap.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use batchqueue::{Batch, BatchQueue, Failure, Handler, HandlerLock, HandlerRef, Selector};

use crate::support::{Sent, assert_conserved, config, key, sent, shut_down, start};

/// Counts the calls that overlap another one.
#[derive(Default)]
struct Guarded {
    inside: AtomicUsize,
    overlaps: AtomicUsize,
    calls: AtomicUsize,
}

impl Guarded {
    fn call(&self) {
        if self.inside.fetch_add(1, SeqCst) > 0 {
            self.overlaps.fetch_add(1, SeqCst);
        }
        self.calls.fetch_add(1, SeqCst);
        // Give another thread the chance to enter.
        std::thread::yield_now();
        self.inside.fetch_sub(1, SeqCst);
    }
}

#[derive(Clone)]
struct Guard(Arc<Guarded>);

impl Handler<Sent> for Guard {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        drop(batch.drain());
        self.0.call();
        Ok(())
    }

    fn has_on_idle(&self) -> bool {
        true
    }

    fn on_idle(&self) -> Result<(), Failure> {
        self.0.call();
        Ok(())
    }

    fn on_close(&self) -> Result<(), Failure> {
        self.0.call();
        Ok(())
    }
}

fn drive(queue: &BatchQueue<Sent>, kinds: usize) {
    std::thread::scope(|scope| {
        for producer in 0..4 {
            scope.spawn(move || {
                for number in 0..5_000 {
                    queue.produce(sent(number % kinds, producer, number)).unwrap();
                    if number % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}

#[test]
fn an_instance_for_many_types_is_entered_by_one_thread_at_a_time() {
    let guarded = Arc::new(Guarded::default());
    let queue =
        start(batchqueue::Config { min_idle: Duration::ZERO, max_batch_items: 16, ..config(4) });
    let handler = HandlerRef::new(Guard(guarded.clone()));
    for kind in 0..8 {
        queue.add_handler(key(kind), handler.clone()).unwrap();
    }
    drive(&queue, 8);
    shut_down(&queue);
    assert_eq!(guarded.overlaps.load(SeqCst), 0);
    assert!(guarded.calls.load(SeqCst) > 100, "too few calls to be meaningful");
    assert_conserved(&queue.stats());
}

#[test]
fn an_instance_on_two_queues_is_entered_by_one_thread_at_a_time() {
    let guarded = Arc::new(Guarded::default());
    let lock = Arc::new(HandlerLock::default());
    let queues: Vec<_> = (0..2)
        .map(|_| {
            let queue = start(batchqueue::Config {
                min_idle: Duration::ZERO,
                max_batch_items: 16,
                ..config(2)
            });
            let handler = HandlerRef::with_lock(Arc::new(Guard(guarded.clone())), lock.clone());
            queue.add_handler(key(0), handler).unwrap();
            queue
        })
        .collect();
    std::thread::scope(|scope| {
        for queue in &queues {
            scope.spawn(|| drive(queue, 1));
        }
    });
    queues.iter().for_each(shut_down);
    assert_eq!(guarded.overlaps.load(SeqCst), 0);
}

#[test]
fn a_consumer_of_a_round_robin_queue_is_entered_by_one_thread_at_a_time() {
    let guarded = Arc::new(Guarded::default());
    let config =
        batchqueue::Config { selector: Selector::RoundRobin, max_batch_items: 16, ..config(4) };
    let queue = BatchQueue::builder("test", config)
        .consumer(HandlerRef::new(Guard(guarded.clone())))
        .start()
        .unwrap();
    drive(&queue, 3);
    shut_down(&queue);
    assert_eq!(guarded.overlaps.load(SeqCst), 0);
    assert_conserved(&queue.stats());
}

#[test]
fn consumers_per_thread_run_concurrently() {
    use crate::support::Latch;
    let (first, second) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let latches = [first.clone(), second.clone()];
    let config = batchqueue::Config { selector: Selector::RoundRobin, ..config(2) };
    let queue = BatchQueue::builder("test", config)
        .consumer_per_thread(move |thread| {
            let (mine, other) = (latches[thread].clone(), latches[1 - thread].clone());
            HandlerRef::new(move |batch: &mut Batch<Sent>| {
                drop(batch.drain());
                mine.open();
                other.wait();
            })
        })
        .start()
        .unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    queue.produce(sent(0, 0, 1)).unwrap();
    shut_down(&queue);
}
