//! Statistics: snapshots of a queue.

use crate::item::TypeKey;
use crate::observe::counters::{
    Calling, HandlerCounts, PartitionCounts, STUCK_AFTER, ThreadFigures,
};
use crate::observe::histogram::Histogram;
use crate::sync::{Duration, Instant};

/// A snapshot of one queue. Counts are in items, and only those of items in the queue ever fall.
///
/// At any moment, `produced = consumed + dead_lettered + failed + unhandled + abandoned + queued +
/// held + in_flight`. At rest, the last three are 0 and `attempts = produced + refused`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// The capacity of each partition, in items.
    pub buffer_size: usize,
    /// Puts that were begun. A put of many items counts each one tried.
    pub attempts: u64,
    /// Items put in.
    pub produced: u64,
    /// Attempts that put nothing in: full, timed out, interrupted or closed.
    pub refused: u64,
    /// Items whose handler returned.
    pub consumed: u64,
    /// Items that failed for good and were accepted by a handler of dead letters.
    pub dead_lettered: u64,
    /// Other items that failed for good.
    pub failed: u64,
    /// Items without a handler.
    pub unhandled: u64,
    /// Items that an expired shutdown left behind.
    pub abandoned: u64,
    /// Items in partitions.
    pub queued: u64,
    /// Items taken but waiting: for their batch to become full, for their handler, for the next
    /// try, or for the handler of dead letters.
    pub held: u64,
    /// Items in running calls.
    pub in_flight: u64,
    /// The age of the oldest item that no call has had yet; zero if there is none.
    pub oldest_age: Duration,
    /// Runs of the balancer, including skipped and refused plans.
    pub rebalances: u64,
    /// Partitions that the balancer moved to another drain thread.
    pub moves: u64,
    /// Partitions that another drain thread took over because their own was held up in a handler.
    pub taken_over: u64,
    /// The ratio of the largest load of a drain thread to the smallest, in the interval before the
    /// last run; 1 before the first.
    pub load_ratio: f64,
    /// The longest time from the decision to move a partition until its new owner had it.
    pub longest_handoff: Duration,
    /// The partitions, by index.
    pub partitions: Vec<PartitionStats>,
    /// The registered types. With consumers, a single entry for all types, with the key
    /// [`TypeKey::CONSUMER`].
    pub handlers: Vec<HandlerStats>,
    /// The number of drain threads, without spare ones.
    pub thread_count: usize,
    /// The drain threads, by index, followed by the spare ones that have run.
    pub drain_threads: Vec<DrainThreadStats>,
    /// The names of handlers that a thread has been in for more than a second.
    pub stuck_handlers: Vec<String>,
    /// Lines about the queue that wait for the log, including the one being written.
    pub log_waiting: usize,
    /// Lines that were lost because too many waited.
    pub log_dropped: u64,
    /// How long the current line has been in writing; zero if there is none.
    pub log_in_line: Duration,
}

impl Stats {
    /// Creates a snapshot without partitions, handlers and threads.
    pub(crate) fn new(buffer_size: usize, abandoned: u64, longest_handoff: Duration) -> Self {
        Self { buffer_size, abandoned, longest_handoff, load_ratio: 1.0, ..Self::default() }
    }

    /// Adds a drain thread. `now` decides whether it is stuck, and `name_of` names the handler.
    pub(crate) fn add_thread(
        &mut self,
        index: usize,
        figures: &ThreadFigures,
        now: Instant,
        name_of: impl FnOnce(&Calling) -> String,
    ) {
        let ThreadFigures { counts, longest_handoff, cycles, cpu } = figures;
        self.consumed += counts.consumed;
        self.failed += counts.failed;
        self.unhandled += counts.unhandled;
        self.dead_lettered += counts.dead_lettered;
        if let Some((calling, since)) = &counts.calling
            && now.duration_since(*since) > STUCK_AFTER
        {
            self.stuck_handlers.push(name_of(calling));
        }
        self.longest_handoff = self.longest_handoff.max(*longest_handoff);
        self.add_unread_threads(index);
        self.drain_threads.push(DrainThreadStats {
            index,
            items: counts.settled(),
            cycles: *cycles,
            cpu: *cpu,
        });
    }

    /// Adds a type with a handler. `in_call`: how long a thread has been in the handler.
    pub(crate) fn add_handler(&mut self, key: TypeKey, counts: &HandlerCounts, in_call: Duration) {
        let calls = &counts.calls;
        self.handlers.push(HandlerStats {
            key,
            consumed: counts.consumed,
            failed: counts.failed,
            batches: counts.batches,
            ns_per_item: counts.ns_per_item,
            call_p50: Duration::from_nanos(calls.quantile(0.5)),
            call_p99: Duration::from_nanos(calls.quantile(0.99)),
            call_max: Duration::from_nanos(calls.max()),
            batch_items_mean: counts.batch_items.mean(),
            in_call,
        });
    }

    /// Adds the age of a partition's oldest item that no call has had, put at `since`.
    pub(crate) fn add_waiting(&mut self, since: Option<Instant>, now: Instant) {
        let age = since.map(|since| now.saturating_duration_since(since));
        self.oldest_age = self.oldest_age.max(age.unwrap_or_default());
    }

    /// Adds the next partition. `expired`: its items are abandoned and no longer count as used.
    pub(crate) fn add_partition(
        &mut self,
        counts: PartitionCounts,
        owner: usize,
        types: Vec<TypeKey>,
        expired: bool,
    ) {
        self.attempts += counts.attempts;
        self.produced += counts.pushed;
        self.refused += counts.refused;
        let (queued, taken, unsettled, held) = if expired {
            (0, 0, 0, 0)
        } else {
            let queued = counts.pushed - counts.taken;
            (queued, counts.taken, counts.taken - counts.settled, counts.held)
        };
        self.queued += queued;
        self.held += held;
        self.in_flight += taken;
        self.add_unread_threads(owner + 1);
        self.partitions.push(PartitionStats {
            index: self.partitions.len(),
            used: queued + unsettled,
            owner,
            attempts: counts.attempts,
            busy: counts.calls.total,
            types,
        });
    }

    /// Lists the first `count` threads. A spare thread that owns a partition may have started after
    /// the threads were read; items it has handled since belong to the next snapshot.
    fn add_unread_threads(&mut self, count: usize) {
        for index in self.drain_threads.len()..count {
            let unread = DrainThreadStats { index, items: 0, cycles: 0, cpu: Duration::ZERO };
            self.drain_threads.push(unread);
        }
    }

    /// Computes the items held and in flight: those taken but not counted as handled, so that no
    /// item counts twice. Called after all partitions were added, which were read after the
    /// threads. `letters`: items that wait for the handler of dead letters.
    pub(crate) fn finish(&mut self, letters: u64) {
        let handled = self.consumed + self.dead_lettered + self.failed + self.unhandled;
        let unsettled = self.in_flight.saturating_sub(handled);
        self.held = (self.held + letters).min(unsettled);
        self.in_flight = unsettled - self.held;
    }

    /// Returns the number of items queued, held and in flight.
    pub fn total_used(&self) -> u64 {
        self.queued + self.held + self.in_flight
    }

    /// Returns the capacity of all partitions, in items.
    pub fn total_capacity(&self) -> u64 {
        self.buffer_size as u64 * self.partitions.len() as u64
    }
}

/// A snapshot of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStats {
    /// The index, from 0.
    pub index: usize,
    /// Items queued, held and in flight.
    pub used: u64,
    /// The drain thread that owns it.
    pub owner: usize,
    /// Puts that were begun.
    pub attempts: u64,
    /// The time spent in handlers with its items so far.
    pub busy: Duration,
    /// The types routed to it.
    pub types: Vec<TypeKey>,
}

/// A snapshot of one registered type.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerStats {
    /// The type.
    pub key: TypeKey,
    /// Items whose handler returned.
    pub consumed: u64,
    /// Items that the handler failed for good, including those that a handler of dead letters
    /// accepted.
    pub failed: u64,
    /// Calls of `consume`.
    pub batches: u64,
    /// The moving average of the time in `consume` per item, without waiting for the handler.
    pub ns_per_item: f64,
    /// The median time of a call of `consume`, to within an eighth. Every try counts as a call.
    pub call_p50: Duration,
    /// The 99th percentile of the time of a call, to within an eighth.
    pub call_p99: Duration,
    /// The longest call so far.
    pub call_max: Duration,
    /// Items per call.
    pub batch_items_mean: f64,
    /// How long the current call has been running, the longest if there are several; zero if there
    /// is none.
    pub in_call: Duration,
}

/// A snapshot of the histograms of one registered type. Every try counts as a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandlerHistograms {
    /// How long the oldest item of each batch waited from its put to its first call, in
    /// nanoseconds. The time of the put is that of the first item of the segment or run of puts, so
    /// a value may be too large, but never too small.
    pub waits: Histogram,
    /// The items of each call.
    pub batch_items: Histogram,
    /// The time of each call, in nanoseconds.
    pub calls: Histogram,
}

impl From<HandlerCounts> for HandlerHistograms {
    fn from(counts: HandlerCounts) -> Self {
        let HandlerCounts { calls, batch_items, waits, .. } = counts;
        Self { waits, batch_items, calls }
    }
}

/// A snapshot of one drain thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainThreadStats {
    /// The index, from 0.
    pub index: usize,
    /// Items that it delivered.
    pub items: u64,
    /// Cycles that it completed.
    pub cycles: u64,
    /// The processor time that it used, including handlers, up to its last empty cycle or its end.
    pub cpu: Duration,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_partition_is_among_the_threads_of_the_snapshot() {
        let mut stats = Stats::new(8, 0, Duration::ZERO);
        stats.add_partition(PartitionCounts::default(), 2, Vec::new(), false);
        stats.add_partition(PartitionCounts::default(), 1, Vec::new(), false);
        let threads: Vec<_> = stats.drain_threads.iter().map(|thread| thread.index).collect();
        assert_eq!(threads, [0, 1, 2]);
    }
}
