//! P4: other drain threads take over from one that is held up in a handler.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use batchqueue::{
    Batch, BatchQueue, Config, DrainBalancer, Failure, Handler, HandlerRef, Host, PartitionPolicy,
    Selector,
};

use crate::support::{
    Collector, Latch, Lines, Sent, assert_conserved, config, holding, key, owners, sent, shut_down,
    start, start_with, steered, wait_until,
};

pub const TYPES: usize = 6;

/// Repeatedly puts an item of each type from `first` on, and waits for each to be handled.
pub fn serve(queue: &BatchQueue<Sent>, healthy: &Collector, first: usize) {
    for number in 0..100 {
        for kind in first..TYPES {
            queue.produce(sent(kind, 0, number)).unwrap();
        }
        let wanted = (number + 1) * (TYPES - first);
        wait_until("the healthy types", || healthy.items().len() == wanted);
    }
}

/// A queue of two threads whose first type hangs in a call, and whose others are healthy.
struct HeldUp {
    queue: BatchQueue<Sent>,
    healthy: Collector,
    release: Arc<Latch>,
}

fn held_up(config: Config, lines: &Lines) -> HeldUp {
    let (queue, healthy) = (start_with(lines, config), Collector::default());
    let (hold, entered, release) = holding();
    queue.add_handler(key(0), hold).unwrap();
    for kind in 1..TYPES {
        queue.add_handler(key(kind), healthy.handler()).unwrap();
    }
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    HeldUp { queue, healthy, release }
}

impl HeldUp {
    fn put_healthy(&self, number: usize) {
        for kind in 1..TYPES {
            self.queue.produce(sent(kind, 0, number)).unwrap();
        }
    }

    fn serve_healthy(&self) {
        serve(&self.queue, &self.healthy, 1);
    }
}

pub fn by_type(threads: usize) -> Config {
    Config { partitions: PartitionPolicy::fixed(TYPES).unwrap(), ..config(threads) }
}

#[test]
fn other_types_are_served_while_a_handler_hangs() {
    for selector in [Selector::ByType, Selector::RoundRobin] {
        let held_up = held_up(Config { selector, ..by_type(2) }, &Lines::default());
        held_up.serve_healthy();
        let stats = held_up.queue.stats();
        assert!(stats.taken_over >= 2, "{stats:?}");
        assert_eq!((stats.in_flight, stats.stuck_handlers.len() < 2), (1, true));
        held_up.release.open();
        shut_down(&held_up.queue);
        assert_conserved(&held_up.queue.stats());
    }
}

#[test]
fn a_shutdown_delivers_all_but_the_items_of_a_handler_that_hangs() {
    let held_up = held_up(by_type(2), &Lines::default());
    held_up.queue.produce(sent(0, 0, 1)).unwrap();
    held_up.put_healthy(0);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| held_up.queue.shutdown(None));
        wait_until("the healthy types", || held_up.healthy.items().len() == TYPES - 1);
        held_up.release.open();
        assert_eq!(closing.join().unwrap(), 0);
    });
    assert_eq!(held_up.queue.stats().consumed, TYPES as u64 + 1);
    assert_conserved(&held_up.queue.stats());
}

fn balanced(rebalance_interval: Duration) -> Config {
    let balancer = Some(DrainBalancer::throughput_weighted());
    Config { balancer, rebalance_interval, ..by_type(2) }
}

/// Without a balancer that runs often, the partitions come back.
#[test]
fn a_thread_gets_its_partitions_back_once_it_is_reachable() {
    for config in [by_type(2), balanced(Duration::ZERO)] {
        let held_up = held_up(config, &Lines::default());
        let before = owners(&held_up.queue);
        held_up.serve_healthy();
        assert_ne!(owners(&held_up.queue), before);
        held_up.release.open();
        wait_until("the owners before", || owners(&held_up.queue) == before);
        held_up.put_healthy(100);
        shut_down(&held_up.queue);
        assert_conserved(&held_up.queue.stats());
    }
}

#[test]
fn with_a_balancer_partitions_stay_where_they_were_taken_to() {
    let held_up = held_up(balanced(Duration::from_secs(3_600)), &Lines::default());
    held_up.serve_healthy();
    let taken_over = owners(&held_up.queue);
    held_up.release.open();
    // Longer than the partitions of a queue without a balancer stay away.
    sleep(Duration::from_millis(1_500));
    assert_eq!(owners(&held_up.queue), taken_over);
    shut_down(&held_up.queue);
}

/// A plan leaves partitions with the threads that took them over: they do not come back.
#[test]
fn after_a_rebalance_partitions_stay_where_the_plan_has_them() {
    let (config, steered) = steered(by_type(2));
    let held_up = held_up(config, &Lines::default());
    held_up.serve_healthy();
    let taken_over = owners(&held_up.queue);
    assert_eq!(steered.rebalance(&held_up.queue, &taken_over), 0);
    held_up.release.open();
    // Longer than the partitions of a queue without a balancer stay away.
    sleep(Duration::from_millis(1_500));
    assert_eq!(owners(&held_up.queue), taken_over);
    shut_down(&held_up.queue);
}

#[test]
fn a_line_names_the_handler_that_holds_its_thread_up() {
    let lines = Lines::default();
    let held_up = held_up(by_type(2), &lines);
    held_up.put_healthy(0);
    let line = "on drain thread 0; other threads took over 2 of its partitions";
    wait_until("the line", || lines.any(line));
    held_up.release.open();
    shut_down(&held_up.queue);
}

/// Two types share one instance, which hangs. Only their own items wait.
#[test]
fn a_hung_instance_of_two_types_holds_up_these_two() {
    let queue = start(by_type(2));
    let ((hold, entered, release), healthy) = (holding(), Collector::default());
    queue.add_handler(key(0), hold.clone()).unwrap();
    queue.add_handler(key(1), hold).unwrap();
    for kind in 2..TYPES {
        queue.add_handler(key(kind), healthy.handler()).unwrap();
    }
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    for number in 0..100 {
        for kind in 1..TYPES {
            queue.produce(sent(kind, 0, number)).unwrap();
        }
        let wanted = (number + 1) * (TYPES - 2);
        wait_until("the healthy types", || healthy.items().len() == wanted);
    }
    release.open();
    shut_down(&queue);
    assert_eq!(queue.stats().consumed, 1 + 100 * (TYPES as u64 - 1));
}

/// Hangs in a call without items.
struct HungElsewhere {
    on_idle: bool,
    entered: Arc<Latch>,
    release: Arc<Latch>,
}

impl HungElsewhere {
    fn hang(&self) {
        self.entered.open();
        self.release.wait();
    }
}

impl Handler<Sent> for HungElsewhere {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        drop(batch.drain());
        Ok(())
    }

    fn has_on_idle(&self) -> bool {
        self.on_idle
    }

    fn on_idle(&self) -> Result<(), Failure> {
        self.hang();
        Ok(())
    }

    fn on_close(&self) -> Result<(), Failure> {
        if !self.on_idle {
            self.hang();
        }
        Ok(())
    }
}

#[test]
fn other_types_are_served_while_on_idle_or_on_close_hangs() {
    for on_idle in [true, false] {
        let (queue, healthy) = (start(by_type(2)), Collector::default());
        let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
        let hung = HungElsewhere { on_idle, entered: entered.clone(), release: release.clone() };
        queue.add_handler(key(0), HandlerRef::new(hung)).unwrap();
        for kind in 1..TYPES {
            queue.add_handler(key(kind), healthy.handler()).unwrap();
        }
        std::thread::scope(|scope| {
            if !on_idle {
                scope.spawn(|| assert!(queue.remove_handler(key(0))));
            }
            entered.wait();
            serve(&queue, &healthy, 1);
            release.open();
        });
        shut_down(&queue);
        assert_conserved(&queue.stats());
    }
}

/// A log that hangs at its first line.
struct HungLog(Arc<Latch>, Arc<Latch>);

impl Host<Sent> for HungLog {
    fn log(&self, _line: &str) {
        self.0.open();
        self.1.wait();
    }
}

#[test]
fn other_types_are_served_while_the_log_hangs() {
    let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let host = HungLog(entered.clone(), release.clone());
    let queue = BatchQueue::builder("test", by_type(2)).host(host).start().unwrap();
    let healthy = Collector::default();
    queue
        .add_handler(key(0), HandlerRef::new(|_: &mut Batch<Sent>| panic!("for the log")))
        .unwrap();
    for kind in 1..TYPES {
        queue.add_handler(key(kind), healthy.handler()).unwrap();
    }
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    serve(&queue, &healthy, 1);
    release.open();
    shut_down(&queue);
}
