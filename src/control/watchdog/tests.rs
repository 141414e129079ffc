//! What the watchdog logs, and when. The limit is an hour and the tests choose the time of each
//! visit, so the supervisor's own visits find nothing.

use std::ops::Deref;

use crate::config::{Config, PartitionPolicy, RetryPolicy, Selector, ThreadPolicy};
use crate::control::watchdog::{LastSeen, Visitor, let_go_elsewhere};
use crate::error::ProduceError;
use crate::flow::batch::{Batch, Failure};
use crate::flow::handler::{Handler, HandlerRef, Host};
use crate::item::{Item, TypeKey};
use crate::queue::BatchQueue;
use crate::sync::{Arc, AtomicUsize, Duration, Instant, Mutex, MutexGuard, Ordering};
use crate::testing::threads::PATIENCE;

const HOUR: Duration = Duration::from_secs(3_600);

const ORDER: TypeKey = TypeKey(16);

const CLICK: TypeKey = TypeKey(32);

#[derive(Debug)]
struct Number(TypeKey);

impl Item for Number {
    fn type_key(&self) -> TypeKey {
        self.0
    }
}

/// Keeps the lines, and returns a stack for any thread, whose number is 7.
#[derive(Clone, Default)]
struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    /// Held by tests that block the log.
    held_up: Arc<Mutex<()>>,
    /// The number of calls into the host: entries, queries and lines.
    calls: Arc<Mutex<usize>>,
}

impl Log {
    fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    fn wait_for(&self, count: usize) -> Vec<String> {
        wait_until(|| self.lines().len() >= count);
        assert_eq!(self.lines().len(), count, "{:?}", self.lines());
        self.lines()
    }
}

impl Host<Number> for Log {
    fn enter(&self, body: &mut dyn FnMut()) {
        *self.calls.lock() += 1;
        body();
    }

    fn log(&self, line: &str) {
        drop(self.held_up.lock());
        self.lines.lock().push(line.to_owned());
    }

    fn thread_number(&self) -> u64 {
        7
    }

    fn thread_stack(&self, number: u64) -> Option<String> {
        drop(self.held_up.lock());
        *self.calls.lock() += 1;
        (number == 7).then(|| "Stack: consume".to_owned())
    }
}

/// Stays in its call while the gate is locked.
#[derive(Clone, Default)]
struct Held {
    gate: Arc<Mutex<()>>,
    /// The number of calls that have begun.
    calls: Arc<AtomicUsize>,
}

impl Handler<Number> for Held {
    fn consume(&self, batch: &mut Batch<Number>) -> Result<(), Failure> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        drop(self.gate.lock());
        drop(batch.drain());
        Ok(())
    }

    fn name(&self) -> String {
        "Held".to_owned()
    }
}

struct Failing;

impl Handler<Number> for Failing {
    fn consume(&self, _: &mut Batch<Number>) -> Result<(), Failure> {
        Err(Failure::new("as planned"))
    }
}

fn wait_until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "the condition did not come true");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn config(threads: usize, partitions: usize) -> Config {
    Config {
        threads: ThreadPolicy::fixed(threads).unwrap(),
        partitions: PartitionPolicy::fixed(partitions).unwrap(),
        warn_after: Some(HOUR),
        min_idle: Duration::ZERO,
        ..Config::default()
    }
}

/// A queue that the test visits.
struct Watched {
    queue: BatchQueue<Number>,
    visitor: Visitor<Number>,
}

impl Deref for Watched {
    type Target = BatchQueue<Number>;

    fn deref(&self) -> &Self::Target {
        &self.queue
    }
}

fn start(config: Config) -> (Watched, Log) {
    let log = Log::default();
    let queue = BatchQueue::builder("orders", config).host(log.clone()).start().unwrap();
    (watched(queue), log)
}

fn watched(queue: BatchQueue<Number>) -> Watched {
    let visitor = Visitor::new(&queue.control, HOUR);
    Watched { queue, visitor }
}

fn named(key: TypeKey, name: &str) -> crate::item::HandledType {
    crate::item::HandledType { name: name.to_owned(), ..key.into() }
}

/// Holds a handler of orders in a call with one item.
fn hold<'a>(queue: &BatchQueue<Number>, held: &'a Held) -> MutexGuard<'a, ()> {
    let guard = held.gate.lock();
    let before = held.calls.load(Ordering::Relaxed);
    queue.produce(Number(ORDER)).unwrap();
    // An item is in flight before its call has begun.
    wait_until(|| held.calls.load(Ordering::Relaxed) > before);
    guard
}

fn visit(watched: &Watched, now: Instant) -> Duration {
    watched.visitor.visit(&watched.control, now)
}

#[test]
fn a_long_call_is_reported_at_the_limit_then_at_double_the_distance_and_when_it_is_over() {
    let (queue, log) = start(config(1, 1));
    let held = Held::default();
    queue.add_handler(named(ORDER, "Order"), HandlerRef::new(held.clone())).unwrap();
    let held_up = hold(&queue, &held);
    queue.produce(Number(ORDER)).unwrap();
    let start = Instant::now();
    visit(&queue, start + HOUR / 2);
    assert_eq!(log.lines(), [""; 0]);
    visit(&queue, start + HOUR);
    let lines = log.wait_for(2);
    let expected = "queue orders: handler Order has been in one call for 3600 s on \
                    batchqueue-orders-0 with 1 item; 1 item waits behind it\nStack: consume";
    assert_eq!(lines[0], expected);
    let waits = "an item in partition 0 (Order) has waited for its call for";
    assert!(lines[1].contains(waits), "{lines:?}");
    assert!(lines[1].contains(" 3600 s; 1 item waits there; handler Order has been"), "{lines:?}");
    visit(&queue, start + HOUR + HOUR / 4);
    visit(&queue, start + 2 * HOUR);
    let lines = log.wait_for(4);
    assert!(lines[2].contains("in one call for 7200 s"), "{lines:?}");
    assert!(lines[3].contains(waits), "{lines:?}");
    drop(held_up);
    wait_until(|| queue.stats().consumed == 2);
    visit(&queue, start + 3 * HOUR);
    let lines = log.wait_for(6);
    assert_eq!(lines[4], "queue orders: a long call of handler Order has ended after 10800 s");
    assert!(lines[5].contains("items do not wait for long any more"), "{lines:?}");
    visit(&queue, start + 30 * HOUR);
    queue.shutdown(None);
    assert_eq!(log.lines().len(), 6);
}

#[test]
fn each_line_comes_on_time_because_the_visit_before_plans_it() {
    let (queue, log) = start(config(1, 1));
    let held = Held::default();
    queue.add_handler(ORDER, HandlerRef::new(held.clone())).unwrap();
    let mut now = Instant::now();
    assert_eq!(visit(&queue, now), HOUR / 2, "nothing happens");
    let held_up = hold(&queue, &held);
    let since = queue.flow.threads[0].tally.counts().calling.unwrap().1;
    while log.lines().is_empty() {
        now += visit(&queue, now);
        assert!(now <= since + HOUR + Duration::from_secs(1));
        if now >= since + HOUR {
            visit(&queue, now);
            log.wait_for(1);
        }
    }
    assert!(visit(&queue, now) <= Duration::from_secs(1), "the end is noticed soon");
    drop(held_up);
    queue.shutdown(None);
}

#[test]
fn a_call_that_ended_in_time_is_not_reported_nor_its_end() {
    let (queue, log) = start(config(1, 1));
    let held = Held::default();
    queue.add_handler(ORDER, HandlerRef::new(held.clone())).unwrap();
    let start = Instant::now();
    for round in 0..3 {
        let held_up = hold(&queue, &held);
        visit(&queue, start + round * HOUR / 4);
        drop(held_up);
        wait_until(|| queue.stats().consumed == u64::from(round) + 1);
    }
    visit(&queue, start + 100 * HOUR);
    queue.shutdown(None);
    assert_eq!(log.lines(), [""; 0]);
}

#[test]
fn a_producer_that_waits_is_reported_with_the_handler_that_it_waits_for() {
    let (queue, log) = start(Config { buffer_size: 1, ..config(1, 1) });
    let held = Held::default();
    queue.add_handler(named(ORDER, "Order"), HandlerRef::new(held.clone())).unwrap();
    let held_up = hold(&queue, &held);
    queue.produce(Number(ORDER)).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| queue.produce(Number(ORDER)).unwrap());
        }
        let waiting = || queue.flow.waiting_producers.longest().map_or(0, |(_, count)| count);
        wait_until(|| waiting() == 3);
        visit(&queue, start + HOUR + HOUR / 4);
        let lines = log.wait_for(3);
        let line = lines.iter().find(|line| line.contains("a producer")).unwrap();
        assert!(line.contains("waited for room for an item of Order for 4"), "{line}");
        assert!(line.contains("partition 0 is full (1 item); 2 more producers wait"), "{line}");
        assert!(line.contains("; handler Order has been in one call for 4"), "{line}");
        assert!(line.ends_with("\nStack: consume"), "{line}");
        drop(held_up);
    });
    visit(&queue, start + 2 * HOUR);
    wait_until(|| log.lines().iter().any(|line| line.contains("producers do not wait for long")));
    queue.shutdown(None);
    assert!(queue.flow.waiting_producers.longest().is_none());
}

#[test]
fn a_producer_that_gives_up_waits_no_more() {
    let (queue, _log) = start(Config { buffer_size: 1, ..config(1, 1) });
    let held = Held::default();
    queue.add_handler(ORDER, HandlerRef::new(held.clone())).unwrap();
    let held_up = hold(&queue, &held);
    queue.produce(Number(ORDER)).unwrap();
    let soon = Some(Instant::now() + Duration::from_millis(5));
    let refused = queue
        .produce_with(Number(ORDER), None, soon, &mut crate::threads::waits::Wait)
        .unwrap_err();
    assert!(matches!(refused, ProduceError::TimedOut { .. }));
    assert!(queue.flow.waiting_producers.longest().is_none());
    drop(held_up);
    queue.shutdown(None);
}

#[test]
fn a_visit_with_nothing_to_say_does_not_touch_the_host() {
    let (queue, log) = start(config(2, 64));
    for key in 1..=64 {
        queue.add_handler(TypeKey(16 * key), HandlerRef::new(Held::default())).unwrap();
    }
    let start = Instant::now();
    let before = *log.calls.lock();
    for minutes in 0..1_000 {
        visit(&queue, start + minutes * HOUR / 60);
    }
    assert_eq!(*log.calls.lock(), before);
    assert_eq!(log.lines(), [""; 0]);
    queue.shutdown(None);
}

#[test]
fn a_log_that_is_held_up_holds_up_no_visit() {
    let (queue, log) = start(config(1, 1));
    let held = Held::default();
    queue.add_handler(ORDER, HandlerRef::new(held.clone())).unwrap();
    let log_held_up = log.held_up.lock();
    let held_up = hold(&queue, &held);
    let start = Instant::now();
    for hours in 1..=4_000 {
        visit(&queue, start + hours * HOUR);
    }
    assert_eq!(log.lines(), [""; 0]);
    drop(log_held_up);
    // 1, 2, 4 ... hours.
    log.wait_for(12);
    drop(held_up);
    queue.shutdown(None);
}

#[test]
fn a_queue_without_a_limit_is_not_watched() {
    let (queue, _log) = start(Config { warn_after: None, ..config(1, 1) });
    assert!(queue.control.watch.visited().is_none());
    assert!(queue.flow.watch_wait(0, ORDER).is_none());
    queue.shutdown(None);
}

#[test]
fn a_shutdown_names_the_handler_that_holds_what_it_abandons() {
    let (queue, log) = start(config(1, 1));
    let held = Held::default();
    queue.add_handler(named(ORDER, "Order"), HandlerRef::new(held.clone())).unwrap();
    let held_up = hold(&queue, &held);
    queue.produce(Number(ORDER)).unwrap();
    assert_eq!(queue.shutdown(Some(Instant::now())), 2);
    let lines = log.wait_for(1);
    assert!(
        lines[0].starts_with(
            "queue orders: shutdown ran out of time and abandoned 2 items of partition 0 (Order)\n\
             handler Order has been in one call for "
        ),
        "{lines:?}"
    );
    let end = " s on batchqueue-orders-0 with 1 item; 1 item waits behind it\nStack: consume";
    assert!(lines[0].ends_with(end), "{lines:?}");
    // The thread is still watched.
    visit(&queue, Instant::now() + 2 * HOUR);
    log.wait_for(2);
    drop(held_up);
    queue.shutdown(None);
}

#[test]
fn visits_end_with_the_queue_and_keep_nothing_alive() {
    let (queue, _log) = start(config(2, 2));
    let visitor = Arc::downgrade(queue.control.watch.visited().unwrap());
    let control = Arc::downgrade(&queue.control);
    queue.shutdown(None);
    drop(queue);
    wait_until(|| control.strong_count() == 0 && visitor.strong_count() == 0);
}

#[test]
fn the_last_reference_of_a_visit_is_dropped_by_a_helper() {
    let (queue, log) = start(config(1, 1));
    let control = queue.control.clone();
    queue.shutdown(None);
    drop(queue);
    wait_until(|| Arc::strong_count(&control) == 1);
    let (gone, before) = (Arc::downgrade(&control), *log.calls.lock());
    let held_up = log.calls.lock();
    let_go_elsewhere(control);
    drop(held_up);
    wait_until(|| gone.strong_count() == 0 && *log.calls.lock() == before + 1);
}

// Lines about items that wait for their call.

#[test]
fn items_that_are_tried_again_and_again_are_reported() {
    let retry = RetryPolicy {
        attempts: Some(1_000),
        backoff: HOUR,
        max_backoff: HOUR,
        ..RetryPolicy::default()
    };
    let (queue, log) = start(Config { retry: Some(retry), ..config(1, 1) });
    queue.add_handler(named(ORDER, "Order"), HandlerRef::new(Failing)).unwrap();
    queue.produce(Number(ORDER)).unwrap();
    wait_until(|| queue.stats().held == 1);
    let lines = log.wait_for(1);
    assert!(lines[0].contains("is tried again"), "{lines:?}");
    let start = Instant::now();
    visit(&queue, start);
    visit(&queue, start + HOUR);
    let lines = log.wait_for(2);
    assert_eq!(
        lines[1..],
        ["queue orders: an item in partition 0 (Order) has waited for its call for 3600 s; 1 \
          item waits there; what failed there waits for its next attempt"]
    );
    queue.shutdown(Some(Instant::now()));
}

#[test]
fn items_that_wait_for_their_batch_to_become_full_are_not_reported() {
    let (queue, log) = start(Config { max_delay: Some(HOUR * 24), ..config(1, 1) });
    queue.add_handler(ORDER, HandlerRef::new(Held::default())).unwrap();
    for _ in 0..3 {
        queue.produce(Number(ORDER)).unwrap();
    }
    wait_until(|| queue.flow.route.partition(0).waiting().is_none());
    let start = Instant::now();
    visit(&queue, start);
    visit(&queue, start + 2 * HOUR);
    assert_eq!(queue.shutdown(None), 0);
    assert_eq!(log.lines(), [""; 0]);
}

#[test]
fn classes_that_pass_a_hung_one_do_not_hide_its_oldest_item() {
    let config = Config { selector: Selector::RoundRobin, ..config(2, 1) };
    let (queue, log) = start(Config { partitions: PartitionPolicy::fixed(2).unwrap(), ..config });
    let held = Held::default();
    queue.add_handler(named(ORDER, "Order"), HandlerRef::new(held.clone())).unwrap();
    queue.add_handler(named(CLICK, "Click"), HandlerRef::new(Held::default())).unwrap();
    let held_up = hold(&queue, &held);
    for _ in 0..4 {
        queue.produce(Number(ORDER)).unwrap();
    }
    let start = Instant::now();
    for step in 0..8 {
        for _ in 0..100 {
            queue.produce(Number(CLICK)).unwrap();
        }
        wait_until(|| queue.stats().consumed == 100 * (step + 1));
        visit(&queue, start + HOUR / 4 * u32::try_from(step).unwrap());
    }
    wait_until(|| log.lines().iter().any(|line| line.contains("an item in partition")));
    drop(held_up);
    queue.shutdown(None);
}

#[test]
fn a_queue_whose_pool_is_busy_elsewhere_reports_its_items() {
    let threads = ThreadPolicy::fixed(1).unwrap();
    let (log, other_log) = (Log::default(), Log::default());
    let start_on_pool = |name: &str, log: &Log| {
        let builder = BatchQueue::builder(name, config(1, 1)).host(log.clone());
        watched(builder.shared_scheduler("watched pool", threads).start().unwrap())
    };
    let (queue, other) = (start_on_pool("orders", &log), start_on_pool("other", &other_log));
    let held = Held::default();
    queue.add_handler(named(ORDER, "Order"), HandlerRef::new(held.clone())).unwrap();
    other.add_handler(named(CLICK, "Click"), HandlerRef::new(Held::default())).unwrap();
    let held_up = hold(&queue, &held);
    other.produce(Number(CLICK)).unwrap();
    let start = Instant::now();
    for hours in 0..=1 {
        visit(&queue, start + hours * HOUR);
        visit(&other, start + hours * HOUR);
    }
    let lines = log.wait_for(1);
    assert!(lines[0].contains("for 3600 s on batchqueue-watched pool-0"), "{lines:?}");
    let lines = other_log.wait_for(1);
    assert!(lines[0].contains("an item in partition 0 (Click) has waited"), "{lines:?}");
    drop(held_up);
    queue.shutdown(None);
    other.shutdown(None);
}

#[test]
fn nothing_is_remembered_of_partitions_without_waiting_items() {
    let (queue, _log) = start(config(1, 16));
    for key in 1..=16 {
        queue.add_handler(TypeKey(16 * key), HandlerRef::new(Held::default())).unwrap();
        queue.produce(Number(TypeKey(16 * key))).unwrap();
    }
    wait_until(|| queue.stats().consumed == 16);
    visit(&queue, Instant::now());
    {
        let LastSeen { waiting, calls, .. } = &*queue.visitor.seen.lock();
        assert!(waiting.oldest().is_none());
        assert_eq!(calls.len(), 1);
    }
    queue.shutdown(None);
}
