//! A queue used from an event loop: calls that do not wait, and how the loop is notified of room.
//!
//! | file | what |
//! |---|---|
//! | `nonblocking` | the calls of `AsyncBatchQueue` |
//! | `pending_item` | an item that found no room |
//! | `room_notifier` | how drain threads notify the loop of room |
//! | `handler_call` | the handler call that a coroutine belongs to |

pub(super) mod handler_call;
pub(super) mod nonblocking;
pub(super) mod pending_item;
pub(super) mod room_notifier;
