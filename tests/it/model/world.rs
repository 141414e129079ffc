//! The shared state of a run's actors and handlers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use batchqueue::{BatchQueue, Pause, ProduceError, Selector};

use super::keeper::Kept;
use super::probe::Probe;
use super::settings::{End, KINDS, Settings};
use crate::support::{PATIENCE, Sent, sent};

/// An item whose outcome is final.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    pub item: Sent,
    pub consumed: bool,
    pub probe: usize,
}

pub struct World {
    pub settings: Settings,
    started: Instant,
    queue: OnceLock<Weak<BatchQueue<Sent>>>,
    pub probes: Mutex<Vec<Arc<Probe>>>,
    /// By type, in the order in which handlers received them.
    pub ended: Vec<Mutex<Vec<Ended>>>,
    /// Items that wait for their next try: they fail if their handler is removed before that.
    pub between_tries: Mutex<HashSet<(usize, usize, usize)>>,
    /// Dead letters.
    pub kept: Mutex<Kept>,
    pub accepted: Mutex<Vec<Sent>>,
    pub refused: AtomicU64,
    /// How many items handlers may still produce.
    pub feeds: AtomicUsize,
    pub violations: Mutex<Vec<String>>,
}

impl World {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            started: Instant::now(),
            queue: OnceLock::new(),
            probes: Mutex::default(),
            ended: (0..KINDS).map(|_| Mutex::default()).collect(),
            between_tries: Mutex::default(),
            kept: Mutex::default(),
            accepted: Mutex::default(),
            refused: AtomicU64::new(0),
            feeds: AtomicUsize::new(300),
            violations: Mutex::default(),
        }
    }

    pub fn meet(&self, queue: &Arc<BatchQueue<Sent>>) {
        self.queue.set(Arc::downgrade(queue)).unwrap();
    }

    /// The queue, for handlers. Returns `None` before [`meet`](Self::meet) and once the queue is
    /// dropped.
    pub fn queue(&self) -> Option<Arc<BatchQueue<Sent>>> {
        self.queue.get().and_then(Weak::upgrade)
    }

    pub fn may_run_out_of_time(&self) -> bool {
        self.settings.end == End::OutOfTime
    }

    /// Whether a batch may have waited for so long in a full partition that its type is stalled.
    pub fn may_stall(&self) -> bool {
        self.started.elapsed() >= Duration::from_millis(100)
    }

    /// Whether there is a violation, which ends the run.
    pub fn is_wrong(&self) -> bool {
        !self.violations.lock().unwrap().is_empty()
    }

    pub fn violation(&self, what: impl Into<String>) {
        self.violations.lock().unwrap().push(what.into());
    }

    /// Returns the partition for an item with the selector `Given`: always the same for a type and
    /// producer, so that order can be checked.
    pub fn partition(&self, queue: &BatchQueue<Sent>, item: Sent) -> Option<usize> {
        let given = self.settings.config.selector == Selector::Given;
        // Partitions grow only with `ByType`: the count is the same at each call.
        given.then(|| (item.kind * 7 + item.producer) % queue.partition_count())
    }

    /// Produces one item and records the result.
    pub fn produce(&self, queue: &BatchQueue<Sent>, item: Sent) {
        let partition = self.partition(queue, item);
        match queue.produce_with(item, partition, None, &mut Impatient::default()) {
            Ok(()) => self.accepted.lock().unwrap().push(item),
            Err(refused) => {
                if let ProduceError::Interrupted(item, Hung) = refused {
                    self.violation(format!("{item:?} waited for space for {PATIENCE:?}"));
                }
                self.refused.fetch_add(1, Relaxed);
            }
        }
    }

    /// Produces many items and records the result.
    pub fn produce_many(&self, queue: &BatchQueue<Sent>, items: &[Sent]) {
        let mut left = Vec::from(items).into_iter();
        let result = queue.produce_many(&mut left, None, &mut Impatient::default());
        let accepted = items.len() - left.len() - usize::from(result.is_err());
        self.accepted.lock().unwrap().extend(&items[..accepted]);
        match result {
            Ok(()) if accepted < items.len() => {
                self.violation("items were left behind without an error");
            }
            Ok(()) => {}
            Err(refused) => {
                if let ProduceError::Interrupted(_, Hung) = refused {
                    self.violation(format!(
                        "{} items waited for space for {PATIENCE:?}",
                        left.len()
                    ));
                }
                self.refused.fetch_add(1, Relaxed);
            }
        }
    }

    /// Produces an item from a handler. Each handler instance counts as a producer, because its
    /// calls never overlap.
    pub fn feed(&self, queue: &BatchQueue<Sent>, kind: usize, producer: usize, number: usize) {
        if self.feeds.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            self.produce(queue, sent(kind, producer, number));
        }
    }
}

/// A wait took far too long.
#[derive(Debug, PartialEq, Eq)]
pub struct Hung;

/// Waits in slices, up to a limit: a test that hangs does not report why.
pub struct Impatient(Instant);

impl Default for Impatient {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Pause for Impatient {
    type Interrupt = Hung;

    fn pause(
        &mut self,
        wait: &mut (dyn FnMut(Option<std::time::Duration>) + Send),
    ) -> Result<(), Hung> {
        if self.0.elapsed() > PATIENCE {
            return Err(Hung);
        }
        wait(Some(PATIENCE));
        Ok(())
    }
}
