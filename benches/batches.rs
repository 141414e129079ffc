//! The cost of an exact batch limit: the workload *headline* with batches of at most 500 items,
//! alternating with the default limit of 10,000.
//!
//! A limit of 500 means more calls, and segments of 250 items. Run with `cargo bench --bench
//! batches`; it takes ten seconds.

mod workload;

use std::hint::black_box;
use std::sync::Arc;

use batchqueue::{Batch, BatchQueue, Config, HandlerRef, TypeKey, Wait};
use workload::{Line, Metric, TYPES, headline_config, is_test_run, median, produce_all, slots};

const LIMIT: usize = 500;
const ITEMS: usize = 1_600_000;
const ROUNDS: usize = 41;

fn queue(max_batch_items: usize) -> Arc<BatchQueue<Metric>> {
    let config = Config { max_batch_items, ..headline_config() };
    let queue = BatchQueue::builder("batches", config).start().expect("a valid config");
    for kind in 0..TYPES {
        let handler = move |batch: &mut Batch<Metric>| {
            assert!(batch.len() <= max_batch_items);
            black_box(batch.iter().last().map(|metric| metric.value));
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(handler)).expect("a new type");
    }
    Arc::new(queue)
}

/// Returns the mean number of items per call.
#[allow(clippy::cast_precision_loss)]
fn mean_batch(queue: &BatchQueue<Metric>) -> f64 {
    let stats = queue.stats();
    let calls: u64 = stats.handlers.iter().map(|handler| handler.batches).sum();
    assert_eq!(stats.failed, 0, "a call got too many items");
    stats.consumed as f64 / calls as f64
}

/// Returns the items per second.
#[allow(clippy::cast_precision_loss)]
fn round(queue: &Arc<BatchQueue<Metric>>, slots: &Arc<Vec<usize>>) -> f64 {
    let start = produce_all(queue, slots, ITEMS);
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    ITEMS as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    if is_test_run() {
        return;
    }
    let slots = Arc::new(slots());
    let queues = [queue(10_000), queue(LIMIT)];
    let (mut default, mut limited) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        default.push(round(&queues[0], &slots));
        limited.push(round(&queues[1], &slots));
    }
    let means = queues.each_ref().map(|queue| mean_batch(queue));
    for queue in queues {
        assert_eq!(queue.shutdown(None), 0);
    }
    let (default, limited) = (median(default), median(limited));
    Line {
        row: "11",
        workload: "headline, batches of at most 500 items",
        wanted: "at least 0.95 of its rate with the default limit",
    }
    .print(
        limited >= 0.95 * default,
        &format!(
            "{:.2} of {:.1} M/s; {:.0} and {:.0} items per call",
            limited / default,
            default / 1e6,
            means[1],
            means[0]
        ),
    );
}
