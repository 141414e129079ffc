//! Which thread may drain a partition, and how that changes. `README.md` in this folder describes
//! the protocol and its states.

mod handoff;
#[cfg(all(test, loom))]
mod loom_rules;
#[cfg(all(test, loom))]
mod loom_tests;
mod table;
mod turn;

pub(crate) use table::{Owner, OwnerWord};
