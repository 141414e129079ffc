//! What a queue remembers of types that have gone.

use crate::config::{Config, PartitionPolicy, RetryPolicy, Selector, ThreadPolicy};
use crate::control::state::Knowledge;
use crate::flow::batch::{Batch, Failure};
use crate::flow::handler::{Handler, HandlerRef};
use crate::item::{Item, TypeKey};
use crate::queue::BatchQueue;
use crate::sync::{Arc, Duration, Instant, Mutex, Weak};
use crate::testing::threads::Latch;
use crate::threads::waits::Wait;

#[derive(Debug)]
struct Sent(TypeKey);

impl Item for Sent {
    fn type_key(&self) -> TypeKey {
        self.0
    }
}

const A: TypeKey = TypeKey(16);

const B: TypeKey = TypeKey(32);

fn start(config: Config) -> BatchQueue<Sent> {
    let config = Config {
        threads: ThreadPolicy::fixed(2).unwrap(),
        min_idle: Duration::from_millis(1),
        max_idle: Duration::from_millis(5),
        ..config
    };
    BatchQueue::builder("q", config).start().unwrap()
}

fn adaptive() -> Config {
    Config { partitions: PartitionPolicy::adaptive(1_000).unwrap(), ..Config::default() }
}

fn noop() -> HandlerRef<Sent> {
    HandlerRef::new(|_: &mut Batch<Sent>| ())
}

/// Returns a handler that stays in its first batch until the second latch opens.
fn held() -> (HandlerRef<Sent>, Arc<Latch>, Arc<Latch>) {
    let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let handler = {
        let (entered, release) = (entered.clone(), release.clone());
        HandlerRef::new(move |_: &mut Batch<Sent>| {
            entered.open();
            release.wait();
        })
    };
    (handler, entered, release)
}

fn wait_until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "30 s are over");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn knows(queue: &BatchQueue<Sent>, key: TypeKey) -> Knowledge {
    queue.control.knowledge_of(key)
}

fn remove_soon(queue: &BatchQueue<Sent>, key: TypeKey) {
    let _ = queue.remove_handler_with(key, Some(Instant::now()), &mut Wait);
}

fn assert_conserved(queue: &BatchQueue<Sent>) {
    let stats = queue.stats();
    assert_eq!(stats.produced, stats.consumed + stats.failed + stats.unhandled);
}

#[test]
fn sessions_leave_nothing_behind() {
    for policy in [PartitionPolicy::adaptive(1_000), PartitionPolicy::fixed(3)] {
        let queue = start(Config { partitions: policy.unwrap(), ..Config::default() });
        queue.add_handler(A, noop()).unwrap();
        let partitions = queue.partition_count();
        for session in 0..3_000 {
            let key = TypeKey((session + 100) << 4);
            queue.add_handler(key, noop()).unwrap();
            for _ in 0..3 {
                queue.produce(Sent(key)).unwrap();
            }
            if session % 3 == 0 {
                assert_eq!(queue.flush(None, &mut Wait), Ok(true));
            }
            assert!(queue.remove_handler(key));
        }
        wait_until(|| queue.control.state.lock().types.leaving() == 0);
        let control = &queue.control;
        assert_eq!(control.state.lock().types.count(), 1);
        // A removal may find items, so a few types may be leaving at the same time.
        let (places, count) = (queue.flow.route.type_count(), queue.partition_count());
        assert!(places <= 40 && count <= partitions + 40, "{places} places, {count} partitions");
        let stats = queue.stats();
        assert_eq!((stats.attempts, stats.produced, stats.handlers.len()), (9_000, 9_000, 1));
        assert_conserved(&queue);
        queue.shutdown(None);
    }
}

#[test]
fn many_types_at_a_time_leave_their_partitions_to_the_next() {
    let queue = start(adaptive());
    for round in 0..10 {
        let keys: Vec<_> = (0..500).map(|kind| TypeKey((1 + round * 500 + kind) << 4)).collect();
        for &key in &keys {
            queue.add_handler(key, noop()).unwrap();
            queue.produce(Sent(key)).unwrap();
        }
        assert_eq!(queue.flush(None, &mut Wait), Ok(true));
        for &key in &keys {
            assert!(queue.remove_handler(key));
            assert_eq!(knows(&queue, key), Knowledge::Nothing);
        }
    }
    assert_eq!((queue.partition_count(), queue.flow.route.type_count()), (500, 500));
    assert_eq!(queue.stats().consumed, 5_000);
    queue.shutdown(None);
}

#[test]
fn a_type_stays_while_its_items_wait() {
    let queue = start(adaptive());
    let (handler, entered, release) = held();
    queue.add_handler(A, handler).unwrap();
    queue.produce(Sent(A)).unwrap();
    entered.wait();
    queue.produce(Sent(A)).unwrap();
    remove_soon(&queue, A);
    assert_eq!(knows(&queue, A), Knowledge::Leaving);
    // Another type does not get its partition yet.
    queue.add_handler(B, noop()).unwrap();
    assert_eq!(queue.partition_count(), 2);
    release.open();
    wait_until(|| knows(&queue, A) == Knowledge::Nothing);
    queue.shutdown(None);
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.unhandled), (1, 1));
}

fn partition_of(queue: &BatchQueue<Sent>, key: TypeKey) -> Option<usize> {
    let stats = queue.stats();
    stats.partitions.iter().position(|partition| partition.types.contains(&key))
}

#[test]
fn a_type_that_comes_back_while_its_items_wait_gets_its_partition() {
    let queue = start(adaptive());
    queue.add_handler(B, noop()).unwrap();
    let (handler, entered, release) = held();
    queue.add_handler(A, handler).unwrap();
    queue.produce(Sent(A)).unwrap();
    entered.wait();
    remove_soon(&queue, A);
    assert!(queue.remove_handler(B), "now there is a partition with fewer types");
    queue.add_handler(A, noop()).unwrap();
    assert_eq!((partition_of(&queue, A), knows(&queue, A)), (Some(1), Knowledge::Handled));
    release.open();
    queue.produce(Sent(A)).unwrap();
    queue.shutdown(None);
    assert_eq!(queue.stats().consumed, 2);
}

/// The waiting items might include one from the type's former lives.
#[test]
fn a_type_that_has_gone_comes_back_to_its_partition_while_items_of_others_wait() {
    let queue = start(adaptive());
    let (handler, entered, release) = held();
    queue.add_handler(B, handler).unwrap();
    queue.produce(Sent(B)).unwrap();
    entered.wait();
    queue.add_handler(A, noop()).unwrap();
    assert!(queue.remove_handler(A));
    assert_eq!(knows(&queue, A), Knowledge::Nothing);
    queue.add_handler(TypeKey(48), noop()).unwrap();
    assert_eq!(partition_of(&queue, TypeKey(48)), Some(1), "its partition is free");
    queue.add_handler(A, noop()).unwrap();
    assert_eq!(partition_of(&queue, A), Some(1));
    assert!(queue.remove_handler(A));
    release.open();
    wait_until(|| {
        queue.stats();
        queue.control.state.lock().types.whereabouts.is_empty()
    });
    queue.add_handler(A, noop()).unwrap();
    assert_eq!(partition_of(&queue, A), Some(2), "it is forgotten");
    queue.shutdown(None);
}

struct Failing(Arc<Latch>);

impl Handler<Sent> for Failing {
    fn consume(&self, _batch: &mut Batch<Sent>) -> Result<(), Failure> {
        self.0.open();
        Err(Failure::new("not today"))
    }
}

#[test]
fn a_type_goes_that_was_removed_while_its_batch_backs_off() {
    let retry = RetryPolicy { backoff: Duration::from_secs(600), ..RetryPolicy::default() };
    let queue = start(Config { retry: Some(retry), ..adaptive() });
    let failed = Arc::new(Latch::default());
    queue.add_handler(A, HandlerRef::new(Failing(failed.clone()))).unwrap();
    queue.produce(Sent(A)).unwrap();
    failed.wait();
    assert!(queue.remove_handler(A));
    wait_until(|| knows(&queue, A) == Knowledge::Nothing);
    queue.shutdown(None);
    assert_eq!(queue.stats().failed, 1);
}

#[test]
fn a_type_goes_that_was_removed_inside_its_own_call() {
    let queue = Arc::new(start(adaptive()));
    let this: Arc<Mutex<Weak<BatchQueue<Sent>>>> = Arc::new(Mutex::new(Arc::downgrade(&queue)));
    let handler = HandlerRef::new(move |_: &mut Batch<Sent>| {
        let queue = this.lock().upgrade();
        assert!(queue.is_some_and(|queue| queue.remove_handler(A)));
    });
    queue.add_handler(A, handler).unwrap();
    queue.produce(Sent(A)).unwrap();
    wait_until(|| knows(&queue, A) == Knowledge::Nothing);
    queue.produce(Sent(A)).unwrap();
    queue.shutdown(None);
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.unhandled), (1, 1));
}

#[test]
fn a_spread_type_leaves_its_partitions_to_the_next_one() {
    let queue = start(adaptive());
    for session in 1..200 {
        let key = TypeKey(session << 4);
        queue.add_handlers(key, (0..4).map(|_| noop()).collect()).unwrap();
        for _ in 0..8 {
            queue.produce(Sent(key)).unwrap();
        }
        assert_eq!(queue.flush(None, &mut Wait), Ok(true));
        assert!(queue.remove_handler(key));
    }
    assert_eq!((queue.partition_count(), queue.flow.route.spread_count()), (4, 1));
    queue.shutdown(None);
    assert_eq!(queue.stats().consumed, 8 * 199);
}

/// With another selector, the items of a type may be in any partition.
#[test]
fn a_type_goes_when_every_partition_is_settled_if_it_may_be_in_any() {
    let partitions = PartitionPolicy::fixed(4).unwrap();
    let queue = start(Config { selector: Selector::RoundRobin, partitions, ..Config::default() });
    let (handler, entered, release) = held();
    queue.add_handler(B, handler).unwrap();
    queue.add_handler(A, noop()).unwrap();
    queue.produce(Sent(B)).unwrap();
    entered.wait();
    assert!(queue.remove_handler(A));
    assert_eq!(knows(&queue, A), Knowledge::Leaving);
    release.open();
    wait_until(|| knows(&queue, A) == Knowledge::Nothing);
    queue.shutdown(None);
}

#[test]
fn an_item_of_a_type_that_has_gone_does_not_reach_the_next_type_of_its_partition() {
    let queue = start(Config { partitions: PartitionPolicy::fixed(1).unwrap(), ..adaptive() });
    let seen = Arc::new(Mutex::new(Vec::new()));
    queue.add_handler(A, noop()).unwrap();
    assert!(queue.remove_handler(A));
    assert_eq!(knows(&queue, A), Knowledge::Nothing);
    let (handler, entered, release) = held();
    queue.add_handler(B, handler).unwrap();
    queue.produce(Sent(B)).unwrap();
    entered.wait();
    // Like a producer that looked the type up in time: the put does not mark the partition.
    assert!(queue.flow.route.partition(0).put(Sent(A), || false).is_ok());
    queue.produce(Sent(B)).unwrap();
    let handler = {
        let seen = seen.clone();
        HandlerRef::new(move |batch: &mut Batch<Sent>| {
            seen.lock().extend(batch.drain().map(|item| item.0));
        })
    };
    release.open();
    queue.add_handler(B, handler).unwrap();
    queue.produce(Sent(B)).unwrap();
    queue.shutdown(None);
    assert!(seen.lock().iter().all(|&key| key == B), "{seen:?}");
    assert_eq!(queue.stats().unhandled, 1);
    assert_conserved(&queue);
}

/// The item waits where items of unknown types go. From there it could reach the handler behind a
/// newer one that was put into the type's partition.
#[test]
fn an_item_that_was_put_before_its_type_came_is_not_delivered_from_another_partition() {
    let config = Config {
        threads: ThreadPolicy::fixed(1).unwrap(),
        partitions: PartitionPolicy::fixed(2).unwrap(),
        ..Config::default()
    };
    let queue = BatchQueue::builder("q", config).start().unwrap();
    let (handler, entered, release) = held();
    queue.add_handler(A, handler).unwrap();
    queue.produce(Sent(A)).unwrap();
    entered.wait();
    queue.produce(Sent(B)).unwrap();
    queue.add_handler(B, noop()).unwrap();
    assert_eq!((partition_of(&queue, A), partition_of(&queue, B)), (Some(0), Some(1)));
    release.open();
    queue.produce(Sent(B)).unwrap();
    queue.shutdown(None);
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.unhandled), (2, 1));
}
