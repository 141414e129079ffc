//! A queue's reports about itself: counts, statistics, and rate-limited log lines. The parts of a
//! queue pass their counts in; nothing here imports them.

pub(crate) mod counters;
pub(crate) mod histogram;
pub(crate) mod stats;
pub(crate) mod throttle;

#[cfg(not(loom))]
pub use crate::observe::counters::measure;
pub(crate) use crate::observe::counters::{
    CallFigures, CallTime, Calling, HandlerCounts, HandlerTally, Outcome, PartitionCounts,
    STUCK_AFTER, ThreadFigures, ThreadTally, measures,
};
pub use crate::observe::histogram::Histogram;
pub use crate::observe::stats::{
    DrainThreadStats, HandlerHistograms, HandlerStats, PartitionStats, Stats,
};
pub(crate) use crate::observe::throttle::{Due, Others, Throttle};
