//! Balancing: from measured loads to wanted owners. All of it is pure: numbers in, a plan out.
//!
//! | file | what |
//! |---|---|
//! | `strategy` | [`DrainBalancer`](crate::DrainBalancer): when to plan, and the repair of owners |
//! | `plan` | longest processing time first, from scratch; plans compared and validated |
//! | `simulation` | tests: what all this does to the work that gets done, minute after minute |
//!
//! `control/meter.rs` measures the loads, and `control/rebalancer.rs` carries the plans out.

pub(crate) mod plan;
#[cfg(all(test, not(loom)))]
mod simulation;
pub(crate) mod strategy;
