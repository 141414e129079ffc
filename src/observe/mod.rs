//! What a queue reports about itself: counts, statistics, and log lines that do not flood. The
//! parts of a queue hand their counts in; nothing here imports them.

mod counters;
mod histogram;
mod measuring;
mod stats;
mod throttle;

pub(crate) use counters::{
    CallFigures, CallTime, Calling, HandlerCounts, HandlerTally, Outcome, PartitionCounts,
    STUCK_AFTER, ThreadFigures, ThreadTally,
};
pub use histogram::Histogram;
#[cfg(not(loom))]
pub use measuring::measure;
pub(crate) use measuring::measures;
pub use stats::{DrainThreadStats, HandlerHistograms, HandlerStats, PartitionStats, Stats};
pub(crate) use throttle::{Due, Others, Throttle};
