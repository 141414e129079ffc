//! What goes into a queue.
//!
//! | file | what |
//! |---|---|
//! | `py_item` | one queued item: a Python object, or a block of rows |
//! | `item_type` | what a handler is registered for: a class, or a tag of rows |
//! | `sequence` | lists and tuples, from which `produce_many` reads without an iterator |
//! | `refusal` | what becomes of an item that was refused |
//! | `row_block` | rows of a record batch that have the same tag |
//! | `arrow_data` | Arrow data on its way from Python and back |

mod arrow_data;
mod item_type;
mod py_item;
mod refusal;
mod row_block;
mod sequence;

pub(crate) use arrow_data::{Batches, batches_of, has_pyarrow, prepare_arrow_data, to_pyarrow};
pub(crate) use item_type::ItemType;
pub(crate) use py_item::{Content, PyItem};
pub(crate) use refusal::refused;
pub(crate) use row_block::{RowBlock, SourceBatch};
pub(crate) use sequence::{Sequence, has_gil};
