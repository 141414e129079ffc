//! Items, handlers and waits that the tests share.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use batchqueue::{
    Assign, Batch, BatchQueue, Config, DrainBalancer, Failure, Handler, HandlerRef, Host, Item,
    PartitionPolicy, Stats, ThreadPolicy, TypeKey,
};

/// Far beyond what any of these tests needs: a wait that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An item of a type, from a producer, with its number there.
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

pub fn key(kind: usize) -> TypeKey {
    TypeKey((kind + 1) << 4)
}

pub fn sent(kind: usize, producer: usize, number: usize) -> Sent {
    Sent { kind, producer, number }
}

/// Endless sleeps, so that a lost wake-up is a failure and not a delay.
pub fn config(threads: usize) -> Config {
    Config {
        threads: ThreadPolicy::fixed(threads).unwrap(),
        partitions: PartitionPolicy::adaptive(25).unwrap(),
        max_idle: Duration::from_secs(60),
        ..Config::default()
    }
}

pub fn start(config: Config) -> BatchQueue<Sent> {
    BatchQueue::builder("test", config).start().unwrap()
}

/// A balancer that does what the test says, and nothing before that.
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
    /// Runs the balancer with this plan; how many partitions have another wanted owner now.
    pub fn rebalance(&self, queue: &BatchQueue<Sent>, plan: &[usize]) -> usize {
        *self.0.lock().unwrap() = Some(plan.to_vec());
        queue.rebalance()
    }
}

/// `config` with a balancer that runs only when it is asked.
pub fn steered(mut config: Config) -> (Config, Arc<Steered>) {
    let steered = Arc::new(Steered::default());
    config.balancer = Some(DrainBalancer::custom(steered.clone()));
    config.rebalance_interval = Duration::ZERO;
    (config, steered)
}

/// A host that keeps what the queue told the operator.
#[derive(Debug, Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
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

/// The drain thread that runs this, by its index.
pub fn drain_thread() -> usize {
    let thread = std::thread::current();
    let name = thread.name().unwrap();
    name.rsplit('-').next().unwrap().parse().unwrap()
}

/// Notes each item with the drain thread that brought it.
#[derive(Debug, Clone, Default)]
pub struct Witness(Arc<Mutex<Vec<(usize, usize)>>>);

impl Witness {
    pub fn handler(&self) -> HandlerRef<Sent> {
        let seen = self.0.clone();
        HandlerRef::new(move |batch: &mut Batch<Sent>| {
            seen.lock().unwrap().extend(batch.drain().map(|item| (item.number, drain_thread())));
        })
    }

    /// Numbers and drain threads, in order.
    pub fn seen(&self) -> Vec<(usize, usize)> {
        self.0.lock().unwrap().clone()
    }
}

/// Collects what it is given.
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

/// Opens once; a wait that is not answered fails.
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

/// A handler that says when it was entered and stays inside until it is let go. Once it is inside,
/// its drain thread takes nothing more, so what a test puts in afterwards stays queued.
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

/// A shutdown that must end by itself.
pub fn shut_down<T: Item>(queue: &BatchQueue<T>) {
    assert_eq!(queue.shutdown(Some(Instant::now() + PATIENCE)), 0, "{:?}", queue.stats());
}

pub fn assert_conserved(stats: &Stats) {
    assert_eq!(stats.attempts, stats.produced + stats.refused, "{stats:?}");
    assert_eq!(
        stats.produced,
        stats.consumed + stats.failed + stats.unhandled + stats.abandoned,
        "{stats:?}"
    );
    assert_eq!((stats.queued, stats.in_flight), (0, 0), "{stats:?}");
}

/// The drain thread inside each partition.
pub fn owners(queue: &BatchQueue<Sent>) -> Vec<usize> {
    queue.stats().partitions.iter().map(|one| one.owner).collect()
}
