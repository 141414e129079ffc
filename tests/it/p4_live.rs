//! P4: waiting threads are woken; a handler that hangs is reported and does not block others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use batchqueue::{Batch, BatchQueue, Config, Failure, Handler, HandlerRef, ProduceError, Wait};

use crate::support::{
    Collector, Latch, PATIENCE, Sent, config, holding, key, sent, shut_down, start, wait_until,
};

#[test]
fn a_first_item_wakes_a_sleeping_thread() {
    let collector = Collector::default();
    let queue = start(config(1));
    queue.add_handler(key(0), collector.handler()).unwrap();
    for number in 0..20 {
        // Waits for another cycle, so that the next item finds a thread that sleeps for a minute.
        let asleep = queue.stats().drain_threads[0].cycles;
        queue.produce(sent(0, 0, number)).unwrap();
        wait_until("the item to be handled", || collector.items().len() == number + 1);
        wait_until("another cycle", || queue.stats().drain_threads[0].cycles > asleep);
    }
    shut_down(&queue);
}

/// A consumer that stays in its first `on_idle` until `release` opens.
struct HeldWhenIdle {
    collector: Collector,
    idle: Arc<Latch>,
    release: Arc<Latch>,
}

impl Handler<Sent> for HeldWhenIdle {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        self.collector.consume(batch)
    }

    fn has_on_idle(&self) -> bool {
        true
    }

    fn on_idle(&self) -> Result<(), Failure> {
        self.idle.open();
        self.release.wait();
        Ok(())
    }
}

#[test]
fn pressure_on_an_awake_thread_keeps_it_from_resting() {
    let (collector, idle, release) =
        (Collector::default(), Arc::new(Latch::default()), Arc::new(Latch::default()));
    let half = 8;
    // The rest is longer than any wait in this test.
    let config = Config {
        buffer_size: 2 * half,
        min_idle: PATIENCE * 2,
        max_idle: PATIENCE * 2,
        ..config(1)
    };
    let consumer =
        HeldWhenIdle { collector: collector.clone(), idle: idle.clone(), release: release.clone() };
    // Unlike a handler added later, it is called before the thread has ever rested. A rest that
    // pressure ended would leave the mark that this test is about.
    let queue =
        BatchQueue::builder("it", config).consumer(HandlerRef::new(consumer)).start().unwrap();
    idle.wait();
    let items = (0..half).map(|number| sent(0, 0, number)).collect::<Vec<_>>();
    queue.produce_many(&mut items.into_iter(), None, &mut Wait).unwrap();
    release.open();
    wait_until("the items to be handled", || collector.items().len() == half);
    shut_down(&queue);
}

#[test]
fn producers_waiting_on_a_full_partition_are_woken_by_space() {
    let collector = Collector::default();
    let queue = start(Config { buffer_size: 1, min_idle: Duration::from_secs(60), ..config(1) });
    queue.add_handler(key(0), collector.handler()).unwrap();
    std::thread::scope(|scope| {
        for producer in 0..4 {
            let queue = &queue;
            scope.spawn(move || {
                for number in 0..200 {
                    queue.produce(sent(0, producer, number)).unwrap();
                }
            });
        }
    });
    shut_down(&queue);
    assert_eq!(collector.items().len(), 800);
}

#[test]
fn a_close_wakes_waiting_producers() {
    let (handler, entered, release) = holding();
    let queue = start(Config { buffer_size: 1, ..config(1) });
    queue.add_handler(key(0), handler).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    queue.produce(sent(0, 0, 1)).unwrap();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (2..6)
            .map(|number| {
                scope.spawn({
                    let queue = &queue;
                    move || queue.produce(sent(0, 0, number))
                })
            })
            .collect();
        wait_until("four producers to try", || queue.stats().attempts == 6);
        queue.close();
        for (number, producer) in (2..6).zip(waiting) {
            assert_eq!(producer.join().unwrap(), Err(ProduceError::Closed(sent(0, 0, number))));
        }
        release.open();
    });
    shut_down(&queue);
    assert_eq!(queue.stats().refused, 4);
}

#[test]
fn a_hanging_handler_is_named_and_others_continue() {
    let ((hanging, _, release), collector) = (holding(), Collector::default());
    let queue = start(config(2));
    queue
        .add_handler(batchqueue::HandledType { name: "Hanging".into(), ..key(0).into() }, hanging)
        .unwrap();
    queue.add_handler(key(1), collector.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    wait_until("the handler to count as stuck", || queue.stats().stuck_handlers == ["Hanging"]);
    for number in 0..100 {
        queue.produce(sent(1, 0, number)).unwrap();
    }
    wait_until("the other type to be handled", || collector.items().len() == 100);
    release.open();
    shut_down(&queue);
    assert!(queue.stats().stuck_handlers.is_empty());
}

#[test]
fn flush_waits_for_items_accepted_before_it() {
    let collector = Collector::default();
    let queue = start(Config { min_idle: Duration::from_secs(60), ..config(3) });
    for kind in 0..6 {
        queue.add_handler(key(kind), collector.handler()).unwrap();
    }
    for round in 1..50 {
        for kind in 0..6 {
            queue.produce(sent(kind, 0, round)).unwrap();
        }
        assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
        assert_eq!(collector.items().len(), 6 * round);
    }
    shut_down(&queue);
}
