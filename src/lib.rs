//! `batchqueue`: a partitioned, self-draining queue. Producers put items in from any thread; native
//! drain threads take them out of bounded partitions, group them by type and pass each batch to the
//! handler of its type.
//!
//! ```text
//!  producers ──▶ partitions ──▶ drain threads ──▶ handlers
//!  (any thread)  (bounded)      (one owner each)   (never entered twice at once)
//! ```
//!
//! # Words
//!
//! Common terms: an *item* goes to the handler of its *type*. A *partition* is a bounded queue,
//! made of *segments*, with one *owner*: the *drain thread* that may enter it. The *route* is the
//! published table from types to partitions; the *ready set* holds the partitions with work. A
//! *batch* is the items of one call, which are *in flight* during it. A *handler lock* lets one
//! thread at a time into a handler, and has a queue of tickets. A *plan* is the wanted owners; a
//! *handoff* changes an owner by a *revoke* and an *assign*. A drain thread is at a *quiescent
//! point* between two cycles, when nothing is in flight. A type is *stalled* in a shared partition
//! that its batch holds up. A queue's *scheduler* is its own threads or a pool.
//!
//! Eight words are this crate's, because no common one fits:
//!
//! * **turn**: a drain thread enters a partition, takes, submits and leaves. (A time slice would
//!   include the calls.)
//! * **cycle**: one turn after the other, with their calls. (A tick or a round would have a fixed
//!   length.)
//! * **lane**: the items of one type taken from one partition and not settled, in order. (A queue
//!   is what producers put into.)
//! * **job**: the items of a lane that one call gets, with their tries. (A batch does not know how
//!   often it was tried.)
//! * to **settle** an item: to consume, dead-letter, fail or abandon it, or leave it unhandled. (To
//!   acknowledge would be the first only.)
//! * **take-over**: a move away from a drain thread that is held up in a call. (Stealing takes
//!   single tasks.)
//! * **spare thread**: a thread that runs only while all others are held up. (Users know the
//!   *compensating thread* of fork-join pools by this name.)
//! * **visit**: a per-process thread serves a queue at a requested time. (A timer only fires.)
//!
//! # Promises
//!
//! * **P1 exclusive**: two calls into one handler instance never overlap.
//! * **P2 no loss, no duplication**: an accepted item is consumed, dead-lettered, failed, unhandled
//!   or abandoned, exactly once.
//! * **P3 order**: per type and producer thread with [`Selector::ByType`], else per partition and
//!   type; also through retries, while partitions move, and while types come and go.
//! * **P4 live**: every partition has an owner; a waiting producer is woken by space, timeout or
//!   close; balancing works while all drain threads are busy; a batch that backs off or waits for
//!   its handler holds up only its own lane, even if it fills a shared partition; a handler that
//!   hangs holds up only its own items, if there is another drain thread or a spare one may start;
//!   handlers do not deadlock by waiting for each other.
//! * **P5 bounded**: at most `buffer_size` items per partition, queued or held in its lanes, plus
//!   `max_batch_items` in flight in each drain thread, plus a job that failed after producers had
//!   refilled its room, plus one buffer for each type that is held up in a shared partition. At
//!   most `buffer_size` items wait for each handler of dead letters.
//! * **P6 handoff**: a partition gets its new owner immediately; a running call of its handler does
//!   not delay the move. No thread waits for the move, and nothing else stops.
//! * **P7 prompt and quiet**: the first item into an idle queue reaches its handler within
//!   `min_idle` and a wake-up; an idle queue costs nothing that grows with the number of types.
//! * **P8 nothing silent**: refused, failed, unhandled and abandoned items are counted and logged,
//!   but never with a line per item.
//! * **P9 clean ends**: shutdown delivers accepted items, and ends in time; batches that back off
//!   are tried as before while there is time, and once more before the deadline.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | `queue` | start, produce, flush, shutdown |
//! | `item`, `config`, `error` | items and types; settings; errors |
//! | `flow` | the data plane, in the order in which an item meets its files |
//! | `control` | the control plane: adds and removes handlers, moves partitions, ends queues |
//! | `balance` | from measured loads to wanted owners, by pure functions |
//! | `threads` | dedicated threads and shared pools: how they rest, sleep and wait |
//! | `observe` | counts and statistics |
//! | `sync` | the only door to locks, atomics, threads: real ones, or loom's |
//! | `arrow` | columnar data: record batches split by the values of a column |
//! | `entries` | records of Redis streams, parsed from a reply; only for the bindings |
//! | `stages` | the items held by a pipeline stage; only for the bindings |
//! | `python` | the bindings; they translate and do nothing else |
//!
//! Each module imports those below it: `queue` > `control` > `flow` > `threads` > `observe` >
//! `balance`, `item` > `config` > `error` > `sync`. `flow/ownership/README.md` and
//! `threads/README.md` describe the protocols between threads.

#[cfg(feature = "arrow")]
pub mod arrow;
mod balance;
mod config;
mod control;
#[cfg(any(feature = "python", all(test, not(loom))))]
mod entries;
mod error;
mod flow;
mod item;
mod observe;
#[cfg(feature = "python")]
mod python;
mod queue;
#[cfg(any(feature = "python", all(test, not(loom))))]
mod stages;
mod sync;
#[cfg(test)]
mod testing;
mod threads;

pub use crate::config::{
    Assign, BufferStrategy, Config, DrainBalancer, PartitionPolicy, RetryPolicy, Selector,
    ThreadPolicy, available_cores,
};
pub use crate::error::{AddHandlerError, Closed, ConfigError, FlushError, ProduceError};
pub use crate::flow::batch::{Batch, Cause, DeadLetters, Drain, Failure};
pub use crate::flow::handler::lock::HandlerLock;
pub use crate::flow::handler::{Handler, HandlerRef, Handlers, Host, NoHost};
pub use crate::flow::partition::space::Listener;
pub use crate::flow::produce::pending::{Line, Listening, PendingItem, TryProduceError};
pub use crate::item::{HandledType, Item, TypeKey};
#[doc(hidden)]
#[cfg(not(loom))]
pub use crate::observe::measure;
pub use crate::observe::{
    DrainThreadStats, HandlerHistograms, HandlerStats, Histogram, PartitionStats, Stats,
};
pub use crate::queue::{BatchQueue, Builder, WeakQueue};
pub use crate::threads::pool::ThreadBody;
pub use crate::threads::waits::{Pause, Wait};
