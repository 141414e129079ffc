//! The cost of a queue with many types and little traffic, and the latency of an item: 2,000 types,
//! 8 drain threads, idle 1 to 50 ms, 1,000 and then 20 evenly spaced items per second.
//!
//! Prints the drain threads' processor time in cores, and the time from `produce` to the handler.
//! Run with `cargo bench --bench sparse`; it takes about 20 seconds.

mod workload;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, Config, HandlerRef, PartitionPolicy, ThreadPolicy, TypeKey, Wait,
};
use workload::{Line, Metric, is_test_run};

const TYPES: usize = 2_000;

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn drain_cpu(queue: &BatchQueue<Metric>) -> Duration {
    queue.stats().drain_threads.iter().map(|thread| thread.cpu).sum()
}

fn run(
    queue: &BatchQueue<Metric>,
    waited: &Mutex<Vec<u64>>,
    start: Instant,
    per_second: u32,
    items: u32,
) -> (f64, Duration) {
    waited.lock().expect("no panic under the lock").clear();
    let (cpu_before, began) = (drain_cpu(queue), Instant::now());
    for number in 0..items {
        let due = began + Duration::from_secs(1) / per_second * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A stride that visits every type, and never two adjacent types in a row.
        let kind = number as usize * 7 % TYPES;
        queue.produce(Metric { kind, value: nanos(start) }).expect("a running queue");
    }
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    // Drain threads update their processor time when they have nothing to do.
    std::thread::sleep(Duration::from_millis(200));
    let cores =
        drain_cpu(queue).saturating_sub(cpu_before).as_secs_f64() / began.elapsed().as_secs_f64();
    let mut waited = waited.lock().expect("no panic under the lock").clone();
    waited.sort_unstable();
    let at = |share: usize| Duration::from_nanos(waited[(waited.len() - 1) * share / 100]);
    println!(
        "{per_second:>5} items/s: drain threads {cores:.4} cores; p50 {:.2?}, p99 {:.2?}, longest \
         {:.2?}",
        at(50),
        at(99),
        at(100)
    );
    (cores, at(99))
}

fn main() {
    if is_test_run() {
        return;
    }
    let config = Config {
        threads: ThreadPolicy::fixed(8).expect("a valid count"),
        partitions: PartitionPolicy::adaptive(25).expect("a valid multiplier"),
        min_idle: Duration::from_millis(1),
        max_idle: Duration::from_millis(50),
        ..Config::default()
    };
    let queue = BatchQueue::<Metric>::builder("sparse", config).start().expect("a valid config");
    let (waited, start) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    for kind in 0..TYPES {
        let waited = waited.clone();
        let record = move |batch: &mut Batch<Metric>| {
            let now = nanos(start);
            let mut waited = waited.lock().expect("no panic under the lock");
            waited.extend(batch.drain().map(|metric| now.saturating_sub(metric.value)));
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(record)).expect("a new type");
    }
    let (cores, p99) = run(&queue, &waited, start, 1_000, 10_000);
    let (_, p99_of_few) = run(&queue, &waited, start, 20, 200);
    assert_eq!(queue.shutdown(None), 0);
    let limit = Duration::from_millis(3);
    Line {
        row: "5",
        workload: "sparse, 1,000 items/s, then 20 items/s",
        wanted: "drain threads at most 0.03 cores; p99 at most 3 ms at both rates",
    }
    .print(
        cores <= 0.03 && p99 <= limit && p99_of_few <= limit,
        &format!("{cores:.3} cores; p99 {p99:.2?} and {p99_of_few:.2?}"),
    );
}
