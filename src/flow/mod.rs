//! The data plane, in the order in which an item passes through these files. Nothing here imports
//! the control side, which drain threads reach through [`Steering`](state::Steering).
//!
//! ```text
//!  produce.rs             a producer puts an item            BLOCKING waits, IF_POSSIBLE refuses
//!    many.rs              or many, under one lock
//!    pending.rs           or without waiting, from an event loop, which retries on no room
//!     │
//!  route.rs               partitions, their owners, the handlers of the types
//!    type_table.rs        type → partition, until the type is gone    a hot type: several, in turn
//!    type_handlers.rs     the handlers of a type
//!    owner.rs             which drain thread a partition belongs to
//!    retirements.rs       replaced or removed handlers that may still have a thread inside
//!     │
//!  partition.rs           open segment ──sealed when full──▶ channel
//!    put.rs               puts one item under its lock, or many
//!    room.rs, space.rs    the items that count against the bound; how producers wait for room
//!    ready.rs             "partition 7 has items": one bit; wakes the owner if it sleeps
//!    take.rs              takes queued items, segment by segment
//!    lanes.rs, lane.rs    taken items that are not settled, by type, in order
//!     │
//!  turn.rs                enter a partition, take, submit, leave with at most one job in flight
//!    cycle.rs             the owner's cycle: a series of turns and their calls
//!    sleep.rs             nothing left: rest, then sleep, for as long as idle_policy.rs says
//!     │
//!  call.rs                call the handler, count the outcome, retry or give up
//!    after_call.rs        the next job of the lane, and the next one at the handler lock
//!     │
//!  handler.rs             consume(batch), in the host of the handlers, such as the interpreter
//!    lock.rs              who may enter a handler, and whose job is next
//!    slow_calls.rs        slow handlers leave one thread for quick ones
//!    dead_letters.rs      items that failed for good, on their way to a handler
//!    dispatch_log.rs      when a line about refused, failed or unhandled items is due
//! ```
//!
//! Off the path:
//!
//! | file | what |
//! |---|---|
//! | `state.rs` | [`Flow`](state::Flow): shared by the producers and drain threads of one queue |
//! | `ownership.rs` | who may take from a partition; see `ownership/README.md` |
//! | `batch.rs` | the items of one call, and why it failed |
//! | `segments.rs` | runs of items, and a cache of emptied ones |
//! | `blocking.rs`, `awaited.rs` | waits of threads that others depend on, and what can end them |
//! | `deadlines.rs` | the deadlines of shutdowns, and the last try before them |

pub(crate) mod awaited;
pub(crate) mod batch;
pub(crate) mod blocking;
pub(crate) mod call;
pub(crate) mod deadlines;
pub(crate) mod handler;
#[cfg(all(test, loom))]
mod host_loom_tests;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod ownership;
pub(crate) mod partition;
pub(crate) mod produce;
pub(crate) mod route;
pub(crate) mod segments;
pub(crate) mod state;
pub(crate) mod turn;
