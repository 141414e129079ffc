//! The records of Redis streams, from the bytes of a reply to what Python makes of them.
//!
//! A client library makes Python objects of a reply, at least five for each entry, of which a
//! record is made later, with as many again. Here the replies to `XREAD` are scanned while they
//! arrive, and an entry becomes a Python object once, when a drain thread decodes it. Everything
//! else that goes to Redis and comes back is up to the client library.

pub(crate) mod block;
pub(crate) mod reader;
#[cfg(all(test, not(loom)))]
mod tests;
