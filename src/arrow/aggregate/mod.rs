//! Grouped aggregation of record batches: keys, a time window, measures. What is kept for a group
//! can be handed on as a *partial*, and merged elsewhere.
//!
//! ```text
//!  rows ──▶ Prepared ──▶ Groups: the number of each row's group ──▶ one State per measure ──▶ partials, result
//! ```
//!
//! One pass over the keys gives each row a group; then each state takes its column as a whole. All
//! that can fail comes before the first state is touched, so that a batch is in as a whole or not
//! at all.

mod aggregator;
mod codes;
mod column;
mod description;
mod extremes;
mod groups;
mod interner;
mod partials;
mod prepared;
mod quantiles;
mod schema;
mod state;
mod sums;
mod top_n;

pub use aggregator::Aggregator;
pub use description::{AggregateError, Aggregation, Measure, Window};
