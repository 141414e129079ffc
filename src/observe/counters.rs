//! The counts of delivered items, kept per drain thread and per handler.
//!
//! They change once per batch and not per item, so a quick lock is the cheapest way to give a
//! snapshot a consistent view, and to give an expired shutdown a cut-off between *handled* and
//! *abandoned*.

use crate::observe::histogram::Histogram;
use crate::sync::{Arc, Duration, Instant, QuickMutex};
#[cfg(not(loom))]
use crate::sync::{AtomicBool, Ordering};

/// Weight of the newest batch in the moving average of the time per item.
const EWMA_ALPHA: f64 = 0.2;

/// A handler that a thread has been inside for longer counts as stuck.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(1);

/// What became of a group of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Consumed,
    Failed,
    Unhandled,
    DeadLettered,
}

/// The counts of one partition at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct PartitionCounts {
    pub(crate) attempts: u64,
    pub(crate) pushed: u64,
    pub(crate) refused: u64,
    pub(crate) taken: u64,
    pub(crate) settled: u64,
    /// Of those that are taken and not settled, and not in flight.
    pub(crate) held: u64,
    pub(crate) calls: CallTime,
    /// All that is taken and not settled waits for its next try, and there is something.
    pub(crate) backs_off: bool,
}

/// The time that calls took which have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct CallTime {
    pub(crate) total: Duration,
    /// The sum of the squares, in square seconds.
    pub(crate) squares: f64,
    /// That of the last call.
    last: Duration,
}

impl CallTime {
    #[inline]
    pub(crate) fn add(&mut self, took: Duration) {
        self.total += took;
        self.squares += took.as_secs_f64() * took.as_secs_f64();
        self.last = took;
    }

    /// How long the next call may take: as long as the last one, or as a call takes that a random
    /// moment falls into, which quick failures hardly lower.
    pub(crate) fn expected(&self) -> Duration {
        let at_random = self.squares / self.total.as_secs_f64();
        Duration::try_from_secs_f64(at_random).unwrap_or(self.last).max(self.last)
    }
}

/// A call into a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Calling {
    /// With a batch of a partition, for a type by its number: no name is looked up on the path of a
    /// batch.
    Batch {
        number: usize,
        partition: usize,
    },
    Named(Arc<str>),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadCounts {
    pub(crate) consumed: u64,
    pub(crate) failed: u64,
    pub(crate) unhandled: u64,
    pub(crate) dead_lettered: u64,
    /// What the thread is inside of, and since when.
    pub(crate) calling: Option<(Calling, Instant)>,
    /// Past the cut-off: what the thread settles now was counted as abandoned.
    expired: bool,
}

impl ThreadCounts {
    pub(crate) fn settled(&self) -> u64 {
        self.consumed + self.failed + self.unhandled + self.dead_lettered
    }
}

/// What one drain thread reports about itself at one moment.
#[derive(Debug, Clone)]
pub(crate) struct ThreadFigures {
    pub(crate) counts: ThreadCounts,
    pub(crate) longest_handoff: Duration,
    pub(crate) cycles: u64,
    pub(crate) cpu: Duration,
}

/// What one drain thread delivered. Written by it and by an expiring shutdown, read by snapshots.
#[derive(Debug)]
pub(crate) struct ThreadTally(QuickMutex<ThreadCounts>);

impl ThreadTally {
    pub(crate) fn new() -> Self {
        Self(QuickMutex::new(ThreadCounts::default()))
    }

    /// Marks the thread as inside a handler. Returns `false` if the time is over: the handler must
    /// not be entered.
    pub(crate) fn begin_call(&self, calling: Calling, now: Instant) -> bool {
        let mut counts = self.0.lock();
        if counts.expired {
            return false;
        }
        counts.calling = Some((calling, now));
        true
    }

    /// Marks the thread as inside a call that carries no items, or as outside.
    pub(crate) fn side_call(&self, calling: Option<(Calling, Instant)>) {
        self.0.lock().calling = calling;
    }

    /// Counts a group. Returns `false` if it was counted as abandoned before.
    pub(crate) fn settle(&self, outcome: Outcome, items: u64) -> bool {
        let mut counts = self.0.lock();
        counts.calling = None;
        if counts.expired {
            return false;
        }
        match outcome {
            Outcome::Consumed => counts.consumed += items,
            Outcome::Failed => counts.failed += items,
            Outcome::Unhandled => counts.unhandled += items,
            Outcome::DeadLettered => counts.dead_lettered += items,
        }
        true
    }

    /// Sets the cut-off: what is not settled by now is abandoned. Returns the number of settled
    /// items.
    pub(crate) fn expire(&self) -> u64 {
        let mut counts = self.0.lock();
        counts.expired = true;
        counts.settled()
    }

    pub(crate) fn counts(&self) -> ThreadCounts {
        self.0.lock().clone()
    }
}

/// One call of a handler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallFigures {
    pub(crate) items: usize,
    pub(crate) took: Duration,
    /// How long the oldest of its items has waited for it, if no call had them before.
    pub(crate) waited: Option<Duration>,
}

/// What the handlers of one type were given. Written once per call.
#[derive(Debug, Default)]
pub(crate) struct HandlerTally(QuickMutex<HandlerCounts>);

#[derive(Debug, Clone, Default)]
pub(crate) struct HandlerCounts {
    pub(crate) consumed: u64,
    pub(crate) failed: u64,
    pub(crate) batches: u64,
    pub(crate) ns_per_item: f64,
    /// The time of each call, in nanoseconds.
    pub(crate) calls: Histogram,
    /// The items of each call.
    pub(crate) batch_items: Histogram,
    /// How long the oldest item of each batch has waited for its first call, in nanoseconds.
    pub(crate) waits: Histogram,
}

impl HandlerCounts {
    #[inline]
    fn note_call(&mut self, call: CallFigures) {
        self.calls.record(nanoseconds(call.took));
        self.batch_items.record(call.items as u64);
        if let Some(waited) = call.waited {
            self.waits.record(nanoseconds(waited));
        }
    }

    /// Adds what other handlers were given.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn merge(&mut self, other: &Self) {
        let batches = self.batches + other.batches;
        if batches > 0 {
            let total = self.ns_per_item * self.batches as f64;
            let more = other.ns_per_item * other.batches as f64;
            self.ns_per_item = (total + more) / batches as f64;
        }
        self.batches = batches;
        self.consumed += other.consumed;
        self.failed += other.failed;
        self.calls.merge(&other.calls);
        self.batch_items.merge(&other.batch_items);
        self.waits.merge(&other.waits);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl HandlerTally {
    #[allow(clippy::cast_precision_loss)]
    /// Counts items that are settled, after tries that took so long in all. `call`: the last of
    /// them, unless it was noted.
    pub(crate) fn settle(
        &self,
        consumed: u64,
        failed: u64,
        took: Duration,
        call: Option<CallFigures>,
    ) {
        let mut counts = self.0.lock();
        if let Some(call) = call {
            counts.note_call(call);
        }
        let newest = took.as_nanos() as f64 / (consumed + failed) as f64;
        counts.ns_per_item = if counts.batches == 0 {
            newest
        } else {
            counts.ns_per_item + EWMA_ALPHA * (newest - counts.ns_per_item)
        };
        counts.batches += 1;
        counts.consumed += consumed;
        counts.failed += failed;
    }

    /// Notes a call that settled nothing.
    pub(crate) fn note_call(&self, call: CallFigures) {
        self.0.lock().note_call(call);
    }

    pub(crate) fn counts(&self) -> HandlerCounts {
        self.0.lock().clone()
    }

    /// Reads the counts under their lock.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&HandlerCounts) -> R) -> R {
        read(&self.0.lock())
    }
}

// Whether calls and waits are measured. Always, but for the bench that shows what that costs, and
// in loom, which has no clock.

#[cfg(not(loom))]
static IS_ON: AtomicBool = AtomicBool::new(true);

#[cfg(not(loom))]
#[inline]
pub(crate) fn measures() -> bool {
    // Relaxed: nothing depends on when it is seen.
    IS_ON.load(Ordering::Relaxed)
}

#[cfg(loom)]
pub(crate) fn measures() -> bool {
    false
}

/// Switches the histograms and ages of all queues of the process off, or on again.
#[doc(hidden)]
#[cfg(not(loom))]
pub fn measure(on: bool) {
    // Relaxed: as in `measures`.
    IS_ON.store(on, Ordering::Relaxed);
}
