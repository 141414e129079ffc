//! Balancing: from measured loads to wanted owners, by pure functions.
//!
//! | file | what |
//! |---|---|
//! | `strategy` | [`DrainBalancer`](crate::DrainBalancer): when to plan, and the repair of owners |
//! | `plan` | longest processing time first, from scratch; plans compared and validated |
//! | `simulation` | tests: the effect of balancing on throughput, minute by minute |
//!
//! `control/meter.rs` measures the loads, and `control/rebalancer.rs` carries the plans out.

pub(crate) mod plan;
#[cfg(all(test, not(loom)))]
mod simulation;
pub(crate) mod strategy;
