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

mod aggregator;
mod codes;
mod column;
mod decimals;
mod description;
mod distinct;
mod extremes;
mod groups;
mod interner;
mod measured;
mod partials;
mod prepared;
mod quantile_buckets;
mod quantiles;
mod schema;
mod state;
mod sums;
mod top_n;
mod value;

pub use aggregator::Aggregator;
pub use description::{AggregateError, Aggregation, Measure, Window};
pub use distinct::{DistinctSketch, LG_REGISTERS};
