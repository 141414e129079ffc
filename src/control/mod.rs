//! The control plane: who drains what, when, and until when. It never touches items.

pub(crate) mod balance;
pub(crate) mod close;
pub(crate) mod ending;
pub(crate) mod flushes;
pub(crate) mod growth;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod ownership;
mod register;
mod retire;
pub(crate) mod retirements;
pub(crate) mod scheduler;
pub(crate) mod shutdown_waits;
pub(crate) mod thread_slots;
