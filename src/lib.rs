//! `batchqueue`: a partitioned, self-draining queue. Producers put items in from any thread; native
//! drain threads take them out of bounded partitions, group them by type and hand each batch to the
//! handler of its type.
//!
//! ```text
//!  producers ──▶ partitions ──▶ drain threads ──▶ handlers
//!  (any thread)  (bounded)      (one owner each)   (never entered twice at once)
//! ```
//!
//! # Words
//!
//! The field's own: an *item* goes to the handler of its *type*. A *partition* is a bounded queue
//! with one *owner*, the *drain thread* that may enter it, and consists of *segments*. The *route*
//! is the published table from types to partitions, the *ready set* says which partitions have
//! something to do. A *batch* is the items of one call, and *in flight* during it; a *handler lock*
//! lets one thread at a time into a handler, and has a queue of tickets. A *plan* has the wanted
//! owners; a *handoff* changes one by a *revoke* and an *assign*. A drain thread is at a *quiescent
//! point* between two cycles, when nothing is in flight. A type is *stalled* where its batch holds
//! up a partition that it shares. A queue's *scheduler* is its own threads or a pool.
//!
//! Eight are this crate's, because no common word fits:
//!
//! | word | what | why no other |
//! |---|---|---|
//! | turn | a drain thread enters a partition, takes, submits and leaves | a time slice would have the calls in it |
//! | cycle | one turn after the other, with their calls | a tick or a round would have a length |
//! | lane | what is taken of one type from one partition and not settled, in order | a queue is what producers put into |
//! | job | the items of a lane that one call gets, with their tries | a batch does not know how often it was tried |
//! | to settle | to consume, dead-letter, fail or abandon an item, or leave it unhandled | to acknowledge would be the first only |
//! | take-over | a move away from a drain thread that is held up in a call | stealing takes single tasks |
//! | spare thread | one that runs only while all others are held up | users know the *compensating thread* of fork-join pools by this name |
//! | visit | a thread of the process comes to a queue at a time that was asked for | a timer only fires |
//!
//! # Promises
//!
//! * **P1 exclusive**: two calls into one handler instance never overlap.
//! * **P2 no loss, no duplication**: an accepted item is consumed, dead-lettered, failed, unhandled
//!   or abandoned, exactly once.
//! * **P3 order**: per type and producer thread with [`Selector::ByType`], else per partition and
//!   type; also through retries, while partitions move, and while types come and go.
//! * **P4 live**: every partition has an owner; a waiting producer is woken by space, timeout or
//!   close; balancing works while all drain threads are busy; a batch that backs off, or waits for
//!   its handler, holds up its own lane only, also where it fills a partition that it shares; a
//!   handler that hangs holds up its own items only, if there is another drain thread or may be a
//!   spare one; handlers that would wait for each other for ever do not.
//! * **P5 bounded**: at most `buffer_size` items per partition, queued or held in its lanes, plus
//!   `max_batch_items` in flight in each drain thread, plus a job that failed after producers had
//!   refilled its room, plus one buffer for each type that is held up in a partition it shares. At
//!   most `buffer_size` items wait for each handler of dead letters.
//! * **P6 handoff**: a partition has its new owner immediately; a call of its handler that is under
//!   way does not delay the move. No thread waits for the move, and nothing else stops.
//! * **P7 prompt and quiet**: the first item into an idle queue reaches its handler within
//!   `min_idle` and a wake-up; an idle queue costs nothing that grows with the number of types.
//! * **P8 nothing silent**: whatever is refused, failed, unhandled or abandoned is counted and
//!   logged, never per item.
//! * **P9 clean ends**: shutdown delivers what was accepted, and ends in time; what backs off is
//!   tried as before while there is time, and once more before its deadline.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | `queue` | start, produce, flush, shutdown |
//! | `item`, `config`, `error` | what a queue holds; what is asked for; what can go wrong |
//! | `flow` | the data plane, in the order in which an item meets its files |
//! | `control` | the control plane: handlers come and go, partitions move, queues end |
//! | `balance` | from measured loads to wanted owners, by pure functions |
//! | `threads` | dedicated threads and shared pools, and how they rest, sleep and wait |
//! | `observe` | counts and statistics |
//! | `sync` | the only door to locks, atomics, threads: real ones, or loom's |
//! | `arrow` | columnar data: record batches split by the values of a column |
//! | `entries` | records of Redis streams, from the bytes of a reply; only the bindings use it |
//! | `stages` | what a stage of a pipeline holds; only the bindings use it |
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
