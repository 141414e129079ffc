//! Columnar data: a record batch is split by the values of one column, its tags, into one piece per
//! handler.
//!
//! [`Tags`] maps each tag that has a handler to its [`TypeKey`](crate::TypeKey); [`split`] splits a
//! batch into pieces; [`Buffers`] recycles the memory of the copies. [`aggregate`] is grouped
//! aggregation of record batches; [`time`] knows zones and buckets of time.

pub mod aggregate;
mod buffers;
mod error;
mod gather;
mod grouping;
mod split;
mod tags;
pub mod time;

pub use buffers::Buffers;
pub use error::SplitError;
pub use split::{CHUNK_ROWS, Piece, Pieces, split};
pub use tags::Tags;
