//! Who should drain what: from measured loads to wanted owners, and from those to moves.
//!
//! | file | what |
//! |---|---|
//! | `meter` | what each partition was asked for, and what that costs |
//! | `strategy` | [`DrainBalancer`]: plan now or leave it; the door to the pure functions below |
//! | `sticky` | repair today's owners, or deal anew where repair does not reach |
//! | `repair` | moves and swaps between the most and the least loaded thread |
//! | `lpt` | deal anew: longest processing time first |
//! | `rank` | partitions in the order of their loads, and what no plan can beat |
//! | `plan` | plans compared, checked and weighed |
//! | `rebalancer` | one run for one queue: read, plan, move, say so |
//! | `control_thread` | whose turn it is, in the one thread that does this for the whole process |

mod balancing;
pub(crate) mod control_thread;
mod lpt;
mod meter;
mod plan;
mod rank;
mod rebalancer;
mod repair;
mod sticky;
mod strategy;
#[cfg(all(test, not(loom)))]
mod workloads;

pub(crate) use balancing::Balancing;
