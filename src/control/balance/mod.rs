//! Balancing: from measured loads to wanted owners, and from wanted owners to moves.
//!
//! | file | contents |
//! |---|---|
//! | `meter` | the load of each partition: demand, or busy time |
//! | `strategy` | [`DrainBalancer`]: whether to plan now; the entry to the pure functions below |
//! | `sticky` | repair the current owners, or reassign from scratch where repair falls short |
//! | `repair` | moves and swaps between the most and the least loaded thread |
//! | `lpt` | reassign from scratch: longest processing time first |
//! | `rank` | partitions ordered by load, and bounds that no plan can beat |
//! | `plan` | compare, validate and weigh plans |
//! | `rebalancer` | one run for one queue: read, plan, move, log |
//! | `simulation` | tests: what all this does to the work that gets done, minute after minute |
//! | `control_thread` | the one thread per process that runs all balancers |

mod balancing;
pub(crate) mod control_thread;
mod lpt;
mod meter;
mod plan;
mod rank;
mod rebalancer;
mod repair;
#[cfg(all(test, not(loom)))]
mod simulation;
mod sticky;
mod strategy;
#[cfg(all(test, not(loom)))]
mod workloads;

pub(crate) use balancing::Balancing;
