//! A simulation of drain threads under a balancer, in steps of a millisecond: shows the effect of
//! this folder's pure functions on throughput, minute by minute.
//!
//! There are no locks, caches or interpreter. A call takes the time that its profile says.
//! Take-over is simplified: the partitions of a thread that has been in a call for 20 ms go to the
//! thread with the fewest partitions, and stay there. Slow calls leave one thread free.

use proptest::collection::{SizeRange, vec};
use proptest::prelude::*;

use crate::balance::plan::{Ranked, deal, hold_back, plan_around};
use crate::config::DrainBalancer;
use crate::control::meter::{Measure, Meter, Sample};
use crate::sync::{Duration, Instant};

/// LPT by partition. One without load goes to index mod threads, like a new one.
pub(super) fn lpt(load: &[f64], threads: usize) -> Vec<usize> {
    let threads = threads.max(1);
    let ranked = Ranked::new(load);
    let mut bins: Vec<usize> = (0..load.len()).map(|partition| partition % threads).collect();
    for (partition, bin) in ranked.partition.iter().zip(deal(&ranked, threads)) {
        bins[*partition as usize] = bin as usize;
    }
    bins
}

/// A step, in seconds.
const STEP: f64 = 0.001;

const STEPS_PER_SECOND: usize = 1_000;

const TAKE_OVER_AFTER: f64 = 0.02;

const SLOW: f64 = 0.1;

/// The traffic of one partition, which holds one type.
#[derive(Clone, Copy)]
struct Traffic {
    /// Items per second that arrive at random times.
    rate: f64,
    /// Seconds per call, and in addition per item of the call.
    call: f64,
    item: f64,
    /// The number of items that producers try to put in per step; they are refused without room.
    retries: u64,
}

/// Items that arrive at random times and take `item` seconds each.
fn open(rate: f64, item: f64) -> Traffic {
    Traffic { rate, call: 0.0, item, retries: 0 }
}

/// A buffer that is always full, and calls of `call` seconds.
fn saturated(call: f64) -> Traffic {
    Traffic { rate: 0.0, call, item: 0.0, retries: 1_000 }
}

#[derive(Clone)]
struct Partition {
    traffic: Traffic,
    owner: usize,
    queued: u64,
    counts: Sample,
    is_called: bool,
    is_slow: bool,
}

#[derive(Clone, Copy)]
struct Call {
    partition: usize,
    items: u64,
    took: f64,
    left: f64,
}

#[derive(Clone, Default)]
struct Thread {
    call: Option<Call>,
    last_served: usize,
    busy: f64,
}

struct Simulation {
    balancer: Option<DrainBalancer>,
    takes_over: bool,
    partitions: Vec<Partition>,
    threads: Vec<Thread>,
    /// The next partition of a producer that puts an item into each partition in turn, and waits
    /// while it is full.
    in_turn: Option<usize>,
    buffer: u64,
    batch: u64,
    step: usize,
    start: Instant,
    meter: Meter,
    random: Lcg,
    moves: usize,
    /// The moves of each run of the balancer.
    runs: Vec<usize>,
}

impl Simulation {
    /// Creates a queue whose partitions belong to the threads in turn.
    fn new(threads: usize, traffic: &[Traffic]) -> Self {
        let partition = |(index, &traffic): (usize, &Traffic)| Partition {
            traffic,
            owner: index % threads,
            queued: 0,
            counts: Sample::default(),
            is_called: false,
            is_slow: false,
        };
        Self {
            balancer: None,
            takes_over: true,
            partitions: traffic.iter().enumerate().map(partition).collect(),
            threads: vec![Thread::default(); threads],
            in_turn: None,
            buffer: 1_000,
            batch: 100,
            step: 0,
            start: Instant::now(),
            meter: Meter::new(),
            random: Lcg::new(42),
            moves: 0,
            runs: Vec::new(),
        }
    }

    fn balanced_by(mut self, balancer: DrainBalancer) -> Self {
        self.balancer = Some(balancer);
        self
    }

    fn all_on_thread(mut self, thread: usize) -> Self {
        for partition in &mut self.partitions {
            partition.owner = thread;
        }
        self
    }

    fn without_take_over(mut self) -> Self {
        self.takes_over = false;
        self
    }

    fn with_producer_in_turn(mut self) -> Self {
        self.in_turn = Some(0);
        self
    }

    /// Runs for this many seconds. Returns the number of items that each partition handled.
    fn run(&mut self, seconds: usize) -> Vec<u64> {
        let before = self.handled();
        for _ in 0..seconds * STEPS_PER_SECOND {
            self.produce();
            for thread in 0..self.threads.len() {
                self.work(thread);
            }
            self.step += 1;
            if self.takes_over && self.step.is_multiple_of(20) {
                self.take_over();
            }
            if self.balancer.is_some() && self.step.is_multiple_of(STEPS_PER_SECOND) {
                self.rebalance();
            }
        }
        self.handled().iter().zip(before).map(|(now, before)| now - before).collect()
    }

    fn handled(&self) -> Vec<u64> {
        self.partitions.iter().map(|partition| partition.counts.settled).collect()
    }

    // ---- producers

    fn produce(&mut self) {
        for index in 0..self.partitions.len() {
            let Traffic { rate, retries, .. } = self.partitions[index].traffic;
            let arrivals = self.random.poisson(rate * STEP);
            self.put(index, arrivals + retries);
        }
        while let Some(next) = self.in_turn
            && self.partitions[next].queued < self.buffer
        {
            self.put(next, 1);
            self.in_turn = Some((next + 1) % self.partitions.len());
        }
    }

    fn put(&mut self, index: usize, items: u64) {
        let partition = &mut self.partitions[index];
        let accepted = items.min(self.buffer - partition.queued);
        partition.queued += accepted;
        partition.counts.attempts += items;
        partition.counts.accepted += accepted;
    }

    // ---- drain threads

    /// Runs one step of a thread: as many calls as fit, and the beginning of one that does not.
    fn work(&mut self, thread: usize) {
        let mut left = STEP;
        while left > 0.0 {
            let Some(mut call) = self.threads[thread].call.take().or_else(|| self.begin(thread))
            else {
                return;
            };
            let now = call.left.min(left);
            (call.left, left) = (call.left - now, left - now);
            self.threads[thread].busy += now;
            if call.left > 0.0 {
                self.threads[thread].call = Some(call);
                return;
            }
            let partition = &mut self.partitions[call.partition];
            partition.counts.settled += call.items;
            partition.counts.add_call(Duration::from_secs_f64(call.took));
            partition.is_called = false;
            partition.is_slow = call.took > SLOW;
        }
    }

    /// Begins a thread's next call, for the first of its partitions with items after the one it
    /// served last.
    fn begin(&mut self, thread: usize) -> Option<Call> {
        let count = self.partitions.len();
        let last = self.threads[thread].last_served;
        let in_turn = (1..=count).map(|step| (last + step) % count);
        let has_work = |&index: &usize| {
            let partition = &self.partitions[index];
            let may_call = !partition.is_slow || self.may_call_slow();
            partition.owner == thread && partition.queued > 0 && !partition.is_called && may_call
        };
        let index = in_turn.clone().find(has_work)?;
        let partition = &mut self.partitions[index];
        let items = partition.queued.min(self.batch);
        partition.queued -= items;
        partition.is_called = true;
        self.threads[thread].last_served = index;
        #[allow(clippy::cast_precision_loss)] // a batch
        let took = partition.traffic.call + partition.traffic.item * items as f64;
        Some(Call { partition: index, items, took, left: took })
    }

    /// Whether a slow call would leave a thread to quick calls, if there are any.
    fn may_call_slow(&self) -> bool {
        let in_slow = |thread: &&Thread| {
            thread.call.is_some_and(|call| self.partitions[call.partition].is_slow)
        };
        let slow = self.threads.iter().filter(in_slow).count();
        let has_quick = self.partitions.iter().any(|partition| !partition.is_slow);
        !has_quick || slow + 1 < self.threads.len()
    }

    fn is_away(&self, thread: usize) -> bool {
        self.threads[thread].call.is_some_and(|call| call.took - call.left >= TAKE_OVER_AFTER)
    }

    fn take_over(&mut self) {
        for index in 0..self.partitions.len() {
            let partition = &self.partitions[index];
            if partition.queued == 0 || partition.is_called || !self.is_away(partition.owner) {
                continue;
            }
            let here = (0..self.threads.len()).filter(|&thread| !self.is_away(thread));
            let owned = |thread: &usize| {
                self.partitions.iter().filter(|other| other.owner == *thread).count()
            };
            if let Some(to) = here.min_by_key(owned) {
                self.partitions[index].owner = to;
            }
        }
    }

    // ---- the balancer

    /// Balances like the rebalancer of a queue.
    fn rebalance(&mut self) {
        let Some(balancer) = &self.balancer else { return };
        let threads = self.threads.len();
        let now = self.start + Duration::from_millis(self.step as u64);
        let mut samples: Vec<Sample> = self.partitions.iter().map(|each| each.counts).collect();
        for call in self.threads.iter().filter_map(|thread| thread.call) {
            samples[call.partition].add_call(Duration::from_secs_f64(call.took - call.left));
        }
        let measure = if balancer.is_load_weighted() { Measure::Busy } else { Measure::Attempts };
        let reading = self.meter.reading(samples, measure, now);
        let load = reading.load().to_vec();
        let owner: Vec<usize> = self.partitions.iter().map(|each| each.owner).collect();
        let busy = self.threads.iter().map(|thread| Duration::from_secs_f64(thread.busy));
        let busy = self.meter.busy_shares(busy.collect(), now);
        let away: Vec<bool> = (0..threads).map(|thread| self.is_stuck(thread)).collect();
        let mut moves = 0;
        if self.meter.weigh(reading, &owner, threads) {
            let plan = |load: &[f64], owner: &[usize], threads| balancer.plan(load, owner, threads);
            if let Some(mut plan) = plan_around(&away, &load, &owner, plan).unwrap() {
                hold_back(&mut plan, &owner, &away, &busy);
                for (partition, to) in self.partitions.iter_mut().zip(plan) {
                    moves += usize::from(partition.owner != to);
                    partition.owner = to;
                }
            }
        }
        self.moves += moves;
        self.runs.push(moves);
    }

    /// Whether a thread is stuck, as in a queue whose balancer runs every second.
    fn is_stuck(&self, thread: usize) -> bool {
        self.threads[thread].call.is_some_and(|call| call.took - call.left > 0.5)
    }
}

// The balancers under each kind of traffic.

fn load() -> DrainBalancer {
    DrainBalancer::load_weighted()
}

fn throughput() -> DrainBalancer {
    DrainBalancer::throughput_weighted()
}

fn total(handled: &[u64]) -> u64 {
    handled.iter().sum()
}

/// At 30 % of the threads' capacity, all differences are chance.
#[test]
fn equal_partitions_stay_where_they_are() {
    for (balancer, rate) in [(load(), 300.0), (throughput(), 300.0), (load(), 3.0)] {
        let mut simulation = Simulation::new(4, &[open(rate, 0.0005); 8]).balanced_by(balancer);
        simulation.run(300);
        assert!(simulation.moves <= 8, "{:?}", simulation.runs);
    }
}

/// All partitions with traffic belong to one thread, which is overloaded. The balancer alone has to
/// find out.
#[test]
fn all_traffic_on_one_thread_is_spread_by_the_second_run() {
    for balancer in [load(), throughput()] {
        let traffic: Vec<Traffic> = (0..16)
            .map(|index| {
                if usize::is_multiple_of(index, 4) {
                    open(1_000.0, 0.0008)
                } else {
                    open(0.0, 0.0008)
                }
            })
            .collect();
        let simulation = Simulation::new(4, &traffic).without_take_over();
        let mut simulation = simulation.balanced_by(balancer);
        simulation.run(5);
        let handled = total(&simulation.run(10));
        assert!(handled > 39_000, "{handled} of 40,000, moves {:?}", simulation.runs);
        assert_eq!(simulation.runs[5..].iter().sum::<usize>(), 0, "{:?}", simulation.runs);
    }
}

/// Busy types change places with the others every 20 seconds. The balancer alone has to find out.
#[test]
fn a_shift_is_followed_within_a_few_seconds() {
    let traffic = |shift: usize| -> Vec<Traffic> {
        (0..8)
            .map(|index| {
                open(if usize::is_multiple_of(index + shift, 2) { 450.0 } else { 10.0 }, 0.001)
            })
            .collect()
    };
    let mut simulation = Simulation::new(2, &traffic(0)).without_take_over().balanced_by(load());
    for shift in 0..6 {
        for (partition, traffic) in simulation.partitions.iter_mut().zip(traffic(shift)) {
            partition.traffic = traffic;
        }
        simulation.run(5);
        let handled = total(&simulation.run(15));
        assert!(handled > 15 * 1_780, "{handled}, moves {:?}", simulation.runs);
    }
}

/// Calls of 1.6 or 30 seconds, all on one of two threads, which would run one call at a time.
/// Take-over reacts within 20 ms; the balancer must not undo it.
#[test]
fn slow_calls_of_one_thread_use_both() {
    for call in [1.6, 30.0] {
        let simulation = || Simulation::new(2, &[saturated(call); 4]).all_on_thread(0);
        let calls = |mut simulation: Simulation| {
            simulation.run(60);
            total(&simulation.run(600))
        };
        let fixed = calls(simulation().without_take_over());
        let balanced = calls(simulation().balanced_by(load()));
        assert!(10 * balanced >= 18 * fixed, "{balanced} beside {fixed} with calls of {call} s");
    }
}

/// Two types of 200 ms beside six of 1 ms, behind a producer that waits for each in turn: no
/// balancer may lower the rate.
#[test]
fn a_closed_loop_keeps_its_rate() {
    let quiet = |call| Traffic { retries: 0, ..saturated(call) };
    let mut traffic = [quiet(0.001); 8];
    traffic[0] = quiet(0.2);
    traffic[1] = quiet(0.2);
    let simulation = || Simulation::new(2, &traffic).with_producer_in_turn();
    let rate = |mut simulation: Simulation| {
        simulation.run(20);
        (total(&simulation.run(120)), simulation.runs)
    };
    let (fixed, _) = rate(simulation());
    for balancer in [load(), throughput()] {
        let name = format!("{balancer:?}");
        let (balanced, runs) = rate(simulation().balanced_by(balancer));
        assert!(100 * balanced >= 95 * fixed, "{name}: {balanced} beside {fixed}, moves {runs:?}");
    }
}

/// Two slow types, and six quick ones whose producers do not wait. Without take-over, each slow
/// call holds up three quick types.
#[test]
fn quick_types_beside_slow_ones_lose_little() {
    let mut traffic = [open(1_000.0, 0.000_02); 8];
    traffic[0] = saturated(0.2);
    traffic[1] = saturated(0.2);
    for balancer in [load(), throughput()] {
        let name = format!("{balancer:?}");
        let mut simulation = Simulation::new(2, &traffic).balanced_by(balancer);
        simulation.run(20);
        let quick = total(&simulation.run(120)[2..]);
        assert!(quick >= 99 * 120 * 6_000 / 100, "{name}: {quick} of {}", 120 * 6_000);
    }
}

/// A producer that retries a million times a second, without room, adds no demand. Its type does
/// not get a thread to itself: seven quick types need 1.4 of two threads.
#[test]
fn refused_attempts_draw_no_thread() {
    let mut traffic = [open(1_000.0, 0.0002); 8];
    traffic[0] = Traffic { retries: 1_000, ..open(0.0, 0.001) };
    let mut simulation =
        Simulation { batch: 15, ..Simulation::new(2, &traffic).balanced_by(throughput()) };
    simulation.run(20);
    let quick = total(&simulation.run(60)[1..]);
    let wanted = 60 * 7 * 1_000;
    assert!(quick >= 80 * wanted / 100, "{quick} of {wanted}, moves {:?}", simulation.runs);
}

/// One type keeps its thread busy with few items; seven types with many items do not fill the
/// other. Low demand on the first thread does not mean that it has time.
#[test]
fn a_busy_thread_that_is_asked_for_little_gets_no_more() {
    let mut traffic = [open(1_000.0, 0.000_05); 8];
    traffic[0] = open(100.0, 0.01);
    let mut simulation =
        Simulation { batch: 1, ..Simulation::new(2, &traffic).balanced_by(throughput()) };
    for partition in &mut simulation.partitions[1..] {
        partition.owner = 1;
    }
    simulation.run(10);
    let quick = total(&simulation.run(60)[1..]);
    let wanted = 60 * 7 * 1_000;
    assert!(quick >= 98 * wanted / 100, "{quick} of {wanted}, moves {:?}", simulation.runs);
}

// Loads for the tests of this module.

/// The loads of the headline bench: 20 % of weight 24, 30 % of 8, 20 % of 4, 30 % of 1.
pub(crate) fn tiers(partitions: usize) -> Vec<f64> {
    let tiers = [(20, 24.0), (30, 8.0), (20, 4.0), (30, 1.0)];
    let tiers = tiers
        .iter()
        .flat_map(|(percent, weight)| std::iter::repeat_n(*weight, partitions * percent / 100));
    Lcg(42).shuffled(tiers.collect())
}

/// Loads of 1/k.
pub(crate) fn zipf(partitions: u32) -> Vec<f64> {
    Lcg(42).shuffled((1..=partitions).map(|k| 1.0 / f64::from(k)).collect())
}

/// Equal loads.
pub(crate) fn uniform(partitions: usize) -> Vec<f64> {
    vec![10.0; partitions]
}

/// The initial owners in a queue: index mod threads.
pub(crate) fn first_owners(partitions: usize, threads: usize) -> Vec<usize> {
    (0..partitions).map(|partition| partition % threads).collect()
}

/// Each load times a factor from 0.97 to 1.03.
pub(crate) fn noisy(load: &[f64], seed: u64) -> Vec<f64> {
    let mut lcg = Lcg(seed);
    load.iter().map(|load| load * (0.97 + 0.06 * f64::from(lcg.below(1_000_001)) / 1e6)).collect()
}

pub(crate) fn sum(load: &[f64]) -> f64 {
    load.iter().sum()
}

/// Loads of one kind per case: small counts with zeros and many ties, arbitrary values, or values
/// across 21 decades.
pub(crate) fn loads(partitions: impl Into<SizeRange>) -> impl Strategy<Value = Vec<f64>> {
    let partitions = partitions.into();
    prop_oneof![
        vec((0..12_u32).prop_map(f64::from), partitions.clone()),
        vec(0.0..100.0_f64, partitions.clone()),
        vec((-3.0..18.0_f64).prop_map(|decade| 10_f64.powf(decade)), partitions),
    ]
}

/// A linear congruential generator (Knuth, MMIX).
pub(crate) struct Lcg(u64);

impl Lcg {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A count with this mean (Knuth's product of uniform numbers; for means of a few units).
    pub(crate) fn poisson(&mut self, mean: f64) -> u64 {
        let (least, mut product, mut count) = ((-mean).exp(), 1.0, 0);
        loop {
            product *= f64::from(self.below(1_000_001)) / 1e6;
            if product <= least {
                return count;
            }
            count += 1;
        }
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(limit)).expect("below a u32")
    }

    fn shuffled(&mut self, mut loads: Vec<f64>) -> Vec<f64> {
        for last in (1..loads.len()).rev() {
            let other = self.below(u32::try_from(last + 1).expect("a few loads")) as usize;
            loads.swap(last, other);
        }
        loads
    }
}
