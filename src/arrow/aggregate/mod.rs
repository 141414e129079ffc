//! Grouped aggregation of record batches: keys, a time window, measures. The state of each group
//! can be exported as a *partial* and merged by another aggregator.
//!
//! ```text
//!  rows ──▶ Prepared ──▶ Groups: each row's group ──▶ one State per measure ──▶ partials, result
//! ```
//!
//! One pass over the keys assigns each row a group; then each state consumes its column as a whole.
//! Everything that can fail happens before the first state changes, so a batch is applied
//! completely or not at all.

pub(crate) mod aggregator;
pub(crate) mod column;
pub(crate) mod description;
pub(crate) mod extremes;
pub(crate) mod groups;
pub(crate) mod partials;
pub(crate) mod schema;
pub(crate) mod sketches;
pub(crate) mod sums;

pub use crate::arrow::aggregate::aggregator::Aggregator;
pub use crate::arrow::aggregate::description::{AggregateError, Aggregation, Measure, Window};
pub use crate::arrow::aggregate::sketches::{DistinctSketch, LG_REGISTERS};
