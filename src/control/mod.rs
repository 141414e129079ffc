//! The control plane: who drains what, when, and until when. It never touches items.

pub(crate) mod balance;
mod close;
pub(crate) mod grow;
pub(crate) mod ownership;
pub(crate) mod retire;
pub(crate) mod scheduler;
pub(crate) mod shutdown_waits;
