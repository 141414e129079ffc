//! A balancer that follows a shift of the load and then stays put: the workload *headline*, see
//! `workload`, with handlers that sleep 20 µs per item and `throughput_weighted` every half second.
//! A `takeover_after` of an hour leaves the work to the balancer: with calls of up to 40 ms,
//! take-over alone would even out the load, and threads would not keep their partitions.
//!
//! The run begins with the original tiers; then the hot spot shifts, as the list of weights is
//! reversed; then up to 3 % of noise is added to the new weights, redrawn every half second.
//! Prints, for each half second, the load ratio of the balancer's last interval and the moves. Run
//! with `cargo bench --bench shift`; it takes half a minute.

mod workload;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use batchqueue::{Batch, BatchQueue, Config, DrainBalancer, HandlerRef, TypeKey};
use workload::{Lcg, Line, Metric, PRODUCERS, TIERS, TYPES, headline_config, is_test_run};

const PER_ITEM: Duration = Duration::from_micros(20);
const INTERVAL: Duration = Duration::from_millis(500);
/// Long enough for partitions to stay with threads that are in a call.
const HOUR: Duration = Duration::from_secs(3_600);
/// The number of intervals before the shift, after it, and with noise.
const BEFORE: usize = 8;
const AFTER: usize = 12;
const NOISY: usize = 24;
/// Slots per unit of weight: enough for 3 % of noise to show even in light types.
const GRAIN: usize = 100;

fn slots(weights: impl Iterator<Item = usize>, lcg: &mut Lcg) -> Vec<usize> {
    let mut slots: Vec<usize> =
        weights.enumerate().flat_map(|(kind, count)| std::iter::repeat_n(kind, count)).collect();
    lcg.shuffle(&mut slots);
    slots
}

/// Returns the types that the producers produce, for each interval.
fn phases() -> Vec<Vec<usize>> {
    let mut lcg = Lcg(42);
    let mut weights: Vec<usize> = TIERS
        .iter()
        .flat_map(|&(types, weight)| std::iter::repeat_n(weight * GRAIN, types))
        .collect();
    lcg.shuffle(&mut weights);
    let before = slots(weights.iter().copied(), &mut lcg);
    weights.reverse();
    let after = slots(weights.iter().copied(), &mut lcg);
    let noisy = (0..NOISY).map(|_| {
        let noise: Vec<usize> =
            weights.iter().map(|weight| weight * (970 + lcg.below(61)) / 1_000).collect();
        slots(noise.into_iter(), &mut lcg)
    });
    let noisy: Vec<_> = noisy.collect();
    std::iter::repeat_n(before, BEFORE)
        .chain(std::iter::repeat_n(after, AFTER))
        .chain(noisy)
        .collect()
}

fn main() {
    if is_test_run() {
        return;
    }
    let config = Config {
        balancer: Some(DrainBalancer::throughput_weighted()),
        takeover_after: HOUR,
        rebalance_interval: INTERVAL,
        ..headline_config()
    };
    let queue = BatchQueue::builder("shift", config).start().expect("a valid config");
    for kind in 0..TYPES {
        let sleep = |batch: &mut Batch<Metric>| {
            std::thread::sleep(PER_ITEM * u32::try_from(batch.len()).unwrap_or(u32::MAX));
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(sleep)).expect("a new type");
    }
    let (phases, phase, over) = (phases(), AtomicUsize::new(0), AtomicBool::new(false));
    let (mut ratios, mut moves) = (Vec::new(), Vec::new());
    let queue = Arc::new(queue);
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (queue, phases, phase, over) = (&queue, &phases, &phase, &over);
            scope.spawn(move || {
                let mut step = 0;
                while !over.load(Ordering::Relaxed) {
                    let slots = &phases[phase.load(Ordering::Relaxed)];
                    let kind = slots[(producer * slots.len() / PRODUCERS + step) % slots.len()];
                    queue.produce(Metric { kind, value: 0 }).expect("a running queue");
                    step += 1;
                }
            });
        }
        let (start, mut all_moves) = (Instant::now(), 0);
        for number in 0..phases.len() {
            phase.store(number, Ordering::Relaxed);
            let end = INTERVAL * u32::try_from(number + 1).expect("a few intervals");
            std::thread::sleep(end.saturating_sub(start.elapsed()));
            let stats = queue.stats();
            ratios.push(stats.load_ratio);
            moves.push(stats.moves - all_moves);
            all_moves = stats.moves;
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(queue.shutdown(None), 0);
    let parts = [
        ("before", 0..BEFORE),
        ("hot spot moved", BEFORE..BEFORE + AFTER),
        ("noise", BEFORE + AFTER..phases.len()),
    ];
    for (name, part) in parts {
        let shown: Vec<String> =
            part.map(|number| format!("{:.2} ({})", ratios[number], moves[number])).collect();
        println!("{name}: {}", shown.join(" "));
    }
    // The hot spot shifts somewhere inside an interval of the balancer. The next interval is the
    // first full one with the new load, and partitions move at its end; the one after it is the
    // second.
    let worst = ratios[BEFORE + 2..].iter().copied().fold(0.0_f64, f64::max);
    let in_noise: u64 = moves[BEFORE + AFTER..].iter().sum();
    Line {
        row: "7",
        workload: "hot spot moves, then ±3 % noise",
        wanted: "load ratio at most 1.15 from the second full interval; 0 moves after settling",
    }
    .print(
        worst <= 1.15 && in_noise == 0,
        &format!("at most {worst:.2}; {in_noise} moves in {NOISY} noisy intervals"),
    );
}
