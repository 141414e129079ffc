//! Produce to handler, no-op handler: what the queue itself costs.
//!
//! Workload *headline*: 16 producers, 100 types (20 of weight 24, 30 of 8, 20 of 4, 30 of 1: 830 slots, shuffled;
//! producer `p` starts at slot `p · 830 / 16`), 4 drain threads, adaptive partitions, 2,000 items per partition,
//! BLOCKING, idle 1 to 50 ms. One round puts all items in, one `produce` each, and waits until all are handled; threads
//! and queue are made before the clock starts. Run with `cargo bench`; criterion prints items per second as `elem/s`.

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use batchqueue::{Batch, BatchQueue, Config, HandlerRef, Item, PartitionPolicy, ThreadPolicy, TypeKey, Wait};
use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};

const DRAIN_THREADS: usize = 4;
const PRODUCERS: usize = 16;
const TIERS: [(usize, usize); 4] = [(20, 24), (30, 8), (20, 4), (30, 1)];
const ITEMS: usize = 1_600_000;

/// 16 bytes, like a pointer with its type.
#[derive(Debug)]
struct Metric {
    kind: usize,
    value: u64,
}

impl Item for Metric {
    fn type_key(&self) -> TypeKey {
        TypeKey(self.kind)
    }
}

/// One slot per unit of weight, shuffled by a fixed linear congruential generator.
fn slots() -> Vec<usize> {
    let weights = TIERS.iter().flat_map(|&(types, weight)| std::iter::repeat_n(weight, types));
    let mut slots: Vec<usize> =
        weights.enumerate().flat_map(|(kind, weight)| std::iter::repeat_n(kind, weight)).collect();
    let mut state: u64 = 42;
    for last in (1..slots.len()).rev() {
        // Knuth, MMIX.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        slots.swap(last, usize::try_from(state >> 33).unwrap_or(0) % (last + 1));
    }
    slots
}

fn queue() -> BatchQueue<Metric> {
    let config = Config {
        threads: ThreadPolicy::fixed(DRAIN_THREADS).expect("a valid count"),
        partitions: PartitionPolicy::adaptive(25).expect("a valid multiplier"),
        buffer_size: 2_000,
        min_idle: Duration::from_millis(1),
        max_idle: Duration::from_millis(50),
        ..Config::default()
    };
    let queue = BatchQueue::builder("headline", config).start().expect("a valid config");
    for kind in 0..TIERS.iter().map(|tier| tier.0).sum() {
        let no_op = |batch: &mut Batch<Metric>| {
            black_box(batch.iter().last().map(|metric| metric.value));
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(no_op)).expect("a new type");
    }
    queue
}

/// The time from the first produce to the last handled item.
fn round(queue: &Arc<BatchQueue<Metric>>, slots: &Arc<Vec<usize>>) -> Duration {
    let start_line = Arc::new(Barrier::new(PRODUCERS + 1));
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let (queue, slots, start_line) = (queue.clone(), slots.clone(), start_line.clone());
            std::thread::spawn(move || {
                let mut slot = producer * slots.len() / PRODUCERS;
                start_line.wait();
                for value in 0..(ITEMS / PRODUCERS) as u64 {
                    queue.produce(Metric { kind: slots[slot], value }).expect("a running queue");
                    slot = if slot + 1 == slots.len() { 0 } else { slot + 1 };
                }
            })
        })
        .collect();
    start_line.wait();
    let start = Instant::now();
    for producer in producers {
        producer.join().expect("a producer that does not panic");
    }
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    start.elapsed()
}

fn headline(criterion: &mut Criterion) {
    let (queue, slots) = (Arc::new(queue()), Arc::new(slots()));
    let mut group = criterion.benchmark_group("headline");
    group.throughput(Throughput::Elements(ITEMS as u64)).sampling_mode(SamplingMode::Flat).sample_size(20);
    group.bench_function("produce to no-op handler", |bencher| {
        bencher.iter_custom(|rounds| (0..rounds).map(|_| round(&queue, &slots)).sum());
    });
    group.finish();
    let cores = batchqueue::available_cores();
    println!("{PRODUCERS} producers, {DRAIN_THREADS} drain threads, 100 types, {ITEMS} items a round, {cores} cores");
    assert_eq!(queue.shutdown(None), 0);
}

criterion_group!(benches, headline);
criterion_main!(benches);
