//! The cost of the histograms of waits, batches and calls: CPU time per item, including handlers
//! and producers, alternating with and without histograms.
//!
//! The workload *headline*, and one producer that fills batches of ten items of one type. Run with
//! `cargo bench --bench histograms`; it takes half a minute.

mod workload;

use std::hint::black_box;
use std::sync::Arc;

use batchqueue::{Batch, BatchQueue, Config, HandlerRef, ThreadPolicy, TypeKey, Wait, measure};
use workload::{Line, Metric, TYPES, headline_config, is_test_run, produce_all, slots};

const ROUNDS: usize = 31;
const MOST_NS: f64 = 3.0;

fn queue(config: Config, types: usize) -> Arc<BatchQueue<Metric>> {
    let queue = BatchQueue::builder("histograms", config).start().expect("a valid config");
    for kind in 0..types {
        let handler = |batch: &mut Batch<Metric>| {
            black_box(batch.iter().last().map(|metric| metric.value));
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(handler)).expect("a new type");
    }
    Arc::new(queue)
}

/// Returns the CPU time of this process so far, in Linux's units of 10 ms.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields = stat.rsplit(") ").next().expect("fields behind the name").split(' ');
    let times = fields.skip(11).take(2);
    times.map(|field| field.parse::<u64>().expect("ticks")).sum()
}

/// Returns the nanoseconds of CPU time per item, without and with histograms.
#[allow(clippy::cast_precision_loss)]
fn ns_per_item(items: usize, mut round: impl FnMut()) -> [f64; 2] {
    let mut ticks = [0; 2];
    for number in 0..2 * ROUNDS {
        // Each of the two is equally often the first of a pair.
        let on = number % 4 == 1 || number % 4 == 2;
        measure(on);
        let before = cpu_ticks();
        round();
        ticks[usize::from(on)] += cpu_ticks() - before;
    }
    measure(true);
    ticks.map(|ticks| ticks as f64 * 1e7 / (ROUNDS * items) as f64)
}

fn print(workload: &'static str, most_ns: Option<f64>, [without, with]: [f64; 2]) {
    let (wanted, most_ns) = match most_ns {
        Some(most) => ("histograms take at most 3 ns of CPU time an item", most),
        None => ("for comparison: what a call costs, by ten; no bound", f64::INFINITY),
    };
    Line { row: "14", workload, wanted }.print(
        with - without <= most_ns,
        &format!("{:.2} ns: {with:.1} and {without:.1} without", with - without),
    );
}

fn main() {
    if is_test_run() {
        return;
    }
    let (all, slots, items) = (queue(headline_config(), TYPES), Arc::new(slots()), 1_600_000);
    let figures = ns_per_item(items, || {
        produce_all(&all, &slots, items);
        assert_eq!(all.flush(None, &mut Wait), Ok(true));
    });
    print("headline, no-op handler", Some(MOST_NS), figures);
    assert_eq!(all.shutdown(None), 0);

    let threads = ThreadPolicy::fixed(1).expect("a valid count");
    let small = queue(Config { threads, max_batch_items: 10, ..Config::default() }, 1);
    let items = 400_000;
    let figures = ns_per_item(items, || {
        for value in 0..items as u64 {
            small.produce(Metric { kind: 0, value }).expect("a running queue");
        }
        assert_eq!(small.flush(None, &mut Wait), Ok(true));
    });
    print("one type, batches of 10, no-op handler", None, figures);
    assert_eq!(small.shutdown(None), 0);
}
