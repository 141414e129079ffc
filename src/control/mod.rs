//! The control plane: who drains what, and until when. It never touches items.

pub(crate) mod balance;
mod close;
pub(crate) mod ownership;
pub(crate) mod scheduler;
