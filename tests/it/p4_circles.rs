//! P4: handlers that would deadlock on each other. One of them gives up and names the others.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use batchqueue::{Batch, BatchQueue, Config, HandlerRef, PartitionPolicy, ProduceError, Wait};

use crate::support::{
    Collector, Lines, Sent, assert_conserved, config, holding, key, sent, shut_down, wait_until,
};

type Queue = Arc<BatchQueue<Sent>>;

/// A queue that its handlers can refer to before it exists.
type Later = Arc<OnceLock<Weak<BatchQueue<Sent>>>>;

fn small(buffer_size: usize) -> Config {
    Config { buffer_size, max_batch_items: 1, ..config(1) }
}

fn named(name: &str, config: Config, lines: &Lines, later: &Later) -> Queue {
    let queue = Arc::new(BatchQueue::builder(name, config).host(lines.clone()).start().unwrap());
    later.set(Arc::downgrade(&queue)).unwrap();
    queue
}

fn get(later: &Later) -> Queue {
    later.get().unwrap().upgrade().unwrap()
}

/// The feeder's handler puts a hundred items into a queue whose handler shuts the feeder down.
#[test]
fn a_handler_that_shuts_its_feeder_down_returns() {
    // The feeder waits before the shutdown begins, or after.
    for is_full_before in [true, false] {
        let (lines, later) = (Lines::default(), Later::default());
        let (feeder_later, seen) = (Later::default(), Collector::default());
        let queue = named("fed", small(2), &lines, &later);
        let feeder = named("feeder", small(100), &lines, &feeder_later);

        let (collect, other, itself) = (seen.clone(), feeder_later.clone(), later.clone());
        let shut_feeder_down = move |batch: &mut Batch<Sent>| {
            let items: Vec<_> = batch.drain().collect();
            if items[0].number == 0 {
                if is_full_before {
                    wait_until("the feeder to wait", || get(&itself).stats().queued == 2);
                }
                assert_eq!(get(&other).shutdown(None), 0);
            }
            collect.0.lock().unwrap().extend(items);
        };
        queue.add_handler(key(0), HandlerRef::new(shut_feeder_down)).unwrap();
        let target = later.clone();
        let feed = move |batch: &mut Batch<Sent>| {
            if batch.drain().all(|item| item.number > 0) {
                // This item only served to check whether the feeder is closed.
                return;
            }
            for number in 0..100 {
                if !is_full_before && number == 1 {
                    wait_until("the shutdown", || {
                        get(&feeder_later).produce(sent(0, 0, 1)).is_err()
                    });
                }
                get(&target).produce(sent(0, 0, number)).unwrap();
            }
        };
        feeder.add_handler(key(0), HandlerRef::new(feed)).unwrap();
        feeder.produce(sent(0, 0, 0)).unwrap();
        wait_until("the end of the feeder", || feeder.has_ended());
        shut_down(&queue);
        let numbers: Vec<_> = seen.items().iter().map(|item| item.number).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
        assert_eq!((feeder.stats().failed, queue.stats().failed), (0, 0));
        let line = "queue feeder: a shutdown from a handler did not wait, because it would never \
                    have ended: the handler of type 16 in queue fed waits for the end of queue \
                    feeder; the handler of type 16 in queue feeder waits for room in partition 0 \
                    of queue fed";
        wait_until("the line", || lines.any(line));
    }
}

/// Each handler shuts the next queue down; all have been entered before.
#[test]
fn of_three_handlers_that_shut_each_other_down_one_does_not_wait() {
    let lines = Lines::default();
    let laters: [Later; 3] = Default::default();
    let queues: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .zip(&laters)
        .map(|(name, later)| named(name, small(10), &lines, later))
        .collect();
    let inside = Arc::new(AtomicUsize::new(0));
    for (index, queue) in queues.iter().enumerate() {
        let (next, inside) = (laters[(index + 1) % 3].clone(), inside.clone());
        let act = move |batch: &mut Batch<Sent>| {
            drop(batch.drain());
            inside.fetch_add(1, SeqCst);
            wait_until("all to be inside", || inside.load(SeqCst) == 3);
            assert_eq!(get(&next).shutdown(None), 0);
        };
        queue.add_handler(key(0), HandlerRef::new(act)).unwrap();
        queue.produce(sent(0, 0, 0)).unwrap();
    }
    for queue in &queues {
        wait_until("the end", || queue.has_ended());
        assert_eq!(queue.stats().consumed, 1);
    }
    wait_until("the line", || lines.any("did not wait"));
}

/// Each item puts two into the other queue, down to some depth, and both queues are full.
#[test]
fn of_two_queues_that_feed_each_other_one_handler_gives_up() {
    let lines = Lines::default();
    let laters: [Later; 2] = Default::default();
    let refused = Arc::new(Mutex::new(Vec::new()));
    let queues: Vec<_> = ["a", "b"]
        .into_iter()
        .zip(&laters)
        .map(|(name, later)| named(name, small(3), &lines, later))
        .collect();
    for (index, queue) in queues.iter().enumerate() {
        let (other, refused) = (laters[1 - index].clone(), refused.clone());
        let feed = move |batch: &mut Batch<Sent>| {
            for item in batch.drain().filter(|item| item.number < 10) {
                for _ in 0..2 {
                    if let Err(error) = get(&other).produce(sent(0, 0, item.number + 1)) {
                        refused.lock().unwrap().push(error);
                    }
                }
            }
        };
        queue.add_handler(key(0), HandlerRef::new(feed)).unwrap();
    }
    queues[0].produce(sent(0, 0, 0)).unwrap();
    wait_until("both to be at rest", || {
        queues.iter().all(|queue| queue.stats().total_used() == 0)
            && queues.iter().all(|queue| queue.stats().total_used() == 0)
    });
    for queue in &queues {
        shut_down(queue);
        assert_conserved(&queue.stats());
        assert_eq!(queue.stats().failed, 0);
    }
    let refused = refused.lock().unwrap();
    assert!(!refused.is_empty());
    assert_eq!(refused.len() as u64, queues.iter().map(|queue| queue.stats().refused).sum::<u64>());
    for error in refused.iter() {
        let ProduceError::Reentrant { circle: Some(circle), .. } = error else {
            panic!("{error}");
        };
        assert!(circle.contains("in queue a waits for room in partition 0 of queue b"), "{circle}");
        assert!(circle.contains("in queue b waits for room in partition 0 of queue a"), "{circle}");
    }
}

/// A put with a deadline is not refused before it.
#[test]
fn a_put_with_a_deadline_waits_for_it() {
    let (lines, laters): (_, [Later; 2]) = (Lines::default(), Default::default());
    let [queue, feeder] =
        [named("fed", small(1), &lines, &laters[0]), named("feeder", small(9), &lines, &laters[1])];
    let other = laters[1].clone();
    let act = move |batch: &mut Batch<Sent>| {
        drop(batch.drain());
        get(&other).shutdown(None);
    };
    queue.add_handler(key(0), HandlerRef::new(act)).unwrap();
    let (target, timed_out) = (laters[0].clone(), Arc::new(AtomicUsize::new(0)));
    let count = timed_out.clone();
    let feed = move |batch: &mut Batch<Sent>| {
        drop(batch.drain());
        for number in 0..4 {
            let deadline = Instant::now() + Duration::from_millis(200);
            match get(&target).produce_with(sent(0, 0, number), None, Some(deadline), &mut Wait) {
                Err(ProduceError::TimedOut { .. }) => count.fetch_add(1, SeqCst),
                other => other.map(|()| 0).unwrap(),
            };
        }
    };
    feeder.add_handler(key(0), HandlerRef::new(feed)).unwrap();
    feeder.produce(sent(0, 0, 0)).unwrap();
    wait_until("the end of the feeder", || feeder.has_ended());
    shut_down(&queue);
    assert_eq!(timed_out.load(SeqCst), 2);
    assert!(!lines.any("did not wait"));
}

/// Handlers that always wait for room in the next queue, but never for the first.
#[test]
fn a_chain_of_full_queues_is_not_a_circle() {
    let (lines, seen) = (Lines::default(), Collector::default());
    let laters: [Later; 3] = Default::default();
    let two = |buffer_size| Config {
        partitions: PartitionPolicy::fixed(2).unwrap(),
        ..Config { threads: config(2).threads, ..small(buffer_size) }
    };
    let queues: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .zip(&laters)
        .map(|(name, later)| named(name, two(2), &lines, later))
        .collect();
    for kind in 0..3 {
        for (index, queue) in queues.iter().enumerate().take(2) {
            let next = laters[index + 1].clone();
            let pass_on = move |batch: &mut Batch<Sent>| {
                for item in batch.drain() {
                    get(&next).produce(item).unwrap();
                }
            };
            queue.add_handler(key(kind), HandlerRef::new(pass_on)).unwrap();
        }
        let collect = seen.clone();
        let slow = move |batch: &mut Batch<Sent>| {
            std::thread::sleep(Duration::from_micros(500));
            collect.0.lock().unwrap().extend(batch.drain());
        };
        queues[2].add_handler(key(kind), HandlerRef::new(slow)).unwrap();
    }
    for number in 0..600 {
        queues[0].produce(sent(number % 3, 0, number)).unwrap();
    }
    for queue in &queues {
        shut_down(queue);
    }
    assert_eq!(seen.items().len(), 600);
    assert!(queues.iter().all(|queue| queue.stats().failed == 0));
}

/// A partition with items of two types: that of the put is stuck, and the other hangs and is soon
/// marked as stalled, which makes room.
#[test]
fn a_put_waits_for_the_room_of_another_type_that_is_stalled() {
    let (lines, laters): (_, [Later; 2]) = (Lines::default(), Default::default());
    let partitions = PartitionPolicy::fixed(2).unwrap();
    let threads = config(2).threads;
    let shared = Config { partitions, threads, spare_threads: Some(2), ..small(2) };
    let queue = named("shared", shared, &lines, &laters[0]);
    let other = named("other", small(2), &lines, &laters[1]);
    let (begun, outcome) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));

    // Type 0 waits for the end of the other queue; type 2 shares its partition, and hangs.
    let (waits_for, entered) = (laters[1].clone(), begun.clone());
    let wait = move |batch: &mut Batch<Sent>| {
        if batch.drain().all(|item| item.number == 0) {
            entered.fetch_add(1, SeqCst);
            get(&waits_for).shutdown(None);
        }
    };
    queue.add_handler(key(0), HandlerRef::new(wait)).unwrap();
    queue.add_handler(key(1), Collector::default().handler()).unwrap();
    let (hold, inside, release) = holding();
    queue.add_handler(key(2), hold).unwrap();
    assert_eq!(queue.stats().partitions[0].types, [key(0), key(2)]);

    // The other queue's handler puts an item of type 0 once the partition is full of type 2.
    let (target, result, go) = (laters[0].clone(), outcome.clone(), begun.clone());
    let put = move |batch: &mut Batch<Sent>| {
        drop(batch.drain());
        wait_until("the other handler", || go.load(SeqCst) == 2);
        let put = get(&target).produce(sent(0, 0, 1));
        *result.lock().unwrap() = Some(put.is_ok());
    };
    other.add_handler(key(0), HandlerRef::new(put)).unwrap();

    other.produce(sent(0, 0, 0)).unwrap();
    queue.produce(sent(2, 0, 0)).unwrap();
    inside.wait();
    queue.produce(sent(0, 0, 0)).unwrap();
    wait_until("the wait for the end", || begun.load(SeqCst) == 1);
    queue.produce(sent(2, 0, 1)).unwrap();
    queue.produce(sent(2, 0, 2)).unwrap();
    begun.fetch_add(1, SeqCst);
    wait_until("the put", || outcome.lock().unwrap().is_some());
    release.open();
    shut_down(&queue);
    assert_eq!(*outcome.lock().unwrap(), Some(true));
    wait_until("the end", || other.has_ended());
    assert!(!lines.any("did not wait"));
}
