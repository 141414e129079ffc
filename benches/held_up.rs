//! The cost of slow, failing and hanging handlers to healthy neighbours, and the gain from
//! take-over.
//!
//! *Static* is the same queue with a `takeover_after` of an hour: partitions stay with their
//! threads even during long calls. Handlers wait instead of computing, so the figures hardly depend
//! on the number of cores. Run with `cargo bench --bench held_up`; it takes a minute.

mod workload;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, Config, Failure, Handler, HandlerRef, Item, PartitionPolicy, RetryPolicy,
    ThreadPolicy, TypeKey,
};
use workload::{Line, Metric, TYPES, headline_config, is_test_run, median, produce_all, slots};

const HOUR: Duration = Duration::from_secs(3_600);
const SPAN: Duration = Duration::from_secs(5);

/// An item that knows when it was put in.
#[derive(Debug)]
struct Stamped {
    kind: usize,
    at: Instant,
}

impl Item for Stamped {
    fn type_key(&self) -> TypeKey {
        TypeKey(self.kind)
    }
}

fn stamped(kind: usize) -> Stamped {
    Stamped { kind, at: Instant::now() }
}

/// Ends calls that hang.
#[derive(Default)]
struct Latch(Mutex<bool>, Condvar);

impl Latch {
    fn open(&self) {
        *self.0.lock().expect("no panic") = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let open = self.0.lock().expect("no panic");
        drop(self.1.wait_while(open, |open| !*open).expect("no panic"));
    }
}

/// Counts its items and their waits, and may sleep for a given time per batch.
#[derive(Clone, Default)]
struct Counter {
    items: Arc<AtomicUsize>,
    waits: Arc<Mutex<Vec<Duration>>>,
    per_batch: Duration,
}

impl Counter {
    fn slow(per_batch: Duration) -> Self {
        Self { per_batch, ..Self::default() }
    }

    fn items(&self) -> usize {
        self.items.load(Relaxed)
    }

    /// Returns the wait that one in a hundred items exceeds.
    fn p99(&self) -> Duration {
        let mut waits = self.waits.lock().expect("no panic").clone();
        waits.sort_unstable();
        waits.get(waits.len() * 99 / 100).copied().unwrap_or_default()
    }
}

impl Handler<Stamped> for Counter {
    fn consume(&self, batch: &mut Batch<Stamped>) -> Result<(), Failure> {
        if self.per_batch > Duration::ZERO {
            sleep(self.per_batch);
        }
        let waits: Vec<_> = batch.drain().map(|item| item.at.elapsed()).collect();
        self.items.fetch_add(waits.len(), Relaxed);
        self.waits.lock().expect("no panic").extend(waits);
        Ok(())
    }
}

/// Always fails.
struct Down;

impl<T: Item> Handler<T> for Down {
    fn consume(&self, _batch: &mut Batch<T>) -> Result<(), Failure> {
        Err(Failure::new("down"))
    }
}

/// Two drain threads and a partition per type; types with even numbers are on thread 0.
fn two_threads(takes_over: bool) -> Config {
    let mut config = Config {
        threads: ThreadPolicy::fixed(2).expect("a valid count"),
        partitions: PartitionPolicy::adaptive(25).expect("a valid multiplier"),
        spare_threads: Some(0),
        ..Config::default()
    };
    if !takes_over {
        config.takeover_after = HOUR;
    }
    config
}

fn start(config: Config) -> BatchQueue<Stamped> {
    BatchQueue::builder("held up", config).start().expect("a valid config")
}

/// Puts a thousand items per second of each of these types until the span has passed.
fn feed(queue: &BatchQueue<Stamped>, kinds: &[usize]) -> usize {
    let (begin, mut puts) = (Instant::now(), 0);
    while begin.elapsed() < SPAN {
        for &kind in kinds {
            queue.produce(stamped(kind)).expect("a running queue");
        }
        puts += kinds.len();
        sleep(Duration::from_millis(1));
    }
    puts
}

/// Runs the headline workload, alone or beside a type that hangs and one that backs off.
#[allow(clippy::cast_precision_loss)]
fn headline(beside: bool, slots: &Arc<Vec<usize>>) -> f64 {
    const ITEMS: usize = 8_000_000;
    let backoff = HOUR;
    let retry = RetryPolicy {
        attempts: Some(2),
        backoff,
        factor: 1.0,
        max_backoff: backoff,
        ..RetryPolicy::default()
    };
    let config = Config { retry: Some(retry), ..headline_config() };
    let queue = Arc::new(BatchQueue::builder("headline", config).start().expect("a valid config"));
    for kind in 0..TYPES {
        let no_op = |batch: &mut Batch<Metric>| {
            black_box(batch.iter().last().map(|metric| metric.value));
        };
        queue.add_handler(TypeKey(kind), HandlerRef::new(no_op)).expect("a new type");
    }
    let latch = Arc::new(Latch::default());
    let hold = latch.clone();
    let hang = move |_: &mut Batch<Metric>| hold.wait();
    queue.add_handler(TypeKey(TYPES), HandlerRef::new(hang)).expect("a new type");
    queue.add_handler(TypeKey(TYPES + 1), HandlerRef::new(Down)).expect("a new type");
    if beside {
        for kind in [TYPES, TYPES + 1] {
            queue.produce(Metric { kind, value: 0 }).expect("a running queue");
        }
    }
    let round = |items: usize| {
        let goal = queue.stats().consumed + items as u64;
        let start = produce_all(&queue, slots, items);
        while queue.stats().consumed < goal {
            sleep(Duration::from_micros(100));
        }
        start.elapsed()
    };
    // By the end of this, the thread with the hanging type is held up, and others have its
    // partitions.
    round(ITEMS / 10);
    sleep(Duration::from_millis(200));
    round(ITEMS / 10);
    let rate = ITEMS as f64 / round(ITEMS).as_secs_f64();
    latch.open();
    queue.shutdown(None);
    rate
}

#[allow(clippy::cast_precision_loss)]
fn headline_beside() {
    let slots = Arc::new(slots());
    let (alone, beside): (Vec<f64>, Vec<f64>) =
        (0..7).map(|_| (headline(false, &slots), headline(true, &slots))).unzip();
    let (alone, beside) = (median(alone), median(beside));
    let share = beside / alone;
    Line {
        row: "10",
        workload: "headline beside a type that hangs and one that backs off",
        wanted: "at least 0.95 of its rate alone",
    }
    .print(share >= 0.95, &format!("{share:.2} of {:.1} M/s", alone / 1e6));
}

/// Returns the items per second of ten types whose calls take 160 ms, all in partitions of thread
/// 0.
#[allow(clippy::cast_precision_loss)]
fn slow_calls_of_one_thread(takes_over: bool) -> f64 {
    let queue = start(Config { max_batch_items: 1, ..two_threads(takes_over) });
    let slow = Counter::slow(Duration::from_millis(160));
    for kind in 0..20 {
        let handler = if kind % 2 == 0 { slow.clone() } else { Counter::default() };
        // One instance per type, because calls of one instance do not overlap.
        queue.add_handler(TypeKey(kind), HandlerRef::new(handler)).expect("a new type");
    }
    for number in 0..1_000 {
        queue.produce(stamped(number % 10 * 2)).expect("a running queue");
    }
    sleep(SPAN);
    let rate = slow.items() as f64 / SPAN.as_secs_f64();
    queue.shutdown(Some(Instant::now()));
    rate
}

fn slow_calls() {
    let (fixed, moving) = (slow_calls_of_one_thread(false), slow_calls_of_one_thread(true));
    let ratio = moving / fixed;
    Line {
        row: "10",
        workload: "calls of 160 ms, all traffic on one of two threads",
        wanted: "at least 1.8 × static",
    }
    .print(ratio >= 1.8, &format!("{ratio:.2} of {fixed:.1} items/s"));
}

/// Runs ten quick types beside two whose calls take two seconds. Returns the share of quick items
/// handled by the end of the span, and their p99.
#[allow(clippy::cast_precision_loss)]
fn quick_beside_slow(takes_over: bool) -> (f64, Duration) {
    let spare_threads = takes_over.then_some(2).or(Some(0));
    let config = Config { buffer_size: 1_000_000, spare_threads, ..two_threads(takes_over) };
    let queue = start(config);
    let (quick, slow) = (Counter::default(), Counter::slow(Duration::from_secs(2)));
    let quick_kinds: Vec<usize> = (2..12).collect();
    for kind in 0..12 {
        let handler = if kind < 2 { slow.clone() } else { quick.clone() };
        queue.add_handler(TypeKey(kind), HandlerRef::new(handler)).expect("a new type");
    }
    let (stop, mut puts) = (AtomicBool::new(false), 0);
    scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                for kind in 0..2 {
                    queue.produce(stamped(kind)).expect("a running queue");
                }
                sleep(Duration::from_millis(10));
            }
        });
        puts = feed(&queue, &quick_kinds);
        stop.store(true, Relaxed);
    });
    let figures = (quick.items() as f64 / puts as f64, quick.p99());
    queue.shutdown(Some(Instant::now()));
    figures
}

fn quick_types() {
    let ((before, waited), (now, p99)) = (quick_beside_slow(false), quick_beside_slow(true));
    Line {
        row: "10",
        workload: "ten quick types beside two with calls of 2 s, two threads",
        wanted: "at least 0.99 handled by the end; p99 at most 150 ms",
    }
    .print(
        now >= 0.99 && p99 <= Duration::from_millis(150),
        &format!("{now:.3}, p99 {p99:.0?}; static {before:.3}, {waited:.0?}"),
    );
}

/// Runs producers that wait for room: one for each of six types with calls of 1 ms and two of 200
/// ms.
fn closed_loop(takes_over: bool) -> usize {
    let queue = start(Config { buffer_size: 100, ..two_threads(takes_over) });
    let (quick, slow) = (Duration::from_millis(1), Duration::from_millis(200));
    let (quick, slow) = (Counter::slow(quick), Counter::slow(slow));
    for kind in 0..8 {
        let handler = if kind < 2 { slow.clone() } else { quick.clone() };
        queue.add_handler(TypeKey(kind), HandlerRef::new(handler)).expect("a new type");
    }
    let mut handled = 0;
    scope(|scope| {
        for kind in 0..8 {
            let queue = &queue;
            scope.spawn(move || while queue.produce(stamped(kind)).is_ok() {});
        }
        sleep(SPAN);
        handled = quick.items() + slow.items();
        queue.shutdown(Some(Instant::now()));
    });
    handled
}

#[allow(clippy::cast_precision_loss)]
fn closed_loops() {
    let (fixed, moving) = (closed_loop(false), closed_loop(true));
    let ratio = moving as f64 / fixed as f64;
    Line {
        row: "10",
        workload: "producers that wait, two types with calls of 200 ms beside six of 1 ms",
        wanted: "at least 0.95 × static",
    }
    .print(ratio >= 0.95, &format!("{ratio:.1} of {} items/s", fixed / 5));
}

/// Runs five types beside one that is down for the whole span.
#[allow(clippy::cast_precision_loss)]
fn beside_a_sink_that_is_down() {
    let retry = RetryPolicy {
        attempts: Some(2),
        backoff: HOUR,
        factor: 1.0,
        max_backoff: HOUR,
        ..RetryPolicy::default()
    };
    let queue = start(Config { retry: Some(retry), buffer_size: 1_000, ..two_threads(true) });
    let healthy = Counter::default();
    queue.add_handler(TypeKey(0), HandlerRef::new(Down)).expect("a new type");
    for kind in 1..6 {
        queue.add_handler(TypeKey(kind), HandlerRef::new(healthy.clone())).expect("a new type");
    }
    queue.produce(stamped(0)).expect("a running queue");
    let puts = feed(&queue, &[1, 2, 3, 4, 5]);
    let share = healthy.items() as f64 / puts as f64;
    let figure = format!("{share:.3} of {puts} items; p99 {:.1?}", healthy.p99());
    queue.shutdown(Some(Instant::now()));
    Line {
        row: "10",
        workload: "five types beside one that is down for 5 s",
        wanted: "at least 0.99 of what they are given",
    }
    .print(share >= 0.99, &figure);
}

/// Returns the share of the threads' time in calls, which take 30 to 90 ms, with work for all
/// threads.
#[allow(clippy::cast_precision_loss)]
fn ordinary_calls() {
    let queue = start(Config { max_batch_items: 1, ..two_threads(true) });
    let mut handlers = Vec::new();
    for kind in 0..16 {
        let handler = Counter::slow(Duration::from_millis(30 + 4 * kind as u64));
        queue.add_handler(TypeKey(kind), HandlerRef::new(handler.clone())).expect("a new type");
        handlers.push(handler);
    }
    for number in 0..16 * 200 {
        queue.produce(stamped(number % 16)).expect("a running queue");
    }
    sleep(SPAN);
    let busy: f64 = handlers
        .iter()
        .map(|handler| handler.per_batch.as_secs_f64() * handler.items() as f64)
        .sum();
    let share = busy / SPAN.as_secs_f64() / 2.0;
    queue.shutdown(Some(Instant::now()));
    Line {
        row: "10",
        workload: "16 types with calls of 30 to 90 ms, saturated",
        wanted: "at least 0.95 of two threads' time in calls",
    }
    .print(share >= 0.95, &format!("{share:.2}"));
}

fn main() {
    if is_test_run() {
        return;
    }
    headline_beside();
    slow_calls();
    quick_types();
    closed_loops();
    beside_a_sink_that_is_down();
    ordinary_calls();
}
