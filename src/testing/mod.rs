//! What the unit tests of several modules share.

#[cfg(not(loom))]
pub(crate) mod clock;
#[cfg(loom)]
pub(crate) mod loom;
pub(crate) mod threads;
