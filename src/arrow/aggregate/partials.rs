//! The layout of partials as record batches: the keys, one struct per measure and, in the schema's
//! metadata, the aggregation they belong to.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema};

use crate::arrow::aggregate::column::value_type;
use crate::arrow::aggregate::description::{AggregateError, Aggregation, Measure};
use crate::arrow::aggregate::sketches;
use crate::arrow::aggregate::sums::{EXACT, kept_sum_type, sum_type};

/// The metadata key of the description.
const DESCRIPTION: &str = "batchqueue.aggregation";

/// The metadata key of the version of this layout.
const VERSION: &str = "batchqueue.aggregation.version";

/// The only version that is written and read.
const THIS_VERSION: &str = "1";

pub(super) fn metadata_of(aggregation: &Aggregation) -> HashMap<String, String> {
    let entries = [(DESCRIPTION, aggregation.text.as_str()), (VERSION, THIS_VERSION)];
    entries.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Whether a batch with this schema holds partials of the aggregation. Without the metadata it
/// holds rows.
pub(super) fn are_partials(
    schema: &Schema,
    aggregation: &Aggregation,
) -> Result<bool, AggregateError> {
    let Some(text) = schema.metadata.get(DESCRIPTION) else { return Ok(false) };
    let version = schema.metadata.get(VERSION).map_or("", String::as_str);
    if version != THIS_VERSION {
        return Err(AggregateError::Partials(format!(
            "these partials have layout version {version:?}, but this batchqueue reads version \
             {THIS_VERSION:?}: use the same batchqueue on both sides"
        )));
    }
    if *text != aggregation.text {
        return Err(AggregateError::Partials(format!(
            "these partials belong to another aggregation: {text}; this one is {}",
            aggregation.text
        )));
    }
    Ok(true)
}

/// Returns the fields of a measure's partials, given the types of its columns.
pub(super) fn kept_fields(
    measure: &Measure,
    value: Option<&DataType>,
    second: Option<&DataType>,
) -> Option<Fields> {
    let field = |name: &str, data_type: DataType| Field::new(name, data_type, true);
    let list = |name: &str, data_type: DataType| {
        field(name, DataType::List(Field::new_list_field(data_type, true).into()))
    };
    Some(
        match (measure, value, second) {
            (Measure::Count { .. }, _, _) => vec![field("count", DataType::Int64)],
            (Measure::Sum { .. } | Measure::Mean { .. }, Some(of), None) => {
                let sums = match *of {
                    DataType::Decimal128(_, scale) => vec![field("sum", kept_sum_type(scale))],
                    _ if of.is_floating() => {
                        ["sum", "error"].map(|name| field(name, DataType::Float64)).into()
                    }
                    _ => vec![field("sum", EXACT)],
                };
                sums.into_iter().chain([field("count", DataType::Int64)]).collect()
            }
            (Measure::Min { .. } | Measure::Max { .. }, Some(of), None) => {
                vec![field("value", of.clone())]
            }
            (Measure::First { .. } | Measure::Last { .. }, Some(of), Some(by)) => {
                vec![field("value", of.clone()), field("by", by.clone())]
            }
            (Measure::QuantileBuckets { .. }, _, None) => {
                vec![list("buckets", DataType::Struct(sketches::bucket_fields()))]
            }
            (Measure::Distinct { .. } | Measure::Quantiles { .. }, Some(_), None) => {
                vec![field("sketch", DataType::Binary)]
            }
            (Measure::TopN { label: None, .. }, Some(of), None) => vec![list("values", of.clone())],
            (Measure::TopN { .. }, Some(of), Some(label)) => {
                vec![list("values", of.clone()), list("labels", label.clone())]
            }
            _ => return None,
        }
        .into(),
    )
}

/// Returns the fields of a measure's partials if `fields` are equivalent: writing to a file may
/// have renamed the item field of a list.
pub(super) fn as_kept_fields(measure: &Measure, fields: &Fields) -> Option<Fields> {
    let sums = matches!(measure, Measure::Sum { .. } | Measure::Mean { .. });
    let of = |index: usize| {
        let data_type = match fields.get(index)?.data_type() {
            DataType::List(values) => values.data_type(),
            exact if sums && *exact == EXACT => return Some(DataType::Int64),
            DataType::Decimal256(_, scale) if sums => return Some(sum_type(*scale)),
            other => other,
        };
        value_type(data_type)
    };
    let second = if sums { None } else { of(1) };
    let kept = kept_fields(measure, of(0).as_ref(), second.as_ref())?;
    let is_same = |(field, other): (&Arc<Field>, &Arc<Field>)| {
        let same_type = match (field.data_type(), other.data_type()) {
            (DataType::List(items), DataType::List(other)) => {
                items.data_type() == other.data_type()
            }
            (data_type, other) => data_type == other,
        };
        field.name() == other.name() && same_type
    };
    (kept.len() == fields.len() && kept.iter().zip(fields).all(is_same)).then_some(kept)
}
