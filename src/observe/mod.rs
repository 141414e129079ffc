//! What a queue reports about itself: counts, statistics, and log lines that do not flood. The
//! parts of a queue hand their counts in; nothing here imports them.

mod counters;
mod stats;
mod throttle;

pub(crate) use counters::{
    CallTime, Calling, HandlerTally, Outcome, PartitionCounts, STUCK_AFTER, ThreadFigures,
    ThreadTally,
};
pub use stats::{DrainThreadStats, HandlerStats, PartitionStats, Stats};
pub(crate) use throttle::{Due, Others, Throttle};
