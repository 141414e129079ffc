//! What a queue says about itself: counts, snapshots, and log lines that do not flood.

mod counters;
mod stats;
mod throttle;

pub(crate) use counters::{
    Calling, HandlerTally, Outcome, PartitionCounts, STUCK_AFTER, ThreadFigures, ThreadTally,
};
pub use stats::{DrainThreadStats, HandlerStats, PartitionStats, Stats};
pub(crate) use throttle::Throttle;
