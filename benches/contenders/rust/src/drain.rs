//! The design shared by the stores: one store per partition. A drain thread owns the partitions
//! whose index modulo the number of threads is its own. It takes from them in turn, groups by type,
//! and calls each type's handler. After an empty cycle it sleeps 1 ms, doubling to 50 ms; a
//! producer that finds a partition full wakes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use crate::measure::Contender;
use crate::tally::{Metric, Tally};
use crate::workload::Workload;

const MAX_IDLE: Duration = Duration::from_millis(50);

/// The container of a partition's items.
pub trait Store: Send + Sync + 'static {
    fn bounded(capacity: usize) -> Self;

    /// Returns the item if the store is full.
    fn try_put(&self, metric: Metric) -> Result<(), Metric>;

    /// Waits while the store is full.
    fn put(&self, metric: Metric);

    /// Moves all items into `batch`, which is empty.
    fn take(&self, batch: &mut Vec<Metric>);
}

/// A type's handler, called through `dyn`.
trait Handler: Send {
    fn consume(&mut self, batch: &[Metric]);
}

struct NoOp {
    kind: usize,
    tally: Arc<Tally>,
}

impl Handler for NoOp {
    fn consume(&mut self, batch: &[Metric]) {
        self.tally.consume(self.kind, batch.len(), batch.iter());
    }
}

pub struct Partitioned<S> {
    stores: Arc<Vec<S>>,
    /// The partition of each type.
    route: Vec<usize>,
    threads: Vec<JoinHandle<()>>,
    /// The drain thread of each partition.
    owners: Vec<Thread>,
    closing: Arc<AtomicBool>,
}

impl<S: Store> Contender for Partitioned<S> {
    fn start(workload: &Workload, tally: &Arc<Tally>) -> Self {
        let (types, partitions) = (workload.types(), workload.partitions());
        let stores: Arc<Vec<S>> =
            Arc::new((0..partitions).map(|_| S::bounded(workload.buffer_size)).collect());
        let closing = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..workload.drain_threads)
            .map(|index| {
                let mine: Vec<usize> =
                    (index..partitions).step_by(workload.drain_threads).collect();
                let handlers = (0..types)
                    .map(|kind| Box::new(NoOp { kind, tally: tally.clone() }) as Box<dyn Handler>)
                    .collect();
                let (stores, closing) = (stores.clone(), closing.clone());
                thread::spawn(move || {
                    drain_loop(&stores, &mine, BatchByType::new(handlers), &closing)
                })
            })
            .collect();
        let owners =
            (0..partitions).map(|index| threads[index % threads.len()].thread().clone()).collect();
        Self {
            stores,
            route: (0..types).map(|kind| kind % partitions).collect(),
            threads,
            owners,
            closing,
        }
    }

    fn produce(&self, metric: Metric) {
        let partition = self.route[metric.kind];
        if let Err(metric) = self.stores[partition].try_put(metric) {
            self.owners[partition].unpark();
            self.stores[partition].put(metric);
        }
    }

    fn stop(&mut self) {
        // Release: pairs with the Acquire load in `drain_loop`. All items have been handled by
        // then.
        self.closing.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            thread.join().expect("a drain thread that does not panic");
        }
    }
}

fn drain_loop<S: Store>(
    stores: &[S],
    mine: &[usize],
    mut groups: BatchByType,
    closing: &AtomicBool,
) {
    let mut batch = Vec::new();
    let mut idle = Duration::from_millis(1);
    // Acquire: pairs with the Release store in `stop`.
    while !closing.load(Ordering::Acquire) {
        let mut empty = true;
        for &partition in mine {
            stores[partition].take(&mut batch);
            if !batch.is_empty() {
                empty = false;
                groups.dispatch(&mut batch);
            }
        }
        if empty {
            thread::park_timeout(idle);
            idle = (idle * 2).min(MAX_IDLE);
        } else {
            idle = Duration::from_millis(1);
        }
    }
}

/// A drain thread's handlers, and its batch grouped by type.
struct BatchByType {
    handlers: Vec<Box<dyn Handler>>,
    by_type: Vec<Vec<Metric>>,
    touched: Vec<usize>,
}

impl BatchByType {
    fn new(handlers: Vec<Box<dyn Handler>>) -> Self {
        Self { by_type: vec![Vec::new(); handlers.len()], handlers, touched: Vec::new() }
    }

    /// Calls the handlers and empties the batch. A batch of a single type goes to its handler
    /// unchanged.
    fn dispatch(&mut self, batch: &mut Vec<Metric>) {
        let first = batch[0].kind;
        if batch.iter().all(|metric| metric.kind == first) {
            self.handlers[first].consume(batch);
            batch.clear();
            return;
        }
        for metric in batch.drain(..) {
            let group = &mut self.by_type[metric.kind];
            if group.is_empty() {
                self.touched.push(metric.kind);
            }
            group.push(metric);
        }
        for kind in self.touched.drain(..) {
            self.handlers[kind].consume(&self.by_type[kind]);
            self.by_type[kind].clear();
        }
    }
}
