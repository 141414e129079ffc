//! The share of processor time left to handlers that compute: the workload *headline*, see
//! `workload`, with 500 dependent multiply-add steps per item.
//!
//! For comparison, the same steps run in bare threads, one per core. The two alternate; the bench
//! prints the medians and the queue's share of the bare rate. Run with `cargo bench --bench busy`;
//! it takes about half a minute.

mod workload;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use batchqueue::{Batch, BatchQueue, HandlerRef, TypeKey, Wait, available_cores};
use workload::{Line, Metric, TYPES, headline_config, is_test_run, median, produce_all, slots};

const STEPS: u32 = 500;
const ITEMS: usize = 1_600_000;
const ROUNDS: usize = 7;

/// Each step depends on the previous one. The addend is opaque; otherwise the compiler would fold
/// the loop into a formula.
fn compute(value: u64) -> u64 {
    let addend = black_box(1_442_695_040_888_963_407);
    (0..STEPS)
        .fold(value, |value, _| value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(addend))
}

/// Returns the items per second of threads that only compute.
#[allow(clippy::cast_precision_loss)]
fn bare() -> f64 {
    let (cores, start) = (available_cores(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                for value in 0..(ITEMS / cores) as u64 {
                    black_box(compute(value));
                }
            });
        }
    });
    ITEMS as f64 / start.elapsed().as_secs_f64()
}

#[allow(clippy::cast_precision_loss)]
fn queued(slots: &Arc<Vec<usize>>) -> f64 {
    let queue = BatchQueue::builder("busy", headline_config()).start().expect("a valid config");
    for kind in 0..TYPES {
        let work = |batch: &mut Batch<Metric>| {
            for metric in batch.iter() {
                black_box(compute(metric.value));
            }
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(work)).expect("a new type");
    }
    let queue = Arc::new(queue);
    let start = produce_all(&queue, slots, ITEMS);
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    let rate = ITEMS as f64 / start.elapsed().as_secs_f64();
    assert_eq!(queue.shutdown(None), 0);
    rate
}

fn main() {
    if is_test_run() {
        return;
    }
    let slots = Arc::new(slots());
    let (bare, queued): (Vec<f64>, Vec<f64>) =
        (0..ROUNDS).map(|_| (bare(), queued(&slots))).unzip();
    let (bare, queued) = (median(bare), median(queued));
    println!(
        "{STEPS} steps per item, {} cores: bare {bare:.0} items/s, through the queue {queued:.0}",
        available_cores()
    );
    let share = queued / bare;
    Line {
        row: "2",
        workload: "headline, 500-step handler",
        wanted: "at least 0.88 of the bare handlers",
    }
    .print(share >= 0.88, &format!("{share:.3} of {:.2} M/s", bare / 1e6));
}
