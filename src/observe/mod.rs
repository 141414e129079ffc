//! What a queue says about itself: counts, snapshots, and log lines that do not flood.

mod counters;
mod snapshot;
mod stats;
mod throttle;

pub(crate) use counters::{Calling, HandlerTally, Outcome, ThreadTally};
pub(crate) use snapshot::STUCK_AFTER;
pub use stats::{DrainThreadStats, HandlerStats, PartitionStats, Stats};
pub(crate) use throttle::Throttle;
