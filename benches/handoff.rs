//! How long a handoff takes while every drain thread is busy: the workload *headline*, see
//! `workload`, with handlers that sleep 20 µs per item. A balancer moves one partition after
//! another to the next thread.
//!
//! A handoff waits only for the end of the old owner's cycle, so it is compared with the longest
//! cycle, as observed from outside. Run with `cargo bench --bench handoff`; it takes about 20
//! seconds.

mod workload;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{Assign, Batch, BatchQueue, Config, DrainBalancer, HandlerRef, TypeKey, Wait};
use workload::{
    DRAIN_THREADS, Line, Metric, TYPES, headline_config, is_test_run, produce_all, slots,
};

const PER_ITEM: Duration = Duration::from_micros(20);
const ITEMS: usize = 160_000;
const ROUNDS: usize = 20;
/// The pause between two moves.
const PAUSE: Duration = Duration::from_millis(10);

/// Moves the next partition to the next thread at each call.
struct Carousel(AtomicUsize);

impl Assign for Carousel {
    fn assign(
        &self,
        _: &[f64],
        owner: &[usize],
        threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        let mut wanted = owner.to_vec();
        let partition = self.0.fetch_add(1, Ordering::Relaxed) % wanted.len();
        wanted[partition] = (wanted[partition] + 1) % threads;
        Ok(Some(wanted))
    }
}

struct Round {
    moves: u64,
    refused: u64,
    longest_handoff: Duration,
    longest_cycle: Duration,
}

fn round(slots: &Arc<Vec<usize>>) -> Round {
    let balancer = DrainBalancer::custom(Arc::new(Carousel(AtomicUsize::new(0))));
    let rebalance_interval = Duration::from_secs(3600);
    let config = Config { balancer: Some(balancer), rebalance_interval, ..headline_config() };
    let queue = BatchQueue::builder("handoff", config).start().expect("a valid config");
    for kind in 0..TYPES {
        let sleep = |batch: &mut Batch<Metric>| {
            std::thread::sleep(PER_ITEM * u32::try_from(batch.len()).unwrap_or(u32::MAX));
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(sleep)).expect("a new type");
    }
    let queue = Arc::new(queue);
    let longest_cycle = Arc::new(Mutex::new(Duration::ZERO));
    let watcher = {
        let (queue, longest) = (Arc::downgrade(&queue), longest_cycle.clone());
        std::thread::spawn(move || {
            let mut last = vec![(0, Instant::now()); DRAIN_THREADS];
            while let Some(queue) = queue.upgrade().filter(|queue| queue.is_running()) {
                for (thread, last) in queue.stats().drain_threads.iter().zip(&mut last) {
                    if thread.cycles != last.0 {
                        let mut longest = longest.lock().expect("no panic under the lock");
                        *longest = longest.max(last.1.elapsed());
                        *last = (thread.cycles, Instant::now());
                    }
                }
                drop(queue);
                std::thread::sleep(Duration::from_micros(200));
            }
        })
    };
    let mover = {
        let queue = Arc::downgrade(&queue);
        std::thread::spawn(move || {
            while let Some(queue) = queue.upgrade().filter(|queue| queue.is_running()) {
                queue.rebalance();
                drop(queue);
                std::thread::sleep(PAUSE);
            }
        })
    };
    produce_all(&queue, slots, ITEMS);
    // Read while all partitions are still busy; the flush only empties them.
    let stats = queue.stats();
    assert_eq!(queue.flush(None, &mut Wait), Ok(true));
    assert_eq!(queue.shutdown(None), 0);
    mover.join().expect("a mover that does not panic");
    watcher.join().expect("a watcher that does not panic");
    let longest_cycle = *longest_cycle.lock().expect("no panic under the lock");
    Round {
        moves: stats.moves,
        refused: stats.refused,
        longest_handoff: stats.longest_handoff,
        longest_cycle,
    }
}

fn main() {
    if is_test_run() {
        return;
    }
    let slots = Arc::new(slots());
    let rounds: Vec<Round> = (0..ROUNDS).map(|_| round(&slots)).collect();
    let moves: u64 = rounds.iter().map(|round| round.moves).sum();
    let refused: u64 = rounds.iter().map(|round| round.refused).sum();
    let within =
        |round: &&Round| round.longest_handoff <= round.longest_cycle + Duration::from_millis(1);
    let met = rounds.iter().filter(within).count();
    let longest = |of: fn(&Round) -> Duration| rounds.iter().map(of).max().unwrap_or_default();
    let (handoff, cycle) =
        (longest(|round| round.longest_handoff), longest(|round| round.longest_cycle));
    Line {
        row: "6",
        workload: "headline, handlers sleep, one move each 10 ms",
        wanted: "in every round the longest handoff at most its longest cycle + 1 ms; 0 refused",
    }
    .print(
        met == ROUNDS && refused == 0,
        &format!(
            "{met} of {ROUNDS} rounds; longest of {moves} {handoff:.1?}, longest cycle \
             {cycle:.1?}; {refused} refused"
        ),
    );
}
