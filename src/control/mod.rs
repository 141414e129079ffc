//! The control plane: who drains what, when, and until when. It never touches items.
//!
//! | file | what |
//! |---|---|
//! | `state` | [`Control`](state::Control): what the control side of one queue shares |
//! | `register`, `types` | handlers come, are replaced and go; which partitions their types get |
//! | `handoff` | moves a partition from one drain thread to another |
//! | `meter`, `rebalancer` | the load of each partition; the thread that runs all balancers |
//! | `supervisor` | other threads take over from one that is held up; spare threads |
//! | `watchdog` | log lines about calls, producers and items that take long |
//! | `drains` | what drains a queue: its own threads, the workers of a pool, or its callers |
//! | `log_helper` | writes log lines on another thread: a log that hangs holds up nothing else |
//! | `close` | flush, shutdown and expiry |
//! | `snapshot` | how statistics are read from a running queue |

pub(crate) mod close;
pub(crate) mod drains;
pub(crate) mod handoff;
pub(crate) mod log_helper;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod meter;
pub(crate) mod rebalancer;
pub(crate) mod register;
pub(crate) mod snapshot;
pub(crate) mod state;
pub(crate) mod supervisor;
pub(crate) mod types;
pub(crate) mod watchdog;
