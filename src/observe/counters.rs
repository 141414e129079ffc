//! The counts of delivered items, kept per drain thread and per handler.
//!
//! They change per batch and not per item, so a quick lock is the cheapest way to give snapshots a
//! consistent view, and an expired shutdown a cut-off between *handled* and *abandoned*.

use crate::observe::histogram::Histogram;
use crate::sync::{Arc, Duration, Instant, QuickMutex};
#[cfg(not(loom))]
use crate::sync::{AtomicBool, Ordering};

/// The weight of the newest batch in the moving average of the time per item.
const EWMA_ALPHA: f64 = 0.2;

/// How long a thread may be in a handler before the handler counts as stuck.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(1);

/// The outcome of a group of items.
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
    /// Items that are taken and not settled, but not in flight.
    pub(crate) held: u64,
    pub(crate) calls: CallTime,
    /// Whether there are unsettled items, and all of them wait for their next try.
    pub(crate) backs_off: bool,
}

/// The time of calls that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct CallTime {
    pub(crate) total: Duration,
    /// The sum of the squared times, in square seconds.
    pub(crate) squares: f64,
    /// The time of the last call.
    last: Duration,
}

impl CallTime {
    #[inline]
    pub(crate) fn add(&mut self, took: Duration) {
        self.total += took;
        self.squares += took.as_secs_f64() * took.as_secs_f64();
        self.last = took;
    }

    /// Returns the expected time of the next call: that of the last one, or, if longer, that of the
    /// call in progress at a random moment, which quick failures hardly lower.
    pub(crate) fn expected(&self) -> Duration {
        let at_random = self.squares / self.total.as_secs_f64();
        Duration::try_from_secs_f64(at_random).unwrap_or(self.last).max(self.last)
    }
}

/// A call into a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Calling {
    /// A call with a batch of a partition. The type is given by number, to avoid a name lookup per
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
    /// The call that the thread is in, and since when.
    pub(crate) calling: Option<(Calling, Instant)>,
    /// Whether the cut-off has passed: items settled after it were counted as abandoned.
    expired: bool,
}

impl ThreadCounts {
    pub(crate) fn settled(&self) -> u64 {
        self.consumed + self.failed + self.unhandled + self.dead_lettered
    }
}

/// The figures of one drain thread at one moment.
#[derive(Debug, Clone)]
pub(crate) struct ThreadFigures {
    pub(crate) counts: ThreadCounts,
    pub(crate) longest_handoff: Duration,
    pub(crate) cycles: u64,
    pub(crate) cpu: Duration,
}

/// The deliveries of one drain thread. Written by the thread and by an expiring shutdown, read by
/// snapshots.
#[derive(Debug)]
pub(crate) struct ThreadTally(QuickMutex<ThreadCounts>);

impl ThreadTally {
    pub(crate) fn new() -> Self {
        Self(QuickMutex::new(ThreadCounts::default()))
    }

    /// Marks the thread as inside a handler. Returns `false` if the cut-off has passed: the handler
    /// must not be entered.
    pub(crate) fn begin_call(&self, calling: Calling, now: Instant) -> bool {
        let mut counts = self.0.lock();
        if counts.expired {
            return false;
        }
        counts.calling = Some((calling, now));
        true
    }

    /// Marks the thread as inside a call without items, or as outside.
    pub(crate) fn side_call(&self, calling: Option<(Calling, Instant)>) {
        self.0.lock().calling = calling;
    }

    /// Counts a group of settled items. Returns `false` if they were already counted as abandoned.
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

    /// Sets the cut-off: items that are not settled by now are abandoned. Returns the number of
    /// settled items.
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
    /// How long the oldest of its items waited for the call, if this was their first.
    pub(crate) waited: Option<Duration>,
}

/// The calls of one type's handlers. Written once per call.
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
    /// How long the oldest item of each batch waited for its first call, in nanoseconds.
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

    /// Adds the counts of other handlers.
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
    /// Counts settled items, whose tries `took` this long in all. `call` is the last try, unless
    /// already noted.
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

// Whether calls and waits are measured: always, except in the bench that shows what this costs, and
// under loom, which has no clock.

#[cfg(not(loom))]
static IS_ON: AtomicBool = AtomicBool::new(true);

#[cfg(not(loom))]
#[inline]
pub(crate) fn measures() -> bool {
    // Relaxed: nothing depends on when a change is seen.
    IS_ON.load(Ordering::Relaxed)
}

#[cfg(loom)]
pub(crate) fn measures() -> bool {
    false
}

/// Turns the histograms and ages of all queues of the process on or off.
#[doc(hidden)]
#[cfg(not(loom))]
pub fn measure(on: bool) {
    // Relaxed: as in `measures`.
    IS_ON.store(on, Ordering::Relaxed);
}
