//! The data plane: the way of an item, in the order in which it meets these files.
//!
//! ```text
//!  produce.rs        a producer brings an item            BLOCKING waits, IF_POSSIBLE refuses
//!  bulk.rs           or many, under one lock              run.rs: those for one partition
//!  pending.rs        or without waiting, from an event loop: an item without room is tried again
//!  weighted.rs       or one that stands for many, like a block of rows
//!     │
//!  type_table.rs     type → partition, for the queue's life        a hot type: several, in turn
//!  route.rs          partitions, their owners, the handlers of the types; it only grows
//!     │
//!  partition.rs      open segment ──sealed when full──▶ channel
//!  gate.rs           what its lock guards: the open segment, the bound, the closed mark
//!     │
//!  ready.rs          "partition 7 has items": one bit; wakes the owner if it sleeps
//!     │
//!  drain.rs          the owner's cycle: one turn after the other, and their calls
//!  turn.rs           enter a partition, take, submit, leave with at most one job in hand
//!  take.rs           what is queued, segment by segment
//!  lanes.rs, lane.rs what is taken and not settled, by type, in order
//!  desk.rs           who may enter a handler, and whose job is next there
//!     │
//!  call.rs           call the handler, count the outcome
//!  after_call.rs     the next job of the lane, and the next one at the desk
//!     │
//!  handler.rs        consume(batch)
//!     │
//!  drain_sleep.rs    nothing left: rest, then sleep, as long as idle_policy.rs says
//! ```
//!
//! Beside the way stand:
//!
//! | file | what |
//! |---|---|
//! | `room.rs`, `choke.rs` | the bound of a partition, and types that are held up there |
//! | `space.rs`, `pause.rs` | the wait for room in a full partition; how a caller waits |
//! | `segment.rs`, `segment_pool.rs` | segments, and emptied ones for later use |
//! | `counts.rs`, `slow_counts.rs` | the counts of a partition |
//! | `consumption.rs` | whether handlers or consumers get the batches |
//! | `side_calls.rs` | `on_idle` and `on_close` |
//! | `timers.rs` | when a partition has a batch to try again |
//! | `dispatch_log.rs` | when a line about refused, failed or unhandled items is due |
//! | `host.rs` | the environment of the handlers, such as the interpreter |
//! | `blocking.rs`, `awaited.rs` | waits of threads that others count on, and what these wait for |

mod after_call;
mod awaited;
pub(crate) mod blocking;
pub(crate) mod bulk;
pub(crate) mod call;
mod choke;
pub(crate) mod consumption;
mod counts;
pub(crate) mod desk;
pub(crate) mod dispatch_log;
pub(crate) mod drain;
mod drain_sleep;
pub(crate) mod gate;
pub(crate) mod handler;
pub(crate) mod host;
#[cfg(all(test, loom))]
mod host_loom_tests;
pub(crate) mod idle_policy;
pub(crate) mod lane;
pub(crate) mod lanes;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod partition;
#[cfg(all(test, not(loom)))]
mod partition_tests;
pub(crate) mod pause;
pub(crate) mod pending;
pub(crate) mod produce;
pub(crate) mod ready;
mod room;
pub(crate) mod route;
mod run;
pub(crate) mod segment;
pub(crate) mod segment_pool;
mod side_calls;
pub(crate) mod slow_counts;
pub(crate) mod space;
pub(crate) mod take;
mod timers;
mod turn;
pub(crate) mod type_table;
mod weighted;
