//! The threads that drain queues, without the queues: they rest, sleep, wait and are woken. Nothing
//! here knows an item. The protocol of shared pools is in `README.md`.
//!
//! | file | what |
//! |---|---|
//! | `park` | how a drain thread, or a task of a pool, rests and sleeps without lost wake-ups |
//! | `slots` | what the other threads of a queue see of each drain thread, and how they wake it |
//! | `pool`, `pools` | workers that several queues share; the pools of the process by name |
//! | `context` | the queue that a thread drains, and the handler that it is inside |
//! | `waits` | how callers wait; handlers that wait for queues, and which of these never end |
//! | `agenda` | threads of the process that come back to queues at set times |

pub(crate) mod agenda;
pub(crate) mod context;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod park;
pub(crate) mod pool;
pub(crate) mod pools;
pub(crate) mod slots;
pub(crate) mod waits;
