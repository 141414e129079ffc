//! Who should drain what: from measured loads to wanted owners. Pure functions; nothing here knows a queue or a thread.
//!
//! | file | what |
//! |---|---|
//! | `strategy` | [`DrainBalancer`]: plan now or leave it; the door to all below |
//! | `sticky` | repair today's owners, or deal anew where repair does not reach |
//! | `repair` | moves and swaps between the most and the least loaded thread |
//! | `lpt` | deal anew: longest processing time first |
//! | `rank` | partitions in the order of their loads, and what no plan can beat |
//! | `plan` | plans compared, checked and weighed |

mod lpt;
// What reports and moves are made of; its other half serves the strategies.
#[cfg_attr(any(not(test), loom), allow(dead_code))]
pub(crate) mod plan;
mod rank;
mod repair;
mod sticky;
mod strategy;
#[cfg(all(test, not(loom)))]
mod workloads;

pub use strategy::{Assign, DrainBalancer};
