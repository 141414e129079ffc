//! The data plane: the journey of an item, in the order in which it meets these files.
//!
//! ```text
//!  produce.rs    a producer brings an item                     BLOCKING waits, IF_POSSIBLE refuses
//!  bulk.rs       or many at once, with one lock for many items; run.rs: in one partition
//!  pending.rs       or without waiting, by an event loop: what found no room is kept, and tried again
//!  weighted.rs      or one that stands for many, like a block of rows
//!     │
//!  type_table.rs      type → partition, for the queue's life        a hot type: several, in turn
//!  route.rs      partitions, their owners, the handlers of the types; it only grows
//!     │
//!  partition.rs  open segment ──sealed when full──▶ channel    the counts
//!  gate.rs       what its lock guards: the open segment, the bound, the closed mark
//!     │
//!  ready.rs      "partition 7 has items"                       one bit; wakes the owner if it sleeps
//!     │
//!  take.rs       what is queued, segment by segment
//!  drain.rs      the owner's cycle: take, dispatch, quiescent point, where a partition may change its owner
//!     │
//!  dispatch.rs   group by type, enter each handler alone       tries again as the retry policy says
//!     │
//!  handler.rs    consume(batch)
//!     │
//!  idle_policy.rs       nothing left: rest, then sleep
//! ```
//!
//! Beside the way stand `space.rs`, the wait in front of a full partition; `segment_pool.rs`, emptied
//! segments; `side_calls.rs`, `on_idle` and `on_close`; `host.rs`, the world that the handlers live
//! in, such as the interpreter; and `blocking.rs`, the waits of threads on which others count.

pub(crate) mod blocking;
pub(crate) mod bulk;
pub(crate) mod consumption;
mod counts;
pub(crate) mod dispatch;
pub(crate) mod dispatch_log;
pub(crate) mod drain;
mod drain_sleep;
pub(crate) mod gate;
pub(crate) mod handler;
pub(crate) mod host;
#[cfg(all(test, loom))]
mod host_loom_tests;
pub(crate) mod idle_policy;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod partition;
#[cfg(all(test, not(loom)))]
mod partition_tests;
pub(crate) mod pause;
pub(crate) mod pending;
pub(crate) mod produce;
pub(crate) mod ready;
pub(crate) mod route;
mod run;
pub(crate) mod segment;
pub(crate) mod segment_pool;
mod side_calls;
pub(crate) mod slow_counts;
pub(crate) mod space;
pub(crate) mod take;
pub(crate) mod type_table;
mod weighted;
