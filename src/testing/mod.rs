//! What the unit tests of several modules share.

#[cfg(loom)]
pub(crate) mod loom;
