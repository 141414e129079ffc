//! Items, handlers and waits shared by the tests.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{
    Assign, Batch, BatchQueue, Config, DrainBalancer, Failure, Handler, HandlerRef, Host, Item,
    PartitionPolicy, RetryPolicy, Stats, ThreadPolicy, TypeKey, Wait,
};

/// Far longer than any of these tests needs: a wait that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A back-off that no test waits for.
pub const LONG: Duration = Duration::from_secs(600);

/// An item with its type, its producer and its number for that producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub kind: usize,
    pub producer: usize,
    pub number: usize,
}

impl Item for Sent {
    fn type_key(&self) -> TypeKey {
        key(self.kind)
    }
}

/// A range of numbers that one item stands for.
#[derive(Debug)]
pub struct Rows(pub Range<usize>);

impl Item for Rows {
    fn type_key(&self) -> TypeKey {
        key(0)
    }

    fn weight(&self) -> usize {
        self.0.len()
    }

    fn cut(self, weight: usize) -> (Self, Self) {
        let at = self.0.start + weight;
        (Self(self.0.start..at), Self(at..self.0.end))
    }
}

pub const fn key(kind: usize) -> TypeKey {
    TypeKey((kind + 1) << 4)
}

pub fn sent(kind: usize, producer: usize, number: usize) -> Sent {
    Sent { kind, producer, number }
}

/// A config with endless sleeps, so that a lost wake-up is a failure rather than a delay.
pub fn config(threads: usize) -> Config {
    Config {
        threads: ThreadPolicy::fixed(threads).unwrap(),
        partitions: PartitionPolicy::adaptive(25).unwrap(),
        max_idle: Duration::from_secs(60),
        ..Config::default()
    }
}

/// Returns a config that retries without end.
pub fn retrying(threads: usize, backoff: Duration) -> Config {
    let retry = RetryPolicy {
        attempts: Some(1_000),
        backoff,
        factor: 1.0,
        max_backoff: LONG,
        ..RetryPolicy::default()
    };
    Config { retry: Some(retry), ..config(threads) }
}

pub fn start(config: Config) -> BatchQueue<Sent> {
    BatchQueue::builder("test", config).start().unwrap()
}

/// A balancer that applies the plan that a test sets, and does nothing until then.
#[derive(Debug, Default)]
pub struct Steered(Mutex<Option<Vec<usize>>>);

impl Assign for Steered {
    fn assign(
        &self,
        _load: &[f64],
        _owner: &[usize],
        _threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        Ok(self.0.lock().unwrap().clone())
    }
}

impl Steered {
    /// Runs the balancer with this plan. Returns the number of partitions whose wanted owner
    /// changed.
    pub fn rebalance(&self, queue: &BatchQueue<Sent>, plan: &[usize]) -> usize {
        self.set(plan);
        queue.rebalance()
    }

    pub fn set(&self, plan: &[usize]) {
        *self.0.lock().unwrap() = Some(plan.to_vec());
    }
}

/// `config` with a balancer that runs on request only.
pub fn steered(mut config: Config) -> (Config, Arc<Steered>) {
    let steered = Arc::new(Steered::default());
    config.balancer = Some(DrainBalancer::custom(steered.clone()));
    config.rebalance_interval = Duration::ZERO;
    (config, steered)
}

/// A host that collects the queue's log lines.
#[derive(Debug, Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The sum of the numbers of items in the lines with this part: `queue name: number ...`.
    pub fn count(&self, part: &str) -> u64 {
        let lines = self.0.lock().unwrap();
        let lines = lines.iter().filter(|line| line.contains(part));
        lines.map(|line| line.split(' ').nth(2).unwrap().parse::<u64>().unwrap()).sum()
    }

    pub fn any(&self, part: &str) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.contains(part))
    }
}

impl<T: Item> Host<T> for Lines {
    fn log(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }

    fn inform(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

pub fn start_with(lines: &Lines, config: Config) -> BatchQueue<Sent> {
    BatchQueue::builder("test", config).host(lines.clone()).start().unwrap()
}

/// The index of the current drain thread.
pub fn drain_thread() -> usize {
    let thread = std::thread::current();
    let name = thread.name().unwrap();
    name.rsplit('-').next().unwrap().parse().unwrap()
}

/// Records each item's number and the drain thread that delivered it.
#[derive(Debug, Clone, Default)]
pub struct Witness(Arc<Mutex<Vec<(usize, usize)>>>);

impl Witness {
    pub fn handler(&self) -> HandlerRef<Sent> {
        let seen = self.0.clone();
        HandlerRef::new(move |batch: &mut Batch<Sent>| {
            seen.lock().unwrap().extend(batch.drain().map(|item| (item.number, drain_thread())));
        })
    }

    /// The numbers and drain threads, in order.
    pub fn seen(&self) -> Vec<(usize, usize)> {
        self.0.lock().unwrap().clone()
    }
}

/// Collects its items.
#[derive(Debug, Clone, Default)]
pub struct Collector(pub Arc<Mutex<Vec<Sent>>>);

impl Handler<Sent> for Collector {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        self.0.lock().unwrap().extend(batch.drain());
        Ok(())
    }
}

impl Collector {
    pub fn items(&self) -> Vec<Sent> {
        self.0.lock().unwrap().clone()
    }

    pub fn handler(&self) -> HandlerRef<Sent> {
        HandlerRef::new(self.clone())
    }
}

/// Fails while it is down; collects its items when it is up again.
#[derive(Clone, Default)]
pub struct Sink {
    pub is_up: Arc<AtomicBool>,
    pub tries: Arc<AtomicUsize>,
    collector: Collector,
}

impl Sink {
    pub fn handler(&self) -> HandlerRef<Sent> {
        HandlerRef::new(self.clone())
    }

    pub fn wait_for_a_try(&self) {
        wait_until("the first try", || self.tries.load(SeqCst) > 0);
    }

    pub fn numbers(&self) -> Vec<usize> {
        self.collector.items().iter().map(|item| item.number).collect()
    }
}

impl Handler<Sent> for Sink {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        self.tries.fetch_add(1, SeqCst);
        if self.is_up.load(SeqCst) {
            self.collector.consume(batch)
        } else {
            Err(Failure::new("down"))
        }
    }
}

/// A latch that opens once. A wait that reaches [`PATIENCE`] fails.
#[derive(Debug, Default)]
pub struct Latch(Mutex<bool>, Condvar);

impl Latch {
    pub fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    pub fn wait(&self) {
        let open = self.0.lock().unwrap();
        let (open, _) = self.1.wait_timeout_while(open, PATIENCE, |open| !*open).unwrap();
        assert!(*open, "the latch was not opened in {PATIENCE:?}");
    }
}

/// A handler with two latches: it opens the first on entry and stays inside until the second opens.
/// Until then its drain thread takes nothing, so items that a test produces stay queued.
pub fn holding() -> (HandlerRef<Sent>, Arc<Latch>, Arc<Latch>) {
    let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let (inside, hold) = (entered.clone(), release.clone());
    let handler = HandlerRef::new(move |batch: &mut Batch<Sent>| {
        drop(batch.drain());
        inside.open();
        hold.wait();
    });
    (handler, entered, release)
}

/// Polls until `done`.
pub fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for: {what}");
        std::thread::yield_now();
    }
}

/// Shuts the queue down, which must complete without abandoning an item.
pub fn shut_down<T: Item>(queue: &BatchQueue<T>) {
    assert_eq!(queue.shutdown(Some(Instant::now() + PATIENCE)), 0, "{:?}", queue.stats());
}

/// Makes batches that back off try once more, as before the deadline of a shutdown, and shuts down.
pub fn try_once_more<T: Item>(queue: &BatchQueue<T>) {
    queue.close_to_outside(Some(Instant::now()));
    assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
    shut_down(queue);
}

pub fn assert_conserved(stats: &Stats) {
    assert_eq!(stats.attempts, stats.produced + stats.refused, "{stats:?}");
    assert_eq!(
        stats.produced,
        stats.consumed + stats.dead_lettered + stats.failed + stats.unhandled + stats.abandoned,
        "{stats:?}"
    );
    assert_eq!((stats.queued, stats.held, stats.in_flight), (0, 0, 0), "{stats:?}");
}

/// The current owner of each partition.
pub fn owners(queue: &BatchQueue<Sent>) -> Vec<usize> {
    queue.stats().partitions.iter().map(|partition| partition.owner).collect()
}
