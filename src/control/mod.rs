//! The control plane: who drains what, when, and until when. It never touches items.
//!
//! | file | what |
//! |---|---|
//! | `ownership` | who may take from a partition, and how that changes |
//! | `balance` | which thread should own which partition |
//! | `scheduler` | dedicated drain threads, or the workers of a shared pool |
//! | `steering` | what drain threads ask of the control side |
//! | `supervisor`, `take_over` | other threads take over from one that is held up |
//! | `spares` | drain threads that are started while all others are held up |
//! | `slow_calls`, `slow_permits` | slow handlers leave one thread to quick ones |
//! | `agenda` | threads of the process that come back to queues at set times, or when asked |
//! | `helpers`, `log_helper` | threads that run user code which the others must not wait for |
//! | `thread_slots` | what the others see of each drain thread, and how they wake it |
//! | `register`, `growth` | new handlers and types; the partitions that they get |
//! | `retire`, `retirements` | replaced and removed handlers |
//! | `known_types`, `departure` | types with a handler; how one goes that has lost it |
//! | `whereabouts` | where types were that have gone |
//! | `serving` | how many types each handler instance serves |
//! | `flushes` | threads that wait until what was accepted has been handled |
//! | `close`, `ending` | shutdown and expiry; how far a queue is on its way to its end |
//! | `deadlines` | until when shutdowns wait, and the last try before that |
//! | `watchdog` | log lines about calls, producers and items that take long |
//! | `waits` | handlers that wait for queues, and which of these waits would never end |

pub(crate) mod agenda;
pub(crate) mod balance;
pub(crate) mod close;
pub(crate) mod deadlines;
pub(crate) mod departure;
pub(crate) mod ending;
pub(crate) mod flushes;
pub(crate) mod growth;
pub(crate) mod helpers;
pub(crate) mod known_types;
pub(crate) mod log_helper;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod ownership;
mod register;
mod retire;
pub(crate) mod retirements;
pub(crate) mod scheduler;
pub(crate) mod serving;
pub(crate) mod slow_calls;
mod slow_permits;
pub(crate) mod spares;
mod steering;
pub(crate) mod supervisor;
#[cfg(all(test, not(loom)))]
mod supervisor_tests;
mod take_over;
pub(crate) mod thread_slots;
pub(crate) mod waits;
pub(crate) mod watchdog;
mod whereabouts;
