//! P4: slow handlers leave one thread to quick ones, and still get their calls.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, Config, DrainBalancer, HandlerRef, PartitionPolicy, Selector, Wait,
};

use crate::support::{
    Collector, Latch, Sent, assert_conserved, config, holding, key, sent, shut_down, start,
    wait_until,
};

const TYPES: usize = 6;

fn by_type(threads: usize) -> Config {
    Config { partitions: PartitionPolicy::fixed(TYPES).unwrap(), ..config(threads) }
}

/// Slow handlers, which take 150 ms, or hang on request.
#[derive(Clone, Default)]
struct Slow {
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    hangs: Arc<AtomicBool>,
    release: Arc<Latch>,
    kinds: Arc<Mutex<Vec<usize>>>,
}

impl Slow {
    fn handler(&self) -> HandlerRef<Sent> {
        let slow = self.clone();
        HandlerRef::new(move |batch: &mut Batch<Sent>| {
            let hangs = slow.hangs.load(SeqCst);
            let inside = slow.inside.fetch_add(1, SeqCst) + 1;
            slow.most.fetch_max(inside, SeqCst);
            sleep(Duration::from_millis(150));
            if hangs {
                slow.release.wait();
            }
            slow.kinds.lock().unwrap().extend(batch.drain().map(|item| item.kind));
            slow.inside.fetch_sub(1, SeqCst);
        })
    }

    fn wait_for_inside(&self, threads: usize) {
        wait_until("the slow calls", || self.inside.load(SeqCst) == threads);
    }
}

fn put(queue: &BatchQueue<Sent>, kinds: &[usize], number: usize) {
    for &kind in kinds {
        queue.produce(sent(kind, 0, number)).unwrap();
    }
}

fn without_spares(threads: usize) -> Config {
    Config { spare_threads: Some(0), ..by_type(threads) }
}

/// Types 0, 2 and 4 are known to be slow; the others are quick.
fn slow_and_quick(config: Config) -> (BatchQueue<Sent>, Slow, Collector) {
    let (queue, slow, quick) = (start(config), Slow::default(), Collector::default());
    for kind in 0..TYPES {
        let handler = if kind % 2 == 0 { slow.handler() } else { quick.handler() };
        queue.add_handler(key(kind), handler).unwrap();
    }
    put(&queue, &[0, 2, 4], 0);
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    (queue, slow, quick)
}

#[test]
fn slow_handlers_of_one_thread_use_the_others() {
    let (queue, slow) = (start(without_spares(2)), Slow::default());
    // Types 0, 2 and 4 belong to the first thread, and the second has nothing to do.
    for kind in 0..TYPES {
        queue.add_handler(key(kind), slow.handler()).unwrap();
    }
    for number in 0..6 {
        put(&queue, &[0, 2, 4], number);
        assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    }
    assert_eq!(slow.most.load(SeqCst), 2);
    shut_down(&queue);
    assert_conserved(&queue.stats());
}

/// With two threads and with three: one stays free, whichever threads own the slow types.
#[test]
fn slow_handlers_leave_one_thread_to_the_quick_ones() {
    for threads in [2, 3] {
        let (queue, slow, quick) = slow_and_quick(without_spares(threads));
        slow.hangs.store(true, SeqCst);
        put(&queue, &[1, 3, 5], 0);
        wait_until("quick work", || quick.items().len() == 3);
        put(&queue, &[0, 2, 4], 1);
        slow.wait_for_inside(threads - 1);
        for number in 1..50 {
            put(&queue, &[1, 3, 5], number);
            wait_until("the quick types", || quick.items().len() == 3 * (number + 1));
        }
        assert_eq!(slow.inside.load(SeqCst), threads - 1);
        slow.release.open();
        shut_down(&queue);
        assert_eq!(queue.stats().consumed, 6 + 150);
        assert_conserved(&queue.stats());
    }
}

/// The types get calls in turn, even though the first always has items.
#[test]
fn slow_handlers_are_called_by_turns() {
    let (queue, slow, quick) = slow_and_quick(without_spares(2));
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                put(&queue, &[0, 1], number);
                sleep(Duration::from_millis(1));
                if stops.load(SeqCst) {
                    break;
                }
            }
        });
        for number in 1..4 {
            put(&queue, &[2, 4], number);
            wait_until("the other slow types", || {
                let kinds = slow.kinds.lock().unwrap();
                kinds.iter().filter(|kind| **kind != 0).count() == 2 * (number + 1)
            });
        }
        stops.store(true, SeqCst);
    });
    assert!(!quick.items().is_empty());
    shut_down(&queue);
    assert_conserved(&queue.stats());
}

/// While the queue closes, no items arrive: quick ones are soon done, and then no thread is kept
/// free.
#[test]
fn a_shutdown_delivers_the_items_of_a_slow_handler_beside_one_that_hangs() {
    let (queue, slow, quick) = slow_and_quick(without_spares(2));
    slow.hangs.store(true, SeqCst);
    put(&queue, &[1, 3, 5], 0);
    wait_until("quick work", || quick.items().len() == 3);
    queue.produce(sent(0, 0, 1)).unwrap();
    slow.wait_for_inside(1);
    slow.hangs.store(false, SeqCst);
    put(&queue, &[2, 4], 1);
    // Less than the time for which quick calls would otherwise be protected.
    assert_eq!(queue.shutdown(Some(Instant::now() + Duration::from_secs(4))), 1);
    assert_eq!(slow.kinds.lock().unwrap().len(), 5);
    slow.release.open();
}

/// One thread hangs; the other has endless quick work, and still serves slow items, with a spare
/// thread or alone.
#[test]
fn a_slow_type_has_its_calls_beside_a_handler_that_hangs() {
    for spare_threads in [None, Some(0)] {
        let (queue, slow, quick) = slow_and_quick(Config { spare_threads, ..by_type(2) });
        let (hold, entered, release) = holding();
        queue.add_handler(key(TYPES), hold).unwrap();
        queue.produce(sent(TYPES, 0, 0)).unwrap();
        entered.wait();
        let stops = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1.. {
                    put(&queue, &[1, 3, 5], number);
                    sleep(Duration::from_millis(1));
                    if stops.load(SeqCst) {
                        break;
                    }
                }
            });
            for number in 1..3 {
                let before = quick.items().len();
                put(&queue, &[0, 2], number);
                wait_until("the slow types", || slow.kinds.lock().unwrap().len() == 3 + 2 * number);
                wait_until("quick work", || quick.items().len() > before + 3);
            }
            stops.store(true, SeqCst);
        });
        release.open();
        shut_down(&queue);
        assert_conserved(&queue.stats());
    }
}

/// One instance of a factory, or a replaced handler, hangs: the type's other handlers do not count
/// as slow because of it.
#[test]
fn a_hung_instance_makes_no_other_one_slow() {
    let config = Config { selector: Selector::RoundRobin, ..without_spares(2) };
    let (queue, quick) = (start(config), Collector::default());
    let (hold, entered, release) = holding();
    queue.add_handler(key(0), hold).unwrap();
    queue.add_handler(key(1), quick.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    // The handler is known to be in a long call.
    wait_until("the handler to be stuck", || !queue.stats().stuck_handlers.is_empty());
    let replaced = Collector::default();
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| queue.add_handler(key(0), replaced.handler()).unwrap());
        for number in 0..600 {
            put(&queue, &[0, 1], number);
            // Items in the partition of that call wait for it.
            wait_until("quick work", || quick.items().len() == number + 1);
        }
        wait_until("the new handler", || replaced.items().len() >= 450);
        release.open();
        replacing.join().unwrap();
    });
    shut_down(&queue);
    assert_conserved(&queue.stats());
}

/// The balancer plans by puts, and the thread of a slow type looks idle: unless its time is
/// checked, partitions would move there and be taken over again in each interval.
#[test]
fn a_balancer_gives_no_partitions_to_a_thread_that_is_busy_with_slow_calls() {
    let balancer = Some(DrainBalancer::throughput_weighted());
    let rebalance_interval = Duration::from_millis(500);
    let config = Config { balancer, rebalance_interval, ..without_spares(2) };
    let (queue, slow, quick) = slow_and_quick(config);
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                put(&queue, &[0, 1, 3, 5], number);
                sleep(Duration::from_millis(1));
                if stops.load(SeqCst) {
                    break;
                }
            }
        });
        let wait_for_runs = |runs: u64| {
            let before = queue.stats().rebalances;
            wait_until("runs", || queue.stats().rebalances >= before + runs);
        };
        wait_for_runs(4);
        let before = queue.stats().moves;
        wait_for_runs(6);
        stops.store(true, SeqCst);
        let moves = queue.stats().moves - before;
        assert!(moves < 3, "{moves} moves in six runs");
    });
    assert!(!quick.items().is_empty() && !slow.kinds.lock().unwrap().is_empty());
    shut_down(&queue);
}

/// A slow type that is removed while it waits for its call.
#[test]
fn a_slow_type_that_waits_for_its_call_can_be_removed() {
    let (queue, slow, quick) = slow_and_quick(without_spares(2));
    slow.hangs.store(true, SeqCst);
    put(&queue, &[1, 3, 5], 0);
    wait_until("quick work", || quick.items().len() == 3);
    queue.produce(sent(0, 0, 1)).unwrap();
    slow.wait_for_inside(1);
    put(&queue, &[2, 4], 1);
    wait_until("the items to be taken", || queue.stats().queued == 0);
    assert!(queue.remove_handler(key(2)));
    wait_until("its item", || queue.stats().unhandled == 1);
    slow.release.open();
    shut_down(&queue);
    assert_eq!(slow.kinds.lock().unwrap().iter().filter(|kind| **kind == 4).count(), 2);
    assert_conserved(&queue.stats());
}
