//! `batchqueue`: a partitioned, self-draining queue. Producers put items in from any thread; native drain threads take
//! them out of bounded partitions, group them by type and hand each batch to the handler of its type.
//!
//! ```text
//!  producers ──▶ partitions ──▶ drain threads ──▶ handlers
//!  (any thread)  (bounded)      (one owner each)   (never entered twice at once)
//! ```
//!
//! # Words
//!
//! *Item*: what goes in. *Type*: which handler it goes to. *Partition*: a bounded run of items with one owner.
//! *Segment*: a run of items inside a partition. *Route*: the published table type → partition. *Ready set*: which
//! partitions have items. *Drain thread*: takes and dispatches. *Cycle*: take, dispatch, quiescent point.
//! *Quiescent point*: nothing is in hand. *Batch*: the items of one type that one cycle took. *Entry token*: the right
//! to enter a handler. *Owner*: the drain thread that may take from a partition. *Plan*: the wanted owners. *Move*:
//! one partition that changes its owner.
//!
//! # Promises
//!
//! * **P1 exclusive**: two calls into one handler instance never overlap.
//! * **P2 no loss, no duplication**: an accepted item is consumed, failed, unhandled or abandoned, exactly once.
//! * **P3 order**: per type and producer thread with [`Selector::ByType`], else per partition.
//! * **P5 bounded**: at most `buffer_size` items per partition, plus `max_batch_items` in flight per drain thread.
//! * **P8 nothing silent**: whatever is refused, failed, unhandled or abandoned is counted and logged, never per item.
//! * **P9 clean ends**: shutdown delivers what was accepted, and ends in time.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | `queue` | [`BatchQueue`]: start, produce, flush, shutdown |
//! | `config`, `error` | what is asked for; what can go wrong |
//! | `flow` | the data plane, in the order in which an item meets its files |
//! | `control` | the control plane: owners, balance, sleep and wake, close |
//! | `observe` | counts and snapshots |
//! | `shared` | what the threads of one queue share, with who writes what |
//! | `sync` | the only door to locks, atomics, threads: real ones, or loom's |
//! | `faults` | switches that turn one rule off, to see its tests go red |
//! | `python` | the bindings; they translate and do nothing else |

mod config;
mod control;
mod error;
mod faults;
mod flow;
#[cfg(all(test, loom))]
mod loom_tests;
mod observe;
mod queue;
mod shared;
mod sync;

#[cfg(feature = "python")]
mod python;

pub use config::{BufferStrategy, Config, PartitionPolicy, RetryPolicy, Selector, ThreadPolicy, available_cores};
pub use control::balance::{Assign, DrainBalancer};
pub use error::{AddHandlerError, Closed, ConfigError, FlushError, ProduceError};
pub use flow::handler::{Batch, Drain, EntryToken, Failure, HandledType, Handler, HandlerRef, Item, TypeKey};
pub use flow::host::{Host, NoHost};
pub use flow::produce::{Pause, Wait};
pub use observe::{DrainThreadStats, HandlerStats, PartitionStats, Stats};
pub use queue::{BatchQueue, Builder, WeakQueue};
