//! The data plane: the way of an item, in the order in which it meets these files. Nothing here
//! imports the control side, which drain threads reach through [`Steering`](state::Steering).
//!
//! ```text
//!  produce.rs             a producer brings an item          BLOCKING waits, IF_POSSIBLE refuses
//!    many.rs              or many, under one lock
//!    pending.rs           or without waiting, from an event loop: without room it is tried again
//!     │
//!  route.rs               partitions, their owners, the handlers of the types
//!    type_table.rs        type → partition, until the type has gone   a hot type: several, in turn
//!    type_handlers.rs     the handlers of a type
//!    owner.rs             which drain thread a partition belongs to
//!    retirements.rs       handlers that were replaced or removed, and may have a thread inside
//!     │
//!  partition.rs           open segment ──sealed when full──▶ channel
//!    put.rs               one put under its lock, or many
//!    room.rs, space.rs    what counts against the bound; how producers wait for room
//!    ready.rs             "partition 7 has items": one bit; wakes the owner if it sleeps
//!    take.rs              what is queued, segment by segment
//!    lanes.rs, lane.rs    what is taken and not settled, by type, in order
//!     │
//!  turn.rs                enter a partition, take, submit, leave with at most one job in flight
//!    cycle.rs             the owner's cycle: one turn after the other, and their calls
//!    sleep.rs             nothing left: rest, then sleep, as long as idle_policy.rs says
//!     │
//!  call.rs                call the handler, count the outcome, try again or give up
//!    after_call.rs        the next job of the lane, and the next one at the handler lock
//!     │
//!  handler.rs             consume(batch), in the host of the handlers, such as the interpreter
//!    lock.rs              who may enter a handler, and whose job is next there
//!    slow_calls.rs        slow handlers leave one thread to quick ones
//!    dead_letters.rs      what failed for good, on its way to the handler that keeps it
//!    dispatch_log.rs      when a line about refused, failed or unhandled items is due
//! ```
//!
//! Beside the way stand:
//!
//! | file | what |
//! |---|---|
//! | `state.rs` | [`Flow`](state::Flow): what producers and drain threads of one queue share |
//! | `ownership.rs` | who may take from a partition; see `ownership/README.md` |
//! | `batch.rs` | the items of one call, and why it failed |
//! | `segments.rs` | runs of items, and emptied ones for later use |
//! | `blocking.rs`, `awaited.rs` | waits of threads that others count on, and what these wait for |
//! | `deadlines.rs` | until when shutdowns wait, and the last try before that |

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
