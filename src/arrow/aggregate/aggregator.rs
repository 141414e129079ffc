//! The aggregator: rows and partials in, partials and results out.

use std::fmt;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StructArray};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

use super::column::{Column, Values, value_type};
use super::description::{AggregateError, Aggregation, Measure};
use super::groups::Groups;
use super::partials::{are_partials, metadata_of};
use super::state::{Input, State, are_kept_fields, kept_fields, state_of};

/// Aggregates record batches. All of them must have the same types in the columns that it looks at.
///
/// A batch may have rows, or partials of an equal aggregator; each goes in as a whole or not at all.
pub struct Aggregator {
    aggregation: Aggregation,
    /// Known from the first batch on.
    types: Option<Types>,
    groups: Groups,
    measured: Vec<Measured>,
    /// Where the columns are in batches with the schema of the last one.
    places: Option<(SchemaRef, Places)>,
    /// The group of each row of the batches that are going in.
    of_row: Vec<u32>,
}

impl fmt::Debug for Aggregator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Aggregator");
        debug.field("aggregation", &self.aggregation).field("groups", &self.len()).finish_non_exhaustive()
    }
}

/// What is kept of a measure.
enum Measured {
    Own(Box<dyn State>),
    /// The count of the values of a column that the measure with this number sums.
    CountOf(usize),
}

/// The types of the keys, the window's last, and of what is kept of each measure.
#[derive(Clone, PartialEq)]
struct Types {
    keys: Vec<DataType>,
    kept: Vec<Fields>,
}

/// The numbers of the columns.
#[derive(Clone)]
struct Places {
    keys: Vec<usize>,
    of: PlacesOf,
}

#[derive(Clone)]
enum PlacesOf {
    /// Of each measure the first and the second column.
    Rows(Vec<(Option<usize>, Option<usize>)>),
    /// Of each measure the struct.
    Partials(Vec<usize>),
}

/// A batch, ready to go in.
struct Prepared {
    rows: usize,
    keys: Vec<Column>,
    of: PreparedOf,
}

enum PreparedOf {
    Rows(Vec<Input>),
    Partials(Vec<StructArray>),
}

impl Aggregator {
    /// An aggregator without groups.
    pub fn new(aggregation: Aggregation) -> Self {
        let keys = aggregation.keys.len() + usize::from(aggregation.window.is_some());
        Self {
            aggregation,
            types: None,
            groups: Groups::new(keys),
            measured: Vec::new(),
            places: None,
            of_row: Vec::new(),
        }
    }

    /// Groups that are kept.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes rows or partials in: all of these batches, or none.
    ///
    /// # Errors
    /// A column is missing or has a type that will not do, the partials are of another aggregation, there would be too many
    /// groups, or the data is broken.
    pub fn update(&mut self, batches: &[RecordBatch]) -> Result<(), AggregateError> {
        let prepared = batches.iter().map(|batch| self.prepare(batch)).collect::<Result<Vec<_>, _>>()?;
        let mark = self.groups.mark();
        self.of_row.clear();
        for batch in &prepared {
            self.groups.assign(&batch.keys, batch.rows, &mut self.of_row);
            let max_groups = self.aggregation.max_groups;
            if self.groups.len() > max_groups {
                self.groups.back_to(&mark);
                return Err(AggregateError::TooManyGroups { max_groups });
            }
        }
        let groups = self.groups.len();
        self.states().for_each(|state| state.grow(groups));
        let of_row = std::mem::take(&mut self.of_row);
        let mut rest = of_row.as_slice();
        for batch in &prepared {
            let groups;
            (groups, rest) = rest.split_at(batch.rows);
            match &batch.of {
                PreparedOf::Rows(inputs) => {
                    self.states().zip(inputs).for_each(|(state, input)| state.update(groups, input));
                }
                PreparedOf::Partials(partials) => {
                    self.states().zip(partials).for_each(|(state, partials)| state.merge(groups, partials));
                }
            }
        }
        self.of_row = of_row;
        Ok(())
    }

    /// Those that are kept, in the order of their measures.
    fn states(&mut self) -> impl Iterator<Item = &mut Box<dyn State>> {
        self.measured.iter_mut().filter_map(|measured| match measured {
            Measured::Own(state) => Some(state),
            Measured::CountOf(_) => None,
        })
    }

    /// Of each measure the columns of its partials, or the one of its result.
    fn columns_of(&self, measured: &Measured, is_result: bool) -> Result<Vec<ArrayRef>, AggregateError> {
        match measured {
            Measured::Own(state) if is_result => Ok(vec![state.result()?]),
            Measured::Own(state) => state.partials(),
            Measured::CountOf(sum) => match &self.measured[*sum] {
                Measured::Own(sum) => Ok(sum.counts().into_iter().collect()),
                Measured::CountOf(_) => unreachable!("a count is of a sum"),
            },
        }
    }

    /// What is kept, for another aggregator; `None` if there is nothing. This one starts empty again.
    ///
    /// # Errors
    /// What is kept does not fit into Arrow's arrays; nothing is lost.
    pub fn take_partials(&mut self) -> Result<Option<RecordBatch>, AggregateError> {
        let Some(types) = self.told_types() else { return Ok(None) };
        let (mut fields, mut columns) = self.keys(types)?;
        for (((name, _), measured), kept) in self.aggregation.measures.iter().zip(&self.measured).zip(&types.kept) {
            let kept = StructArray::try_new(kept.clone(), self.columns_of(measured, false)?, None)?;
            fields.push(Field::new(name, kept.data_type().clone(), false));
            columns.push(Arc::new(kept));
        }
        let partials = self.batch(Schema::new_with_metadata(fields, metadata_of(&self.aggregation)), columns)?;
        self.clear();
        Ok(Some(partials))
    }

    /// The keys and the measures of each group, in the order in which the groups were met; `None` if there are none.
    ///
    /// # Errors
    /// A sum does not fit into its column.
    pub fn result(&self) -> Result<Option<RecordBatch>, AggregateError> {
        let Some(types) = self.told_types() else { return Ok(None) };
        let (mut fields, mut columns) = self.keys(types)?;
        for ((name, _), measured) in self.aggregation.measures.iter().zip(&self.measured) {
            for column in self.columns_of(measured, true)? {
                fields.push(Field::new(name, column.data_type().clone(), true));
                columns.push(column);
            }
        }
        self.batch(Schema::new(fields), columns).map(Some)
    }

    /// The types, if there is anything to tell.
    fn told_types(&self) -> Option<&Types> {
        self.types.as_ref().filter(|_| !self.is_empty())
    }

    fn keys(&self, types: &Types) -> Result<(Vec<Field>, Vec<ArrayRef>), AggregateError> {
        let names = self.key_names().zip(&types.keys);
        let fields = names.map(|(name, data_type)| Field::new(name, data_type.clone(), true)).collect();
        Ok((fields, self.groups.key_columns(&types.keys)?))
    }

    fn batch(&self, schema: Schema, columns: Vec<ArrayRef>) -> Result<RecordBatch, AggregateError> {
        let rows = RecordBatchOptions::new().with_row_count(Some(self.len()));
        Ok(RecordBatch::try_new_with_options(schema.into(), columns, &rows)?)
    }

    fn clear(&mut self) {
        self.groups = Groups::new(self.key_names().count());
        self.states().for_each(|state| state.clear());
    }

    /// As they are called in what comes out.
    fn key_names(&self) -> impl Iterator<Item = &str> {
        let window = self.aggregation.window.as_ref().map(|window| window.name.as_str());
        self.aggregation.keys.iter().map(String::as_str).chain(window)
    }

    /// The first sum or mean of the column whose values a measure counts.
    fn sum_that_counts(&self, measure: &Measure) -> Option<usize> {
        let Measure::Count { column: Some(column) } = measure else { return None };
        self.aggregation.measures.iter().position(|(_, other)| match other {
            Measure::Sum { column: of } | Measure::Mean { column: of } => of == column,
            _ => false,
        })
    }

    /// Of what there is for each measure, that of those with a state of their own.
    fn own<I>(&self, of_measures: impl Iterator<Item = I>) -> impl Iterator<Item = I> {
        self.measured.iter().zip(of_measures).filter(|(one, _)| matches!(one, Measured::Own(_))).map(|(_, of)| of)
    }

    // ---- one batch -------------------------------------------------------------------------------------------

    fn prepare(&mut self, batch: &RecordBatch) -> Result<Prepared, AggregateError> {
        let schema = batch.schema_ref();
        let places = match &self.places {
            Some((known, places)) if Arc::ptr_eq(known, schema) => places.clone(),
            _ => {
                let places = self.look_up(schema)?;
                self.places = Some((schema.clone(), places.clone()));
                places
            }
        };
        let mut keys =
            places.keys.iter().map(|&place| Column::of(batch.column(place))).collect::<Result<Vec<_>, _>>()?;
        let of = match &places.of {
            PlacesOf::Rows(measures) => {
                if let (Some(window), Some(times), Some(&place)) =
                    (&self.aggregation.window, keys.last_mut(), places.keys.last())
                {
                    // The type was looked at.
                    let width = width_in(batch.column(place).data_type(), window.width_ns).unwrap_or(1);
                    floor(times, width);
                }
                let column = |place: Option<usize>| place.map(|place| batch.column(place));
                let own = self.own(self.aggregation.measures.iter().zip(measures));
                let inputs =
                    own.map(|((_, measure), &(first, second))| input_of(measure, column(first), column(second)));
                PreparedOf::Rows(inputs.collect::<Result<_, _>>()?)
            }
            PlacesOf::Partials(measures) => {
                let own = self.own(measures.iter());
                let partials: Vec<StructArray> = own.map(|&place| batch.column(place).as_struct().clone()).collect();
                for (state, partials) in self.states().zip(&partials) {
                    state.check(partials)?;
                }
                PreparedOf::Partials(partials)
            }
        };
        Ok(Prepared { rows: batch.num_rows(), keys, of })
    }

    /// Finds the columns of a schema, and sees that they have the types that they had before.
    fn look_up(&mut self, schema: &Schema) -> Result<Places, AggregateError> {
        let of_partials = are_partials(schema, &self.aggregation)?;
        let (places, types) = if of_partials { self.in_partials(schema)? } else { self.in_rows(schema)? };
        match &self.types {
            None => {
                let described = self.aggregation.measures.iter().zip(&types.kept);
                let measured = described.map(|((name, measure), kept)| match self.sum_that_counts(measure) {
                    Some(sum) => Measured::CountOf(sum),
                    None => Measured::Own(state_of(name, measure, kept)),
                });
                self.measured = measured.collect();
                self.types = Some(types);
            }
            Some(known) => {
                let changed = |name: &str, now: &DataType, before: &DataType| {
                    if now == before { Ok(()) } else { Err(type_error(name, now, format!("{before}, as before"))) }
                };
                for (name, (before, now)) in self.key_names().zip(known.keys.iter().zip(&types.keys)) {
                    changed(name, now, before)?;
                }
                for ((name, _), (before, now)) in
                    self.aggregation.measures.iter().zip(known.kept.iter().zip(&types.kept))
                {
                    changed(name, &DataType::Struct(now.clone()), &DataType::Struct(before.clone()))?;
                }
            }
        }
        Ok(places)
    }

    fn in_rows(&self, schema: &Schema) -> Result<(Places, Types), AggregateError> {
        let mut keys = Vec::new();
        let mut key_types = Vec::new();
        for name in &self.aggregation.keys {
            let (place, kept) = find(schema, name)?;
            keys.push(place);
            key_types.push(kept);
        }
        if let Some(window) = &self.aggregation.window {
            let (place, kept) = find(schema, &window.column)?;
            if width_in(&kept, window.width_ns).is_none() {
                let wanted = "a timestamp, a date or an integer of seconds, of which the window is a whole number";
                return Err(type_error(&window.column, &kept, wanted.to_owned()));
            }
            keys.push(place);
            key_types.push(kept);
        }
        let mut measures = Vec::new();
        let mut kept = Vec::new();
        for (_, measure) in &self.aggregation.measures {
            let (first, second) = measure.columns();
            let (first, second) = if let Measure::Count { column: Some(column) } = measure {
                // Any type will do.
                (Some((index_of(schema, column)?, DataType::Null)), None)
            } else {
                (first.map(|name| find(schema, name)).transpose()?, second.map(|name| find(schema, name)).transpose()?)
            };
            if let Some((place, of)) = first.as_ref().filter(|_| measure.wants_numbers())
                && !(of.is_integer() || of.is_floating())
            {
                return Err(type_error(schema.field(*place).name(), of, "a column of numbers".to_owned()));
            }
            let of = |column: &Option<(usize, DataType)>| column.as_ref().map(|(_, of)| of.clone());
            kept.extend(kept_fields(measure, of(&first).as_ref(), of(&second).as_ref()));
            measures.push((first.map(|(place, _)| place), second.map(|(place, _)| place)));
        }
        Ok((Places { keys, of: PlacesOf::Rows(measures) }, Types { keys: key_types, kept }))
    }

    fn in_partials(&self, schema: &Schema) -> Result<(Places, Types), AggregateError> {
        let keys = self.key_names().map(|name| find(schema, name)).collect::<Result<Vec<_>, _>>()?;
        let mut measures = Vec::new();
        let mut kept = Vec::new();
        for (name, measure) in &self.aggregation.measures {
            let place = index_of(schema, name)?;
            match schema.field(place).data_type() {
                DataType::Struct(fields) if are_kept_fields(measure, fields) => kept.push(fields.clone()),
                other => return Err(type_error(name, other, "partials as they were made".to_owned())),
            }
            measures.push(place);
        }
        let (keys, key_types) = keys.into_iter().unzip();
        Ok((Places { keys, of: PlacesOf::Partials(measures) }, Types { keys: key_types, kept }))
    }
}

fn type_error(name: &str, data_type: &DataType, wanted: String) -> AggregateError {
    AggregateError::Type { name: name.to_owned(), data_type: data_type.clone(), wanted }
}

fn index_of(schema: &Schema, name: &str) -> Result<usize, AggregateError> {
    schema.index_of(name).map_err(|_| AggregateError::NoColumn {
        name: name.to_owned(),
        columns: schema.fields().iter().map(|field| field.name().clone()).collect(),
    })
}

/// The column's number, and the type of what is kept of it.
fn find(schema: &Schema, name: &str) -> Result<(usize, DataType), AggregateError> {
    let place = index_of(schema, name)?;
    let data_type = schema.field(place).data_type();
    let kept = value_type(data_type).ok_or_else(|| {
        type_error(name, data_type, "texts, bytes, booleans, numbers, dates or times of at most 64 bits".to_owned())
    })?;
    Ok((place, kept))
}

fn input_of(measure: &Measure, first: Option<&ArrayRef>, second: Option<&ArrayRef>) -> Result<Input, AggregateError> {
    let is_array = measure.wants_numbers() || matches!(measure, Measure::Count { .. });
    let column = |array: Option<&ArrayRef>| array.map(Column::of).transpose();
    Ok(Input {
        array: match first.filter(|_| is_array) {
            Some(array) if measure.wants_numbers() => Some(plain(array)?),
            other => other.cloned(),
        },
        value: column(first.filter(|_| !is_array))?,
        second: column(second)?,
    })
}

/// Numbers as they are, out of a dictionary.
fn plain(array: &ArrayRef) -> Result<ArrayRef, AggregateError> {
    let DataType::Dictionary(..) = array.data_type() else { return Ok(array.clone()) };
    let dictionary = array.as_any_dictionary();
    let options = arrow_select::take::TakeOptions { check_bounds: true };
    plain(&arrow_select::take::take(dictionary.values(), dictionary.keys(), Some(options))?)
}

/// A window's width in the unit of a column of times; `None`: it is not a whole number of them, or no time.
fn width_in(data_type: &DataType, width_ns: i64) -> Option<i64> {
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

/// Each time becomes the start of its bucket.
fn floor(times: &mut Column, width: i64) {
    let Values::Codes(codes) = &times.values else { return };
    // Times mostly follow each other: a division per row would cost more than all the rest.
    let mut bucket = 0..0;
    let floored = codes.iter().map(|&time| {
        if !bucket.contains(&time) {
            let start = time.div_euclid(width).saturating_mul(width);
            bucket = start..start.saturating_add(width);
        }
        bucket.start
    });
    times.values = Values::Codes(floored.collect());
}
