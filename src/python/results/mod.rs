//! Results: what became of items that were submitted, each in a future.
//!
//! | file | what |
//! |---|---|
//! | `future` | the class `FutureBase`, which is what `concurrent.futures.Future` is, in Rust |
//! | `state` | what a future knows, and how it ends |
//! | `settler` | ends many futures, then wakes and calls what waits for them |
//! | `ticket` | the future of a queued item, which ends when the item is dropped |
//! | `submissions` | the futures of a queue that are not done |

mod future;
mod settler;
mod state;
mod submissions;
mod ticket;

pub(crate) use future::{FutureBase, future_class};
pub(crate) use settler::{Settler, error_value};
pub(crate) use state::{Ending, Mail};
pub(crate) use submissions::Submissions;
pub(crate) use ticket::Ticket;
