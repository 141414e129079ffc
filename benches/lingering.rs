//! The cost of waiting for full batches, and how long items wait.
//!
//! *Saturated*: the workload *headline* in batches of exactly 500, with a delay of 50 ms,
//! alternating with the default settings. *Paced*: 1,000 items per second of one type, with a delay
//! of 5 ms: the time from each put to its call, the items per call, and the drain thread's cycles,
//! each a wake-up, per call. Run with `cargo bench --bench lingering`; it takes 30 seconds.

mod workload;

use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{Batch, BatchQueue, Config, HandlerRef, Item, ThreadPolicy, TypeKey, Wait};
use workload::{Line, Metric, TYPES, headline_config, is_test_run, median, produce_all, slots};

const FULL: usize = 500;
const ITEMS: usize = 1_600_000;
const ROUNDS: usize = 41;
const PACED_ITEMS: u32 = 10_000;
const DELAY: Duration = Duration::from_millis(5);

fn queue(config: Config) -> Arc<BatchQueue<Metric>> {
    let queue = BatchQueue::builder("lingering", config).start().expect("a valid config");
    for kind in 0..TYPES {
        let handler = move |batch: &mut Batch<Metric>| {
            black_box(batch.iter().last().map(|metric| metric.value));
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(handler)).expect("a new type");
    }
    Arc::new(queue)
}

/// Returns the items per second, up to the last full batch.
#[allow(clippy::cast_precision_loss)]
fn round(queue: &Arc<BatchQueue<Metric>>, slots: &Arc<Vec<usize>>) -> f64 {
    let start = produce_all(queue, slots, ITEMS);
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    ITEMS as f64 / start.elapsed().as_secs_f64()
}

#[allow(clippy::cast_precision_loss)]
fn saturated() {
    let slots = Arc::new(slots());
    let full = Config {
        max_batch_items: FULL,
        max_delay: Some(Duration::from_millis(50)),
        ..headline_config()
    };
    let queues = [queue(headline_config()), queue(full)];
    let (mut default, mut lingering) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        default.push(round(&queues[0], &slots));
        lingering.push(round(&queues[1], &slots));
    }
    let stats = queues[1].stats();
    let calls: u64 = stats.handlers.iter().map(|handler| handler.batches).sum();
    let mean = stats.consumed as f64 / calls as f64;
    for queue in queues {
        assert_eq!(queue.shutdown(None), 0);
    }
    let (default, lingering) = (median(default), median(lingering));
    Line {
        row: "12",
        workload: "headline, batches of exactly 500 items, or after 50 ms",
        wanted: "at least 0.95 of its rate with the default settings",
    }
    .print(
        lingering >= 0.95 * default,
        &format!(
            "{:.2} of {:.1} M/s; {mean:.0} items per call",
            lingering / default,
            default / 1e6
        ),
    );
}

/// An item with the time of its put.
#[derive(Debug)]
struct Stamped(Instant);

impl Item for Stamped {
    fn type_key(&self) -> TypeKey {
        TypeKey(1)
    }
}

#[allow(clippy::cast_precision_loss)]
fn paced() {
    let config = Config {
        threads: ThreadPolicy::fixed(1).expect("a valid count"),
        max_delay: Some(DELAY),
        ..Config::default()
    };
    let queue = BatchQueue::builder("paced", config).start().expect("a valid config");
    let waits = Arc::new(Mutex::new(Vec::new()));
    let seen = waits.clone();
    let handler = move |batch: &mut Batch<Stamped>| {
        let now = Instant::now();
        seen.lock().unwrap().extend(batch.drain().map(|item| now.duration_since(item.0)));
    };
    queue.add_handler(TypeKey(1), HandlerRef::new(handler)).expect("a new type");
    let start = Instant::now();
    for number in 0..PACED_ITEMS {
        let due = start + Duration::from_millis(1) * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        queue.produce(Stamped(Instant::now())).expect("a running queue");
    }
    assert_eq!(queue.shutdown(None), 0);
    let stats = queue.stats();
    let calls = stats.handlers[0].batches as f64;
    let mut waits = waits.lock().unwrap();
    waits.sort_unstable();
    let at = |share: f64| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an index
        let index = (share * (waits.len() - 1) as f64) as usize;
        waits[index].as_secs_f64() * 1e3
    };
    Line {
        row: "13",
        workload: "1,000 items a second of one type, a delay of 5 ms",
        wanted: "99 % wait at most 7 ms",
    }
    .print(
        at(0.99) <= 7.0,
        &format!(
            "median {:.1} ms, 99 % {:.1} ms; {:.1} items and {:.1} cycles per call",
            at(0.5),
            at(0.99),
            f64::from(PACED_ITEMS) / calls,
            stats.drain_threads[0].cycles as f64 / calls
        ),
    );
}

fn main() {
    if is_test_run() {
        return;
    }
    saturated();
    paced();
}
