//! Columnar data: record batches are split by the values of one column, their tags, into pieces for
//! the handlers of those.
//!
//! [`Tags`] gives each tag that has a handler its [`TypeKey`](crate::TypeKey); [`split`] finds the
//! pieces of a batch; [`Buffers`] keeps memory for its copies. [`aggregate`] groups rows and keeps
//! sums of them.

pub mod aggregate;
mod buffers;
mod gather;
mod grouping;
mod split;
mod tags;

pub use buffers::Buffers;
pub use split::{CHUNK_ROWS, Piece, Pieces, SplitError, split};
pub use tags::Tags;
