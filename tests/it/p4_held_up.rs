//! P4: a handler that backs off, or that another thread is in, holds up only its own items.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, BufferStrategy, Config, Failure, HandledType, Handler, HandlerRef,
    PartitionPolicy, ProduceError, RetryPolicy, Selector, ThreadPolicy, Wait,
};

use crate::support::{
    Collector, LONG, Latch, PATIENCE, Sent, Sink, assert_conserved, config, key, owners, retrying,
    sent, shut_down, start, steered, try_once_more, wait_until,
};

/// In each mode, with one drain thread: a healthy type beside one that backs off.
#[test]
fn a_type_that_backs_off_holds_up_no_other_in_any_mode() {
    for selector in [Selector::ByType, Selector::RoundRobin, Selector::Given] {
        for partitions in [1, 3] {
            let partitions = PartitionPolicy::fixed(partitions).unwrap();
            let queue = start(Config { selector, partitions, ..retrying(1, LONG) });
            let (sink, healthy) = (Sink::default(), Collector::default());
            queue.add_handler(key(0), sink.handler()).unwrap();
            queue.add_handler(key(1), healthy.handler()).unwrap();
            let put = |item: Sent| {
                let partition = (selector == Selector::Given).then_some(0);
                queue.produce_with(item, partition, None, &mut Wait).unwrap();
            };
            put(sent(0, 0, 0));
            sink.wait_for_a_try();
            for number in 0..1_000 {
                put(sent(0, 0, number + 1));
                put(sent(1, 0, number));
            }
            wait_until("the healthy type", || queue.stats().consumed == 1_000);
            assert_eq!(healthy.items().len(), 1_000);
            let stats = queue.stats();
            assert_eq!((stats.consumed, stats.queued + stats.held), (1_000, 1_001));
            assert!(stats.stuck_handlers.is_empty(), "a batch that waits is inside no handler");
            sink.is_up.store(true, SeqCst);
            try_once_more(&queue);
            let mut numbers = sink.numbers();
            if selector == Selector::RoundRobin {
                numbers.sort_unstable();
            }
            assert_eq!(numbers, (0..=1_000).collect::<Vec<_>>(), "{selector:?}");
            assert_conserved(&queue.stats());
        }
    }
}

#[test]
fn a_flush_waits_for_a_batch_that_backs_off() {
    let queue = start(retrying(1, Duration::from_millis(20)));
    let sink = Sink::default();
    queue.add_handler(key(0), sink.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    sink.wait_for_a_try();
    assert_eq!(queue.flush(Some(Instant::now() + Duration::from_millis(1)), &mut Wait), Ok(false));
    sink.is_up.store(true, SeqCst);
    assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
    assert_eq!(sink.numbers(), [0]);
    shut_down(&queue);
}

#[test]
fn a_batch_that_backs_off_is_tried_again_by_the_new_owner_of_its_partition() {
    let (config, steered) = steered(retrying(2, Duration::from_millis(300)));
    let (queue, sink) = (start(config), Sink::default());
    for kind in 0..2 {
        queue.add_handler(key(kind), sink.handler()).unwrap();
    }
    queue.produce(sent(0, 0, 0)).unwrap();
    sink.wait_for_a_try();
    sink.is_up.store(true, SeqCst);
    assert_eq!(steered.rebalance(&queue, &[1, 1]), 1);
    assert_eq!(owners(&queue), [1, 1]);
    wait_until("the next try", || sink.numbers() == [0]);
    shut_down(&queue);
}

#[test]
fn items_that_wait_for_their_handler_count_against_the_bound() {
    let size = 16;
    let queue = start(Config {
        buffer_size: size,
        max_batch_items: 4,
        selector: Selector::Given,
        partitions: PartitionPolicy::fixed(1).unwrap(),
        strategy: BufferStrategy::IfPossible,
        ..retrying(1, LONG)
    });
    let sink = Sink::default();
    queue.add_handler(key(0), sink.handler()).unwrap();
    let mut accepted = 0;
    let put = |number| queue.produce_with(sent(0, 0, number), Some(0), None, &mut Wait);
    put(0).unwrap();
    sink.wait_for_a_try();
    // The drain thread takes what it can hold.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(100) {
        match put(accepted + 1) {
            Ok(()) => accepted += 1,
            Err(ProduceError::Full(_)) => std::thread::yield_now(),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!((size - 1..=size + 4).contains(&accepted), "{accepted} accepted");
    assert!(queue.stats().total_used() <= (size + 5) as u64, "{:?}", queue.stats());
    sink.is_up.store(true, SeqCst);
    try_once_more(&queue);
    assert_eq!(sink.numbers(), (0..=accepted).collect::<Vec<_>>());
}

/// A producer that waits for room that only the end of a back-off makes.
#[test]
fn the_end_of_a_back_off_makes_room_for_waiting_producers() {
    let queue = start(Config {
        buffer_size: 4,
        selector: Selector::RoundRobin,
        partitions: PartitionPolicy::fixed(1).unwrap(),
        ..retrying(1, Duration::from_millis(50))
    });
    let sink = Sink::default();
    queue.add_handler(key(0), sink.handler()).unwrap();
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            for number in 0..100 {
                queue.produce(sent(0, 0, number)).unwrap();
            }
        });
        sink.wait_for_a_try();
        sink.is_up.store(true, SeqCst);
        producer.join().unwrap();
    });
    shut_down(&queue);
    assert_eq!(sink.numbers(), (0..100).collect::<Vec<_>>());
}

/// The tasks of many queues on a small pool back off: they occupy no worker.
#[test]
fn queues_that_back_off_keep_no_worker_of_a_pool() {
    let pooled = || {
        BatchQueue::builder("pooled", retrying(1, LONG))
            .shared_scheduler("held up", ThreadPolicy::fixed(1).unwrap())
            .start()
            .unwrap()
    };
    let threads = Arc::new(Mutex::new(std::collections::HashSet::new()));
    let (sink, seen) = (Sink::default(), threads.clone());
    let down: Vec<BatchQueue<Sent>> = (0..50).map(|_| pooled()).collect();
    for queue in &down {
        let (sink, seen) = (sink.clone(), seen.clone());
        let handler = move |batch: &mut Batch<Sent>| sink.consume(batch);
        queue.add_handler(key(0), HandlerRef::new(Noted(handler, seen))).unwrap();
        queue.produce(sent(0, 0, 0)).unwrap();
    }
    wait_until("a try of each", || sink.tries.load(SeqCst) >= 50);
    let (healthy, collector) = (pooled(), Collector::default());
    healthy.add_handler(key(0), collector.handler()).unwrap();
    healthy.produce(sent(0, 0, 7)).unwrap();
    wait_until("the healthy queue", || collector.items().len() == 1);
    assert_eq!(threads.lock().unwrap().len(), 1, "one worker served them all");
    sink.is_up.store(true, SeqCst);
    down.iter().for_each(try_once_more);
    shut_down(&healthy);
}

/// Records the threads that call it.
struct Noted<F>(F, Arc<Mutex<std::collections::HashSet<std::thread::ThreadId>>>);

impl<F: Fn(&mut Batch<Sent>) -> Result<(), Failure> + Send + Sync> Handler<Sent> for Noted<F> {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        self.1.lock().unwrap().insert(std::thread::current().id());
        (self.0)(batch)
    }
}

/// A handler fails on a thread that no longer owns the partition.
#[test]
fn a_batch_that_fails_after_its_partition_moved_is_tried_again() {
    let (config, steered) = steered(retrying(2, Duration::from_millis(1)));
    let (queue, inside, release) =
        (start(config), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (calls, gate) = (inside.clone(), release.clone());
    let named = HandledType { name: "Moved".into(), ..key(0).into() };
    let handler = Noted(
        move |batch: &mut Batch<Sent>| {
            if calls.fetch_add(1, SeqCst) == 0 {
                wait_until("the move", || gate.load(SeqCst));
                return Err(Failure::new("not yet"));
            }
            drop(batch.drain());
            Ok(())
        },
        Arc::default(),
    );
    queue.add_handler(named, HandlerRef::new(handler)).unwrap();
    queue.add_handler(key(1), Collector::default().handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    wait_until("the first call", || inside.load(SeqCst) == 1);
    assert_eq!(steered.rebalance(&queue, &[1, 1]), 1);
    release.store(true, SeqCst);
    wait_until("the second call", || queue.stats().consumed == 1);
    shut_down(&queue);
}

/// Types that keep failing, without a wait between tries, in the partition of a healthy one.
#[test]
fn types_that_fail_without_end_leave_the_thread_to_others() {
    for backoff in [Duration::ZERO, Duration::from_micros(50)] {
        let queue = start(Config {
            selector: Selector::RoundRobin,
            partitions: PartitionPolicy::fixed(1).unwrap(),
            retry: Some(RetryPolicy {
                attempts: None,
                backoff,
                factor: 1.0,
                max_backoff: LONG,
                ..RetryPolicy::default()
            }),
            ..config(1)
        });
        let (sink, healthy) = (Sink::default(), Collector::default());
        for kind in 0..3 {
            queue.add_handler(key(kind), sink.handler()).unwrap();
            queue.produce(sent(kind, 0, 0)).unwrap();
        }
        queue.add_handler(key(3), healthy.handler()).unwrap();
        sink.wait_for_a_try();
        for number in 0..100 {
            queue.produce(sent(3, 0, number)).unwrap();
        }
        wait_until("the healthy type", || healthy.items().len() == 100);
        assert!(queue.remove_handler(key(0)), "the thread reaches its quiescent point");
        sink.is_up.store(true, SeqCst);
        shut_down(&queue);
        assert_eq!((queue.stats().consumed, queue.stats().failed), (102, 1));
    }
}

/// A batch fails after the time of a shutdown is over, on a thread that no longer owns the
/// partition.
#[test]
fn a_batch_that_fails_after_the_end_of_time_is_dropped() {
    #[derive(Debug, Clone)]
    struct Counted(#[allow(dead_code)] Arc<()>, Sent);
    impl batchqueue::Item for Counted {
        fn type_key(&self) -> batchqueue::TypeKey {
            key(self.1.kind)
        }
    }
    struct Late(Arc<Latch>, Arc<Latch>);
    impl Handler<Counted> for Late {
        fn consume(&self, _batch: &mut Batch<Counted>) -> Result<(), Failure> {
            self.0.open();
            self.1.wait();
            Err(Failure::new("too late"))
        }
    }
    let (config, steered) = steered(retrying(2, LONG));
    let queue: BatchQueue<Counted> = BatchQueue::builder("late", config).start().unwrap();
    let (entered, release) = (Arc::default(), Arc::default());
    let late = HandlerRef::new(Late(Arc::clone(&entered), Arc::clone(&release)));
    queue.add_handler(key(0), late).unwrap();
    queue
        .add_handler(key(1), HandlerRef::new(|batch: &mut Batch<Counted>| drop(batch.drain())))
        .unwrap();
    let (in_flight, queued) = (Arc::new(()), Arc::new(()));
    queue.produce(Counted(in_flight.clone(), sent(0, 0, 0))).unwrap();
    entered.wait();
    queue.produce(Counted(queued.clone(), sent(0, 0, 1))).unwrap();
    steered.set(&[1, 1]);
    assert_eq!(queue.rebalance(), 1);
    assert_eq!(queue.shutdown(Some(Instant::now())), 2);
    wait_until("the new owner to drop what is left", || Arc::strong_count(&queued) == 1);
    assert_eq!(Arc::strong_count(&in_flight), 2);
    release.open();
    wait_until("the batch to be dropped", || Arc::strong_count(&in_flight) == 1);
    assert_eq!(queue.stats().abandoned, 2);
}
