//! The threads that drain queues, apart from the queues: how they rest, sleep, wait and are woken.
//! Nothing here knows about items. The protocol of shared pools is in `README.md`.
//!
//! | file | what |
//! |---|---|
//! | `park` | how a drain thread, or a task of a pool, rests and sleeps without lost wake-ups |
//! | `slots` | the public state of each drain thread, and its waker |
//! | `pool`, `pools` | workers that several queues share; the pools of the process by name |
//! | `context` | the queue that a thread drains, and the handler that it is in |
//! | `waits` | how callers wait; waits of handlers for queues, and which of them never end |
//! | `agenda` | per-process threads that visit queues at set times |

pub(crate) mod agenda;
pub(crate) mod context;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod park;
pub(crate) mod pool;
pub(crate) mod pools;
pub(crate) mod slots;
pub(crate) mod waits;
