//! From `produce` to a no-op handler: the cost of the queue itself.
//!
//! The workload *headline*, see `workload`. A round produces all items, one `produce` each, and
//! waits until all are handled; the queue exists before. Run with `cargo bench --bench headline`;
//! criterion prints items per second as `elem/s`.

mod workload;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use batchqueue::{Batch, BatchQueue, HandlerRef, TypeKey, Wait};
use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use workload::{DRAIN_THREADS, Metric, PRODUCERS, TYPES, headline_config, produce_all, slots};

const ITEMS: usize = 1_600_000;

fn queue() -> BatchQueue<Metric> {
    let queue = BatchQueue::builder("headline", headline_config()).start().expect("a valid config");
    for kind in 0..TYPES {
        let no_op = |batch: &mut Batch<Metric>| {
            black_box(batch.iter().last().map(|metric| metric.value));
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(no_op)).expect("a new type");
    }
    queue
}

/// Returns the time from the first produce to the last handled item.
fn round(queue: &Arc<BatchQueue<Metric>>, slots: &Arc<Vec<usize>>) -> Duration {
    let start = produce_all(queue, slots, ITEMS);
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    start.elapsed()
}

fn headline(criterion: &mut Criterion) {
    let (queue, slots) = (Arc::new(queue()), Arc::new(slots()));
    let mut group = criterion.benchmark_group("headline");
    group
        .throughput(Throughput::Elements(ITEMS as u64))
        .sampling_mode(SamplingMode::Flat)
        .sample_size(20);
    group.bench_function("produce to no-op handler", |bencher| {
        bencher.iter_custom(|rounds| (0..rounds).map(|_| round(&queue, &slots)).sum());
    });
    group.finish();
    let cores = batchqueue::available_cores();
    println!(
        "{PRODUCERS} producers, {DRAIN_THREADS} drain threads, {TYPES} types, {ITEMS} items a \
         round, {cores} cores"
    );
    assert_eq!(queue.shutdown(None), 0);
}

criterion_group!(benches, headline);
criterion_main!(benches);
