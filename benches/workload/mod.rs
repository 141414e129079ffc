//! The workload shared by several benches, and their helpers.
//!
//! *Headline*: 16 producers, 100 types (20 of weight 24, 30 of 8, 20 of 4, 30 of 1: 830 slots,
//! shuffled; producer `p` starts at slot `p · 830 / 16`), 4 drain threads, adaptive partitions,
//! 2,000 items per partition, BLOCKING, idle 1 to 50 ms.

#![allow(dead_code)] // Each bench uses a part of it.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use batchqueue::{BatchQueue, Config, Item, PartitionPolicy, ThreadPolicy, TypeKey};

pub const DRAIN_THREADS: usize = 4;
pub const PRODUCERS: usize = 16;
pub const TIERS: [(usize, usize); 4] = [(20, 24), (30, 8), (20, 4), (30, 1)];
pub const TYPES: usize = 100;

/// An item of 16 bytes, the size of a pointer and its type.
#[derive(Debug)]
pub struct Metric {
    pub kind: usize,
    pub value: u64,
}

impl Item for Metric {
    fn type_key(&self) -> TypeKey {
        TypeKey(self.kind)
    }
}

/// A linear congruential generator (Knuth, MMIX).
pub struct Lcg(pub u64);

impl Lcg {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % limit
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = self.below(last + 1);
            list.swap(last, other);
        }
    }
}

/// Shuffles with a fixed seed.
pub fn shuffle<T>(list: &mut [T]) {
    Lcg(42).shuffle(list);
}

/// Returns one slot per unit of weight, shuffled.
pub fn slots() -> Vec<usize> {
    let weights = TIERS.iter().flat_map(|&(types, weight)| std::iter::repeat_n(weight, types));
    let mut slots: Vec<usize> =
        weights.enumerate().flat_map(|(kind, weight)| std::iter::repeat_n(kind, weight)).collect();
    shuffle(&mut slots);
    slots
}

pub fn headline_config() -> Config {
    Config {
        threads: ThreadPolicy::fixed(DRAIN_THREADS).expect("a valid count"),
        partitions: PartitionPolicy::adaptive(25).expect("a valid multiplier"),
        buffer_size: 2_000,
        min_idle: Duration::from_millis(1),
        max_idle: Duration::from_millis(50),
        ..Config::default()
    }
}

/// Produces `items` items, one `produce` each, from all producers concurrently. Returns the time of
/// the first put.
pub fn produce_all(
    queue: &Arc<BatchQueue<Metric>>,
    slots: &Arc<Vec<usize>>,
    items: usize,
) -> Instant {
    let start_line = Arc::new(Barrier::new(PRODUCERS));
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let (queue, slots, start_line) = (queue.clone(), slots.clone(), start_line.clone());
            std::thread::spawn(move || {
                let mut slot = producer * slots.len() / PRODUCERS;
                start_line.wait();
                // Each producer reads the clock itself: the thread that waits for them may be
                // scheduled late.
                let start = Instant::now();
                for value in 0..(items / PRODUCERS) as u64 {
                    queue.produce(Metric { kind: slots[slot], value }).expect("a running queue");
                    slot = if slot + 1 == slots.len() { 0 } else { slot + 1 };
                }
                start
            })
        })
        .collect();
    let starts = producers
        .into_iter()
        .map(|producer| producer.join().expect("a producer that does not panic"));
    starts.min().expect("there are producers")
}

/// Whether the bench runs under `cargo test`, which passes `--test`.
pub fn is_test_run() -> bool {
    std::env::args().any(|word| word == "--test")
}

pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// One row of the table in `docs/figures/benchmarks.md`, which `make report` collects from the
/// output of the benches.
pub struct Line {
    pub row: &'static str,
    pub workload: &'static str,
    pub wanted: &'static str,
}

impl Line {
    pub fn print(&self, met: bool, figure: &str) {
        let met = if met { "yes" } else { "no" };
        println!("| {} | {} | {} | {figure} | {met} |", self.row, self.workload, self.wanted);
    }
}
