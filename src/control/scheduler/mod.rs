//! Who runs a queue's drain: dedicated threads, and how they sleep; or the workers of a pool that queues share.

mod park;
#[allow(dead_code)] // The queue side of a shared pool is not in this crate yet.
mod pool;
#[cfg(not(loom))]
#[allow(dead_code)] // As above.
mod shared;
#[allow(dead_code)] // As above.
mod tasks;
#[allow(dead_code)] // As above.
mod worker;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod pool_tests;
#[cfg(all(test, not(loom)))]
mod shared_tests;
#[cfg(test)]
mod support;

pub(crate) use park::{SleepAttempt, SleepKind, Sleeper, Waker, sleeper};
#[allow(unused_imports)] // As above.
pub(crate) use pool::{Compensation, Live, Pool, TaskHandle};
#[cfg(not(loom))]
#[allow(unused_imports)] // As above.
pub(crate) use shared::{PoolRef, forget_pools, shared_pool};
#[allow(unused_imports)] // As above.
pub(crate) use tasks::{After, PoolTask};
