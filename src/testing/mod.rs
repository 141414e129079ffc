//! What the unit tests of several modules share.

pub(crate) mod latch;
#[cfg(loom)]
pub(crate) mod loom;
