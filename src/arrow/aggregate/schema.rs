//! Finds an aggregation's columns in a schema, with their types.

use arrow_schema::{DataType, Fields, Schema, TimeUnit};

use super::column::value_type;
use super::description::{AggregateError, Aggregation, Measure};
use super::partials::{as_kept_fields, kept_fields};

/// The types of the keys, with the window's last, and the fields of each measure's partials.
#[derive(Clone, PartialEq)]
pub(super) struct Types {
    pub(super) keys: Vec<DataType>,
    pub(super) kept: Vec<Fields>,
}

/// The indices of an aggregation's columns in a schema.
#[derive(Clone)]
pub(super) struct ColumnIndices {
    pub(super) keys: Vec<usize>,
    /// The window's width, in the unit of the last key.
    pub(super) width: Option<i64>,
    pub(super) measures: MeasureIndices,
}

#[derive(Clone)]
pub(super) enum MeasureIndices {
    /// For each measure, its first and second column.
    Rows(Vec<(Option<usize>, Option<usize>)>),
    /// For each measure, its struct.
    Partials(Vec<usize>),
}

/// Finds the columns in a schema of rows.
pub(super) fn in_rows(
    aggregation: &Aggregation,
    schema: &Schema,
) -> Result<(ColumnIndices, Types), AggregateError> {
    if look_like_partials(aggregation, schema) {
        return Err(AggregateError::Partials(
            "these look like partials, but the metadata of their schema is missing, so they would \
             be counted as rows: keep it"
                .to_owned(),
        ));
    }
    let mut keys = Vec::new();
    let mut key_types = Vec::new();
    let mut width = None;
    for name in &aggregation.keys {
        let (index, kept) = find(schema, name)?;
        keys.push(index);
        key_types.push(kept);
    }
    if let Some(window) = &aggregation.window {
        let (index, kept) = find(schema, &window.column)?;
        width = width_in(&kept, window.width_ns);
        if width.is_none() {
            let ns = window.width_ns;
            let wanted = format!(
                "a timestamp, a date or a signed integer of seconds, in a unit of which {ns} ns \
                 are a multiple"
            );
            return Err(type_error(&window.column, &kept, wanted));
        }
        keys.push(index);
        // The start of a bucket may be below the smallest value of a narrow integer.
        key_types.push(if kept.is_integer() { DataType::Int64 } else { kept });
    }
    let mut measures = Vec::new();
    let mut kept = Vec::new();
    for (_, measure) in &aggregation.measures {
        let (first, second) = measure.columns();
        let (first, second) = if let Measure::Count { column: Some(column) } = measure {
            // Any type can be counted.
            (Some((index_of(schema, column)?, DataType::Null)), None)
        } else {
            (
                first.map(|name| find(schema, name)).transpose()?,
                second.map(|name| find(schema, name)).transpose()?,
            )
        };
        if let Some((index, of)) = first.as_ref().filter(|_| measure.wants_numbers())
            && !(of.is_integer() || of.is_floating())
        {
            return Err(type_error(
                schema.field(*index).name(),
                of,
                "a column of numbers".to_owned(),
            ));
        }
        let of = |column: &Option<(usize, DataType)>| column.as_ref().map(|(_, of)| of.clone());
        kept.extend(kept_fields(measure, of(&first).as_ref(), of(&second).as_ref()));
        measures.push((first.map(|(index, _)| index), second.map(|(index, _)| index)));
    }
    Ok((
        ColumnIndices { keys, width, measures: MeasureIndices::Rows(measures) },
        Types { keys: key_types, kept },
    ))
}

/// Finds the columns in a schema of partials.
pub(super) fn in_partials(
    aggregation: &Aggregation,
    schema: &Schema,
) -> Result<(ColumnIndices, Types), AggregateError> {
    let keys =
        aggregation.key_names().map(|name| find(schema, name)).collect::<Result<Vec<_>, _>>()?;
    let mut measures = Vec::new();
    let mut kept = Vec::new();
    for (name, measure) in &aggregation.measures {
        let index = index_of(schema, name)?;
        let found = kept_in(schema, index, measure).ok_or_else(|| {
            type_error(
                name,
                schema.field(index).data_type(),
                "partials as they were emitted".to_owned(),
            )
        })?;
        kept.push(found);
        measures.push(index);
    }
    let (keys, key_types) = keys.into_iter().unzip();
    Ok((
        ColumnIndices { keys, width: None, measures: MeasureIndices::Partials(measures) },
        Types { keys: key_types, kept },
    ))
}

/// The fields of a measure's partials, if this column holds them.
fn kept_in(schema: &Schema, index: usize, measure: &Measure) -> Option<Fields> {
    match schema.field(index).data_type() {
        DataType::Struct(fields) => as_kept_fields(measure, fields),
        _ => None,
    }
}

/// Whether a schema without metadata is that of partials, which would be counted as rows.
fn look_like_partials(aggregation: &Aggregation, schema: &Schema) -> bool {
    let is_kept = |name: &str, measure| {
        schema.index_of(name).is_ok_and(|index| kept_in(schema, index, measure).is_some())
    };
    aggregation.measures.iter().all(|(name, measure)| is_kept(name, measure))
}

pub(super) fn type_error(name: &str, data_type: &DataType, wanted: String) -> AggregateError {
    AggregateError::Type { name: name.to_owned(), data_type: data_type.clone(), wanted }
}

fn index_of(schema: &Schema, name: &str) -> Result<usize, AggregateError> {
    schema.index_of(name).map_err(|_| AggregateError::NoColumn {
        name: name.to_owned(),
        columns: schema.fields().iter().map(|field| field.name().clone()).collect(),
    })
}

/// The column's index and the type of its values in results.
fn find(schema: &Schema, name: &str) -> Result<(usize, DataType), AggregateError> {
    let index = index_of(schema, name)?;
    let data_type = schema.field(index).data_type();
    let kept = value_type(data_type).ok_or_else(|| {
        type_error(
            name,
            data_type,
            "strings, bytes, booleans, numbers, dates or times of at most 64 bits".to_owned(),
        )
    })?;
    Ok((index, kept))
}

/// A window's width in the unit of a time column. Returns `None` if the width is not a multiple of
/// that unit, or if the type is not a time.
pub(super) fn width_in(data_type: &DataType, width_ns: i64) -> Option<i64> {
    let unit_ns = match data_type {
        DataType::Timestamp(TimeUnit::Nanosecond, _) => 1,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 1_000,
        DataType::Timestamp(TimeUnit::Millisecond, _) | DataType::Date64 => 1_000_000,
        DataType::Date32 => 86_400_000_000_000,
        DataType::Timestamp(TimeUnit::Second, _) => 1_000_000_000,
        other if other.is_signed_integer() => 1_000_000_000,
        _ => return None,
    };
    (width_ns % unit_ns == 0).then_some(width_ns / unit_ns).filter(|&width| width > 0)
}
