//! Finds an aggregation's columns in a schema, with their types.

use arrow_schema::{DataType, Fields, Schema};

use crate::arrow::aggregate::column::value_type;
use crate::arrow::aggregate::description::{AggregateError, Aggregation, Measure, Window};
use crate::arrow::aggregate::partials::{as_kept_fields, kept_fields};
use crate::arrow::time::{Buckets, Clock, units_per_second};

/// The types of the keys (the window's last), and the fields of each measure's partials.
#[derive(Clone, PartialEq)]
pub(super) struct Types {
    pub(super) keys: Vec<DataType>,
    pub(super) kept: Vec<Fields>,
}

impl Types {
    /// Returns the types of the keys, then those of the partials.
    pub(super) fn all(&self) -> impl Iterator<Item = DataType> {
        self.keys.iter().cloned().chain(self.kept.iter().cloned().map(DataType::Struct))
    }
}

/// The indices of an aggregation's columns in a schema.
#[derive(Clone)]
pub(super) struct ColumnIndices {
    pub(super) keys: Vec<usize>,
    /// How to bucket the times in the last key.
    pub(super) bucketing: Option<Bucketing>,
    pub(super) measures: MeasureIndices,
}

/// The conversion of times to the starts of their buckets, in the unit of the column.
#[derive(Clone)]
pub(super) struct Bucketing {
    /// Converts times without a zone to instants.
    pub(super) clock: Option<Clock>,
    pub(super) buckets: Buckets,
}

#[derive(Clone)]
pub(super) enum MeasureIndices {
    /// The first and second column of each measure.
    Rows(Vec<(Option<usize>, Option<usize>)>),
    /// The struct of each measure.
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
    let keys = aggregation.keys.iter().map(|name| find(schema, name));
    let mut keys = keys.collect::<Result<Vec<_>, _>>()?;
    let mut bucketing = None;
    if let Some(window) = &aggregation.window {
        let (index, kept) = find(schema, &window.column)?;
        let (kind, found) = bucketing_of(window, kept)?;
        keys.push((index, kind));
        bucketing = Some(found);
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
            && !(of.is_integer() || of.is_floating() || matches!(of, DataType::Decimal128(..)))
        {
            return Err(type_error(schema.field(*index).name(), of, "a column of numbers"));
        }
        if let (Some((index, of)), Measure::Distinct { .. }) = (&first, measure)
            && (of.is_floating() || matches!(of, DataType::Decimal128(..) | DataType::UInt64))
        {
            // These values have several forms, or none as an integer of 64 bits.
            let wanted = "strings, bytes, booleans, dates, times or integers up to int64";
            return Err(type_error(schema.field(*index).name(), of, wanted));
        }
        let of = |column: &Option<(usize, DataType)>| column.as_ref().map(|(_, of)| of.clone());
        kept.extend(kept_fields(measure, of(&first).as_ref(), of(&second).as_ref()));
        measures.push((first.map(|(index, _)| index), second.map(|(index, _)| index)));
    }
    let (keys, key_types) = keys.into_iter().unzip();
    Ok((
        ColumnIndices { keys, bucketing, measures: MeasureIndices::Rows(measures) },
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
            type_error(name, schema.field(index).data_type(), "partials as they were emitted")
        })?;
        kept.push(found);
        measures.push(index);
    }
    let (keys, key_types) = keys.into_iter().unzip();
    Ok((
        ColumnIndices { keys, bucketing: None, measures: MeasureIndices::Partials(measures) },
        Types { keys: key_types, kept },
    ))
}

/// Returns the fields of a measure's partials, if this column holds them.
fn kept_in(schema: &Schema, index: usize, measure: &Measure) -> Option<Fields> {
    match schema.field(index).data_type() {
        DataType::Struct(fields) => as_kept_fields(measure, fields),
        _ => None,
    }
}

/// Whether a schema is that of partials that lost their metadata and would be counted as rows.
fn look_like_partials(aggregation: &Aggregation, schema: &Schema) -> bool {
    let is_kept = |name: &str, measure| {
        schema.index_of(name).is_ok_and(|index| kept_in(schema, index, measure).is_some())
    };
    aggregation.measures.iter().all(|(name, measure)| is_kept(name, measure))
}

pub(super) fn type_error(
    name: &str,
    data_type: &DataType,
    wanted: impl Into<String>,
) -> AggregateError {
    let (name, data_type, wanted) = (name.to_owned(), data_type.clone(), wanted.into());
    AggregateError::Type { name, data_type, wanted }
}

fn index_of(schema: &Schema, name: &str) -> Result<usize, AggregateError> {
    schema.index_of(name).map_err(|_| AggregateError::NoColumn {
        name: name.to_owned(),
        columns: schema.fields().iter().map(|field| field.name().clone()).collect(),
    })
}

/// Returns the column's index and the type of its values in results.
fn find(schema: &Schema, name: &str) -> Result<(usize, DataType), AggregateError> {
    let index = index_of(schema, name)?;
    let data_type = schema.field(index).data_type();
    let kept = value_type(data_type).ok_or_else(|| {
        let wanted =
            "strings, bytes, booleans, dates, times, numbers of at most 64 bits or decimals of 128";
        type_error(name, data_type, wanted)
    })?;
    Ok((index, kept))
}

/// Returns the type of the bucket starts for a column of this type, and how to compute them.
fn bucketing_of(window: &Window, kind: DataType) -> Result<(DataType, Bucketing), AggregateError> {
    let (width_ns, offset_ns) = (window.width_ns, window.offset_ns);
    let unit_ns = unit_ns(&kind).filter(|unit| width_ns % unit == 0 && offset_ns % unit == 0);
    let Some(unit_ns) = unit_ns else {
        let offset = if offset_ns == 0 { String::new() } else { format!(" and {offset_ns} ns") };
        let wanted = format!(
            "a timestamp, a date or a signed integer of seconds, in a unit of which {width_ns} \
             ns{offset} are a multiple"
        );
        return Err(type_error(&window.column, &kind, wanted));
    };
    let (width, offset) = (width_ns / unit_ns, offset_ns / unit_ns);
    let per_second = 1_000_000_000 / unit_ns;
    let is_date = matches!(kind, DataType::Date32 | DataType::Date64);
    let zone = window.zone.as_ref().filter(|_| !is_date);
    let buckets = match zone {
        Some((_, zone)) => Buckets::of_zone(width, offset, zone.clone(), per_second),
        None => Buckets::of_utc(width, offset),
    };
    let (kind, clock) = match (kind, zone) {
        // The start of a bucket may be below the smallest value of a narrow integer.
        (kind, _) if kind.is_integer() => (DataType::Int64, None),
        (DataType::Timestamp(unit, None), Some((name, zone))) => (
            DataType::Timestamp(unit, Some(name.as_str().into())),
            Some(Clock::new(zone.clone(), per_second)),
        ),
        (kind, _) => (kind, None),
    };
    Ok((kind, Bucketing { clock, buckets }))
}

/// Returns the unit of a column of times in nanoseconds, or `None` if the type is not a time.
fn unit_ns(data_type: &DataType) -> Option<i64> {
    match data_type {
        DataType::Timestamp(unit, _) => Some(1_000_000_000 / units_per_second(*unit)),
        DataType::Date64 => Some(1_000_000),
        DataType::Date32 => Some(86_400_000_000_000),
        other if other.is_signed_integer() => Some(1_000_000_000),
        _ => None,
    }
}
