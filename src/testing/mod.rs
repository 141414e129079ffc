//! What the unit tests of several modules share.

#[cfg(not(loom))]
pub(crate) mod clock;
pub(crate) mod latch;
#[cfg(loom)]
pub(crate) mod loom;
