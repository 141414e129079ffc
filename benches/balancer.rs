//! The balancer alone, as a balanced queue calls it: from loads and owners to wanted owners,
//! including stickiness.
//!
//! Partitions × threads: 500 × 8 and 100,000 × 64. Loads: *zipf* (1/k) and *tiers* (the shares of
//! `headline`: 20 % of weight 24, 30 % of 8, 20 % of 4, 30 % of 1), both shuffled by a fixed
//! generator. Owners: *first*, the initial index mod threads; *settled*, the plan for these loads,
//! after which each load changes by up to 3 %. The skip ratio is 1, so that no call is skipped. Run
//! with `cargo bench --bench balancer`.

mod workload;

use std::hint::black_box;

use batchqueue::DrainBalancer;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use workload::{Lcg, TIERS};

/// Returns a factor from 0.97 to 1.03.
fn noise(lcg: &mut Lcg) -> f64 {
    0.97 + 0.06 * f64::from(u32::try_from(lcg.below(1_000_001)).unwrap_or(0)) / 1e6
}

fn zipf(partitions: usize) -> Vec<f64> {
    (1..=u32::try_from(partitions).unwrap_or(u32::MAX)).map(|k| 1.0 / f64::from(k)).collect()
}

fn tiers(partitions: usize) -> Vec<f64> {
    let part = |&(percent, weight): &(usize, usize)| {
        let load = f64::from(u32::try_from(weight).unwrap_or(u32::MAX));
        std::iter::repeat_n(load, partitions * percent / 100)
    };
    TIERS.iter().flat_map(part).collect()
}

fn balancer(criterion: &mut Criterion) {
    let balancer =
        DrainBalancer::throughput_weighted().with_skip_ratio(1.0).expect("a valid ratio");
    let plan = |load: &[f64], owner: &[usize], threads| {
        balancer
            .plan(load, owner, threads)
            .expect("a weighted balancer does not fail")
            .expect("no call is skipped")
    };
    let mut group = criterion.benchmark_group("balancer");
    for (partitions, threads) in [(500, 8), (100_000, 64)] {
        let size = format!("{partitions}x{threads}");
        for (name, loads) in [("zipf", zipf(partitions)), ("tiers", tiers(partitions))] {
            let mut lcg = Lcg(42);
            let mut load = loads;
            lcg.shuffle(&mut load);
            let first: Vec<usize> = (0..partitions).map(|partition| partition % threads).collect();
            let settled = plan(&load, &first, threads);
            let noisy: Vec<f64> = load.iter().map(|load| load * noise(&mut lcg)).collect();
            for (owners, load, owner) in [("first", &load, &first), ("settled", &noisy, &settled)] {
                let id = BenchmarkId::new(format!("{name}-{owners}"), &size);
                group.bench_function(id, |bencher| {
                    bencher.iter(|| plan(black_box(load), black_box(owner), threads));
                });
            }
        }
    }
    group.finish();
}

criterion_group!(benches, balancer);
criterion_main!(benches);
