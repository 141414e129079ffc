//! What drains a queue: dedicated threads, which sleep between cycles, the workers of a pool that
//! queues share, or its callers.

pub(crate) mod dedicated;
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
pub(crate) mod inline;
mod park;
mod pool;
pub(crate) mod pooled;
mod registry;
mod running;
mod tasks;
mod worker;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod pool_tests;
#[cfg(all(test, not(loom)))]
mod registry_tests;
#[cfg(test)]
mod support;

pub(crate) use park::{Signal, SleepAttempt, SleepKind, Sleeper, Waker, sleeper, task_sleeper};
pub(crate) use pool::{Compensation, Limit, Pool, TaskHandle};
pub(crate) use registry::{PoolRef, shared_pool};
#[cfg_attr(not(feature = "python"), allow(unused_imports))] // for the bindings
pub(crate) use registry::{forget_pools, live_pools};
pub(crate) use running::{CountOut, RunningThreads};
pub(crate) use tasks::{After, PoolTask};
pub(crate) use worker::Live;
pub use worker::ThreadBody;
#[cfg(feature = "python")]
pub(crate) use worker::is_worker;
