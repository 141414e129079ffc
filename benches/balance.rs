//! The gain from balancing when handlers wait: the workload *headline*, see `workload`, with
//! handlers that sleep 20 µs per item, once per batch, and types registered in shuffled order, so
//! that static owners are uneven.
//!
//! Compares four runs: four bare threads that sleep as long as the same number of items takes (the
//! ideal), static owners, `throughput_weighted` every half second, and that with take-over, as with
//! the default settings. Static owners mean a `takeover_after` of an hour: with calls of up to 40
//! ms, take-over alone would even out the load. Prints items per second, the share of the ideal,
//! and the load ratio of each interval. Run with `cargo bench --bench balance`; it takes about a
//! minute.

mod workload;

use std::sync::Arc;
use std::time::{Duration, Instant};

use batchqueue::{Batch, BatchQueue, Config, DrainBalancer, HandlerRef, TypeKey, Wait};
use workload::{
    DRAIN_THREADS, Line, Metric, TYPES, headline_config, is_test_run, median, produce_all, shuffle,
    slots,
};

const PER_ITEM: Duration = Duration::from_micros(20);
/// Enough for twelve seconds, so that the half second before the balancer's first run and the end,
/// when threads finish one by one, hardly matter.
const ITEMS: usize = 2_400_000;
const INTERVAL: Duration = Duration::from_millis(500);
/// Long enough for partitions to stay with threads that are in a call.
const HOUR: Duration = Duration::from_secs(3_600);
/// About the size of the batches that the queue forms in this bench.
const BARE_BATCH: u32 = 1_000;

fn queue(balancer: Option<DrainBalancer>, takeover_after: Duration) -> BatchQueue<Metric> {
    let config =
        Config { balancer, takeover_after, rebalance_interval: INTERVAL, ..headline_config() };
    let queue = BatchQueue::builder("balance", config).start().expect("a valid config");
    let mut kinds: Vec<usize> = (0..TYPES).collect();
    shuffle(&mut kinds);
    for kind in kinds {
        let sleep = |batch: &mut Batch<Metric>| {
            std::thread::sleep(PER_ITEM * u32::try_from(batch.len()).unwrap_or(u32::MAX));
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(sleep)).expect("a new type");
    }
    queue
}

/// Returns the items per second of threads that only sleep.
#[allow(clippy::cast_precision_loss)]
fn bare_sleepers() -> f64 {
    let each = u32::try_from(ITEMS / DRAIN_THREADS).expect("a few million items");
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..DRAIN_THREADS {
            scope.spawn(|| {
                for _ in 0..each / BARE_BATCH {
                    std::thread::sleep(PER_ITEM * BARE_BATCH);
                }
            });
        }
    });
    ITEMS as f64 / start.elapsed().as_secs_f64()
}

/// Returns items per second, the load ratio of each interval, and the numbers of moves and of
/// partitions that were taken over.
#[allow(clippy::cast_precision_loss)]
fn run(queue: BatchQueue<Metric>) -> (f64, Vec<f64>, (u64, u64)) {
    let (queue, slots) = (Arc::new(queue), Arc::new(slots()));
    let observed = Arc::downgrade(&queue);
    let watcher = std::thread::spawn(move || {
        let mut ratios = Vec::new();
        let mut before = vec![0; DRAIN_THREADS];
        loop {
            std::thread::sleep(INTERVAL);
            let Some(queue) = observed.upgrade().filter(|queue| queue.is_running()) else {
                return ratios;
            };
            let items: Vec<u64> =
                queue.stats().drain_threads.iter().map(|thread| thread.items).collect();
            let done = items.iter().zip(&before).map(|(now, before)| (now - before) as f64);
            let (least, most) = done.fold((f64::MAX, 0.0_f64), |(least, most), items| {
                (least.min(items), most.max(items))
            });
            ratios.push(most / least.max(1.0));
            before = items;
        }
    });
    let start = produce_all(&queue, &slots, ITEMS);
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    let rate = ITEMS as f64 / start.elapsed().as_secs_f64();
    let stats = queue.stats();
    assert_eq!(queue.shutdown(None), 0);
    let ratios = watcher.join().expect("a watcher that does not panic");
    (rate, ratios, (stats.moves, stats.taken_over))
}

/// Runs and prints the result. Returns the share of the ideal, and the ratios of the full
/// intervals.
fn show(name: &str, queue: BatchQueue<Metric>, ideal: f64) -> (f64, Vec<f64>) {
    let (rate, mut ratios, (moves, taken_over)) = run(queue);
    // The last interval is partial: the producers stop in it.
    ratios.pop();
    let shown: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    println!(
        "{name:<22} {rate:>9.0} items/s, {:.3} of bare, {moves} moves, {taken_over} taken over, \
         items per thread, max/min of each {INTERVAL:?}: {}",
        rate / ideal,
        shown.join(" ")
    );
    (rate / ideal, ratios)
}

fn main() {
    if is_test_run() {
        return;
    }
    println!("{DRAIN_THREADS} drain threads, {ITEMS} items, {PER_ITEM:?} of sleep each");
    let ideal = bare_sleepers();
    println!("{:<22} {ideal:>9.0} items/s", "bare sleepers");
    let (fixed, ratios) = show("static", queue(None, HOUR), ideal);
    let uneven = median(ratios);
    let balancer = || Some(DrainBalancer::throughput_weighted());
    let (moved, ratios) = show("throughput_weighted", queue(balancer(), HOUR), ideal);
    let even = ratios.into_iter().skip(2).fold(0.0, f64::max);
    let takeover_after = Config::default().takeover_after;
    let (both, _) = show("and take-over", queue(balancer(), takeover_after), ideal);
    Line {
        row: "1",
        workload: "headline, handlers sleep 20 µs per item",
        wanted: "static ratio at least 1.3; rebalanced: at least 0.97 of bare sleepers, ratio at \
                 most 1.15 from the third interval; with take-over as well: at least 0.97",
    }
    .print(
        uneven >= 1.3 && moved >= 0.97 && even <= 1.15 && both >= 0.97,
        &format!(
            "static {fixed:.3} at ratio {uneven:.2}; rebalanced {moved:.3}, ratio at most \
             {even:.2}; with take-over {both:.3}"
        ),
    );
}
