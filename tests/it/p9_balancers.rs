//! P9: a balancer that panics or hangs, or a log that does, holds up no other queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use batchqueue::{Assign, BatchQueue, Config, DrainBalancer, Host};

use crate::support::{Latch, Lines, Sent, config, shut_down, start, start_with, wait_until};

/// Panics on every run.
struct Panicking;

impl Assign for Panicking {
    fn assign(
        &self,
        _load: &[f64],
        _owner: &[usize],
        _threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        // A panic without the panic hook's message.
        std::panic::resume_unwind(Box::new("no plan"));
    }
}

/// One thread balances all queues of the process: it must survive a panic of one balancer.
#[test]
fn a_panicking_balancer_is_reported_and_others_keep_running() {
    let often = |balancer| Config {
        balancer: Some(balancer),
        rebalance_interval: Duration::from_millis(1),
        ..config(2)
    };
    let lines = Lines::default();
    let panicking = start_with(&lines, often(DrainBalancer::custom(Arc::new(Panicking))));
    wait_until("the line about its plan", || lines.any("the balancer panicked"));
    let other = start(often(DrainBalancer::throughput_weighted()));
    for queue in [&panicking, &other] {
        let before = queue.stats().rebalances;
        wait_until("three more runs", || queue.stats().rebalances >= before + 3);
    }
    assert_eq!(panicking.rebalance(), 0);
    shut_down(&panicking);
    shut_down(&other);
}

/// Waits in each run until the latch opens.
struct Hung(Arc<Latch>, Arc<Latch>);

impl Assign for Hung {
    fn assign(
        &self,
        _load: &[f64],
        _owner: &[usize],
        _threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        self.0.open();
        self.1.wait();
        Ok(None)
    }
}

/// Checks that queues are balanced while another queue's balancer or log is held up.
fn queues_are_balanced_beside(held_up: &BatchQueue<Sent>) {
    let often = Config {
        balancer: Some(DrainBalancer::throughput_weighted()),
        rebalance_interval: Duration::from_millis(1),
        ..config(2)
    };
    let other = start(often);
    wait_until("three runs", || other.stats().rebalances >= 3);
    shut_down(&other);
    // Neither a snapshot nor a shutdown waits for it.
    assert_eq!(held_up.stats().produced, held_up.stats().consumed);
}

#[test]
fn a_balancer_that_hangs_holds_up_no_other_queue() {
    let (lines, entered, release) = (Lines::default(), Arc::default(), Arc::default());
    let hung = Hung(Arc::clone(&entered), Arc::clone(&release));
    let config = Config {
        balancer: Some(DrainBalancer::custom(Arc::new(hung))),
        rebalance_interval: Duration::from_millis(1),
        ..config(2)
    };
    let queue = start_with(&lines, config);
    entered.wait();
    queues_are_balanced_beside(&queue);
    wait_until("the line", || lines.any("the balancer has not returned for 5 s"));
    shut_down(&queue);
    release.open();
}

/// Hangs, or else panics, at the first line about a move.
struct BrokenLog {
    hangs: bool,
    lines: AtomicUsize,
    entered: Arc<Latch>,
    release: Arc<Latch>,
}

impl Host<Sent> for BrokenLog {
    fn inform(&self, _line: &str) {
        if self.lines.fetch_add(1, SeqCst) > 0 {
            return;
        }
        self.entered.open();
        if self.hangs {
            self.release.wait();
        } else {
            // A panic without the panic hook's message.
            std::panic::resume_unwind(Box::new("no log"));
        }
    }
}

/// Moves all partitions to the next thread in each run.
struct Rotating;

impl Assign for Rotating {
    fn assign(
        &self,
        _load: &[f64],
        owner: &[usize],
        threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        Ok(Some(owner.iter().map(|thread| (thread + 1) % threads).collect()))
    }
}

#[test]
fn a_log_that_hangs_or_panics_holds_up_no_balancer() {
    for hangs in [true, false] {
        let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
        let (inside, hold) = (entered.clone(), release.clone());
        let log = BrokenLog { hangs, lines: AtomicUsize::new(0), entered: inside, release: hold };
        let config = Config {
            balancer: Some(DrainBalancer::custom(Arc::new(Rotating))),
            rebalance_interval: Duration::from_millis(1),
            ..config(2)
        };
        let queue = BatchQueue::builder("test", config).host(log).start().unwrap();
        entered.wait();
        let before = queue.stats().moves;
        wait_until("more moves", || queue.stats().moves >= before + 10);
        queues_are_balanced_beside(&queue);
        shut_down(&queue);
        release.open();
    }
}
