//! Snapshots of a queue.

use crate::flow::handler::TypeKey;
use crate::sync::Duration;

/// One queue at one moment. Counts are items and only grow.
///
/// At rest `produced = consumed + failed + unhandled + abandoned` and `attempts = produced +
/// refused`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    /// Items per partition.
    pub buffer_size: usize,
    /// Puts that were begun; a `put` of many counts those that were tried.
    pub attempts: u64,
    /// Items put in.
    pub produced: u64,
    /// Attempts that put nothing in: full, timed out, interrupted, closed.
    pub refused: u64,
    /// Items whose handler returned.
    pub consumed: u64,
    /// Items whose handler failed.
    pub failed: u64,
    /// Items without a handler.
    pub unhandled: u64,
    /// Items that a shutdown left behind when its time ran out.
    pub abandoned: u64,
    /// Items in partitions.
    pub queued: u64,
    /// Items that drain threads have in hand.
    pub in_flight: u64,
    /// Runs of the balancer, skipped and refused plans included.
    pub rebalances: u64,
    /// Partitions that it gave to another drain thread, those included that were taken back.
    pub moves: u64,
    /// Largest load of a drain thread over the smallest, in the interval before the last run; 1
    /// before the first.
    pub load_ratio: f64,
    /// The longest time from the decision to move a partition to its new owner.
    pub longest_handoff: Duration,
    /// The partitions, by index.
    pub partitions: Vec<PartitionStats>,
    /// The registered types.
    pub handlers: Vec<HandlerStats>,
    /// The drain threads, by index.
    pub drain_threads: Vec<DrainThreadStats>,
    /// Names of the handlers that a thread has been inside for more than a second.
    pub stuck_handlers: Vec<String>,
}

impl Stats {
    /// Queued and in flight.
    pub fn total_used(&self) -> u64 {
        self.queued + self.in_flight
    }

    /// Items that fit into all partitions.
    pub fn total_capacity(&self) -> u64 {
        self.buffer_size as u64 * self.partitions.len() as u64
    }
}

/// One partition at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStats {
    /// Its number, from 0.
    pub index: usize,
    /// Items queued and in flight.
    pub used: u64,
    /// The drain thread that owns it.
    pub owner: usize,
    /// Puts that were begun.
    pub attempts: u64,
    /// The types routed to it.
    pub types: Vec<TypeKey>,
}

/// One registered type at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerStats {
    /// The type.
    pub key: TypeKey,
    /// Items whose handler returned.
    pub consumed: u64,
    /// Items whose handler failed.
    pub failed: u64,
    /// Calls of `consume`.
    pub batches: u64,
    /// Moving average of the time in `consume` per item, waiting for the entry token excluded.
    pub ns_per_item: f64,
}

/// One drain thread at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainThreadStats {
    /// Its number, from 0.
    pub index: usize,
    /// Items it dispatched.
    pub items: u64,
    /// Cycles it completed.
    pub cycles: u64,
    /// Processor time it used, handlers included, up to its last empty cycle or its end.
    pub cpu: Duration,
}
