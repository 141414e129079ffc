//! A simulation of drain threads under a balancer, in steps of a millisecond: what the pure
//! functions of this folder do to the work that gets done, minute after minute.
//!
//! It has no locks, caches or interpreter. A call takes the time that its profile says. Take-over
//! is a rougher one: what a thread that has been in a call for 20 ms would serve goes to the thread
//! with the fewest partitions, and stays there. Slow calls leave one thread free.

mod profiles;

use super::meter::{Measure, Meter, Sample};
use super::plan::{hold_back, plan_around};
use super::workloads::Lcg;
use crate::config::DrainBalancer;
use crate::sync::{Duration, Instant};

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
    /// Seconds of a call, and in addition of each of its items.
    call: f64,
    item: f64,
    /// Each step, its producers try to put so many items in, and are refused without room.
    retries: u64,
}

/// Items that arrive at random times, and take so many seconds each.
fn open(rate: f64, item: f64) -> Traffic {
    Traffic { rate, call: 0.0, item, retries: 0 }
}

/// A buffer that is always full, and calls of so many seconds.
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
    /// A producer that puts an item into each partition in turn, and waits while that is full: its
    /// next partition.
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
    /// The partitions belong to the threads in turn.
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

    /// Runs for so many seconds, and returns the items that each partition handled in them.
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

    /// One step of a thread: as many calls as fit, and the beginning of one that does not.
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

    /// The next call of a thread: of its partitions, the first with items after the one that it
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

    /// Whether a slow call leaves a thread to the quick ones, if there are any.
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

    /// What the rebalancer does with a queue.
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

    /// As in a queue whose balancer runs every second.
    fn is_stuck(&self, thread: usize) -> bool {
        self.threads[thread].call.is_some_and(|call| call.took - call.left > 0.5)
    }
}
