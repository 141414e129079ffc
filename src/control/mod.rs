//! The control plane: who drains what, when, and until when. It never touches items.
//!
//! | file | what |
//! |---|---|
//! | `ownership` | who may take from a partition, and how that changes |
//! | `balance` | which thread should own which partition |
//! | `scheduler` | dedicated drain threads, or the workers of a shared pool |
//! | `thread_slots` | what the others see of each drain thread, and how they wake it |
//! | `register`, `growth` | new handlers and types; the partitions that they get |
//! | `retire`, `retirements` | replaced and removed handlers |
//! | `flushes` | threads that wait until what was accepted has been handled |
//! | `close`, `ending` | shutdown and expiry; how far a queue is on its way to its end |
//! | `shutdown_waits` | which queue waits for the end of which |

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
