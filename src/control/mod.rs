//! The control plane: who drains what, when, and until when. It never touches items.
//!
//! | file | what |
//! |---|---|
//! | `state` | [`Control`](state::Control): the shared state of one queue's control side |
//! | `register`, `types` | adds, replaces and removes handlers; assigns partitions to their types |
//! | `handoff` | moves a partition from one drain thread to another |
//! | `meter`, `rebalancer` | the load of each partition; the thread that runs all balancers |
//! | `supervisor` | take-over from threads that are held up; spare threads |
//! | `watchdog` | log lines about long calls, blocked producers and waiting items |
//! | `drains` | what drains a queue: its own threads, the workers of a pool, or its callers |
//! | `log_helper` | writes log lines on its own thread: a log that hangs blocks nothing else |
//! | `close` | flush, shutdown and expiry |
//! | `snapshot` | reads statistics from a running queue |

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
