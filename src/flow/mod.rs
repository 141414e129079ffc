//! The data plane: the way of an item, in the order in which it meets these rooms.
//!
//! ```text
//!  produce.rs           a producer brings an item          BLOCKING waits, IF_POSSIBLE refuses
//!    many.rs            or many, under one lock
//!    pending.rs         or without waiting, from an event loop: without room it is tried again
//!    weighted.rs        or one that stands for many, like a block of rows
//!    choke.rs           when a full partition is searched for types that are held up there
//!     │
//!  route.rs             partitions, their owners, the handlers of the types
//!    type_table.rs      type → partition, until the type has gone   a hot type: several, in turn
//!    changes.rs         partitions are added, types come and go
//!    idle_handlers.rs   the handlers that are called when there is nothing to do
//!     │
//!  partition.rs         open segment ──sealed when full──▶ channel
//!    gate.rs            what its lock guards: segment, bound, closed mark
//!    put.rs, run.rs     one put under it, or many
//!    linger.rs          items that wait for their batch to become full
//!    put_time.rs        when items were put
//!    room.rs, space.rs  what counts against the bound; how producers wait for room
//!    ready.rs           "partition 7 has items": one bit; wakes the owner if it sleeps
//!    take.rs            what is queued, segment by segment
//!     │
//!  turn.rs              enter a partition, take, submit, leave with at most one job in hand
//!    sort.rs            what is taken goes into the lanes of its types
//!    task.rs            a drain thread's share of the queue
//!    cycle.rs           the owner's cycle: one turn after the other, and their calls
//!    side_calls.rs      without a turn: `on_idle`; at the end: `on_close`
//!    sleep.rs           nothing left: rest, then sleep, as long as idle_policy.rs says
//!     │
//!  desk.rs              who may enter a handler, and whose job is next there
//!    lanes.rs, lane.rs  what is taken and not settled, by type, in order
//!    call.rs            call the handler, count the outcome
//!    after_call.rs      the next job of the lane, and the next one at the desk
//!    dead_jobs.rs       or, if it failed for good, to the handler of dead letters
//!     │
//!  handler.rs           consume(batch)
//!    host.rs            the environment of the handlers, such as the interpreter
//! ```
//!
//! Beside the way stand:
//!
//! | file | what |
//! |---|---|
//! | `state.rs` | what all of them share, and what they ask of the control side |
//! | `pause.rs` | how a caller waits |
//! | `blocking.rs`, `awaited.rs` | waits of threads that others count on, and what these wait for |
//! | `partition/segment.rs`, `segment_pool.rs` | segments, and emptied ones for later use |
//! | `partition/counts.rs`, `slow_counts.rs` | the counts of a partition |
//! | `turn/timers.rs` | when a partition has a batch to try again |
//! | `handler/batch.rs`, `failure.rs` | the items of one call; why it failed |
//! | `handler/call_settings.rs` | how the handlers of a type are called |
//! | `handler/dead_letters.rs` | what failed for good, on its way to the handler that keeps it |
//! | `handler/drop_items.rs` | drops items, of which some may panic |
//! | `handler/consumption.rs` | whether handlers or consumers get the batches |
//! | `handler/dispatch_log.rs` | when a line about refused, failed or unhandled items is due |

mod awaited;
pub(crate) mod blocking;
pub(crate) mod desk;
pub(crate) mod handler;
#[cfg(all(test, loom))]
mod host_loom_tests;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod partition;
pub(crate) mod pause;
pub(crate) mod produce;
pub(crate) mod route;
pub(crate) mod state;
pub(crate) mod turn;
