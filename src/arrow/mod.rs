//! Columnar data: a record batch is split by the values of one column, its tags, into one piece per
//! handler.
//!
//! [`Tags`] maps each tag that has a handler to its [`TypeKey`](crate::item::TypeKey); [`split`]
//! splits a batch into pieces; [`Buffers`] recycles the memory of the copies. [`aggregate`] is
//! grouped aggregation of record batches; [`time`] knows zones and buckets of time.

pub mod aggregate;
pub(crate) mod gather;
pub(crate) mod grouping;
pub(crate) mod split;
pub(crate) mod tags;
pub mod time;

pub use crate::arrow::gather::Buffers;
pub use crate::arrow::split::{CHUNK_ROWS, Piece, Pieces, split};
pub use crate::arrow::tags::{SplitError, Tags};
