//! Partials as record batches: the keys, a struct per measure, and in the schema's metadata of
//! which aggregation they are.

use std::collections::HashMap;

use arrow_schema::Schema;

use super::description::{AggregateError, Aggregation};

/// The metadata key of the description.
const DESCRIPTION: &str = "batchqueue.aggregation";

/// The metadata key of the version of this layout.
const VERSION: &str = "batchqueue.aggregation.version";

/// The version that is written here, and the only one that is read.
const THIS_VERSION: &str = "1";

pub(super) fn metadata_of(aggregation: &Aggregation) -> HashMap<String, String> {
    let entries = [(DESCRIPTION, aggregation.text.as_str()), (VERSION, THIS_VERSION)];
    entries.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Whether a batch with this schema has partials of the aggregation; it is rows if it says nothing.
pub(super) fn are_partials(
    schema: &Schema,
    aggregation: &Aggregation,
) -> Result<bool, AggregateError> {
    let Some(text) = schema.metadata.get(DESCRIPTION) else { return Ok(false) };
    let version = schema.metadata.get(VERSION).map_or("", String::as_str);
    if version != THIS_VERSION {
        return Err(AggregateError::Partials(format!(
            "these partials have the layout of version {version:?}, and this batchqueue reads version {THIS_VERSION:?}: \
             use the same batchqueue on both sides"
        )));
    }
    if *text != aggregation.text {
        return Err(AggregateError::Partials(format!(
            "these partials are of another aggregation: {text}; this one is {}",
            aggregation.text
        )));
    }
    Ok(true)
}
