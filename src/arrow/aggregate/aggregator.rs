//! The aggregator: rows and partials in, partials and results out.

use std::fmt;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StructArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::description::{AggregateError, Aggregation, Measure};
use super::groups::{Groups, Mark};
use super::partials::{are_partials, metadata_of};
use super::prepared::{Prepared, PreparedOf};
use super::schema::{Places, Types, in_partials, in_rows, type_error};
use super::state::{State, state_of};

/// Aggregates record batches. All of them must have the same types in the columns that it looks at.
///
/// A batch may have rows, or partials of an equal aggregator; each goes in as a whole or not at
/// all.
pub struct Aggregator {
    aggregation: Aggregation,
    /// Known from the first batch on.
    types: Option<Types>,
    groups: Groups,
    measured: Vec<Measured>,
    /// Where the columns are in batches with the schema of the last one.
    places: Option<(SchemaRef, Places)>,
    /// The group of each row that is going in.
    of_row: Vec<u32>,
}

impl fmt::Debug for Aggregator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Aggregator");
        debug
            .field("aggregation", &self.aggregation)
            .field("groups", &self.len())
            .finish_non_exhaustive()
    }
}

/// What is kept of a measure.
enum Measured {
    Own(Box<dyn State>),
    /// The count of the values of a column that the measure with this number sums.
    CountOf(usize),
}

impl Measured {
    fn copied(&self) -> Option<Self> {
        match self {
            Self::Own(state) => state.copied().map(Self::Own),
            Self::CountOf(sum) => Some(Self::CountOf(*sum)),
        }
    }
}

/// What an aggregator kept before a batch.
struct Before {
    groups: Mark,
    measured: Vec<Measured>,
}

/// For each group a copy of numbers costs at most as much as this many rows of a batch.
const ROWS_OF_A_COPY: usize = 8;

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
    /// A column is missing or has a type that will not do, the partials are of another aggregation,
    /// there would be too many groups, or the data is broken.
    pub fn update(&mut self, batches: &[RecordBatch]) -> Result<(), AggregateError> {
        if self.is_empty() {
            // Batches that were refused, or had no rows, have fixed nothing.
            (self.types, self.places) = (None, None);
        }
        let prepared =
            batches.iter().map(|batch| self.prepare(batch)).collect::<Result<Vec<_>, _>>()?;
        let rows: usize = prepared.iter().map(|batch| batch.rows).sum();
        let before = self.before(&prepared, rows)?;
        for step in prepared.iter().flat_map(Prepared::steps) {
            if !self.take(&step) {
                let Some(before) = before else { unreachable!("all groups were found before") };
                self.groups.back_to(&before.groups);
                self.measured = before.measured;
                return Err(AggregateError::TooManyGroups {
                    max_groups: self.aggregation.max_groups,
                });
            }
        }
        Ok(())
    }

    /// Where there may be too many groups: what to come back to. Or, if a copy of that would cost
    /// more than a look at all rows, the certainty that there are not.
    fn before(
        &mut self,
        prepared: &[Prepared],
        rows: usize,
    ) -> Result<Option<Before>, AggregateError> {
        if self.len().saturating_add(rows) <= self.aggregation.max_groups {
            return Ok(None);
        }
        if self.len().saturating_mul(ROWS_OF_A_COPY) <= rows
            && let Some(measured) = self.measured.iter().map(Measured::copied).collect()
        {
            return Ok(Some(Before { groups: self.groups.mark(), measured }));
        }
        self.find_groups(prepared, rows).map(|()| None)
    }

    /// Finds the groups before any row goes in, up to where a group for each row that is left would
    /// not be too many.
    fn find_groups(
        &mut self,
        prepared: &[Prepared],
        mut rows_left: usize,
    ) -> Result<(), AggregateError> {
        let (mark, max_groups) = (self.groups.mark(), self.aggregation.max_groups);
        for step in prepared.iter().flat_map(Prepared::steps) {
            if self.groups.len().saturating_add(rows_left) <= max_groups {
                break;
            }
            rows_left -= step.rows;
            self.groups.assign(&step.keys, step.rows, &mut self.of_row);
            if self.groups.len() > max_groups {
                self.groups.back_to(&mark);
                return Err(AggregateError::TooManyGroups { max_groups });
            }
        }
        Ok(())
    }

    /// Takes a step's rows in; `false`: not, there are too many groups now.
    fn take(&mut self, step: &Prepared) -> bool {
        let mut of_row = std::mem::take(&mut self.of_row);
        self.groups.assign(&step.keys, step.rows, &mut of_row);
        let groups = self.groups.len();
        if groups > self.aggregation.max_groups {
            return false;
        }
        self.states().for_each(|state| state.grow(groups));
        match &step.of {
            PreparedOf::Rows(inputs) => {
                self.states().zip(inputs).for_each(|(state, input)| state.update(&of_row, input));
            }
            PreparedOf::Partials(partials) => {
                self.states()
                    .zip(partials)
                    .for_each(|(state, partials)| state.merge(&of_row, partials));
            }
        }
        self.of_row = of_row;
        true
    }

    /// Takes partials back that [`take_partials`](Self::take_partials) gave, however many groups
    /// there are meanwhile.
    ///
    /// # Errors
    /// They are not what was given.
    pub fn take_back(&mut self, partials: RecordBatch) -> Result<(), AggregateError> {
        let max_groups = std::mem::replace(&mut self.aggregation.max_groups, usize::MAX);
        let result = self.update(&[partials]);
        self.aggregation.max_groups = max_groups;
        result
    }

    /// Those that are kept, in the order of their measures.
    fn states(&mut self) -> impl Iterator<Item = &mut Box<dyn State>> {
        self.measured.iter_mut().filter_map(|measured| match measured {
            Measured::Own(state) => Some(state),
            Measured::CountOf(_) => None,
        })
    }

    /// Of each measure the columns of its partials, or the one of its result.
    fn columns_of(
        &self,
        measured: &Measured,
        is_result: bool,
    ) -> Result<Vec<ArrayRef>, AggregateError> {
        match measured {
            Measured::Own(state) if is_result => Ok(vec![state.result()?]),
            Measured::Own(state) => state.partials(),
            Measured::CountOf(sum) => match &self.measured[*sum] {
                Measured::Own(sum) => Ok(sum.counts().into_iter().collect()),
                Measured::CountOf(_) => unreachable!("a count is of a sum"),
            },
        }
    }

    /// What is kept, for another aggregator; `None` if there is nothing. This one starts empty
    /// again.
    ///
    /// # Errors
    /// What is kept does not fit into Arrow's arrays; nothing is lost.
    pub fn take_partials(&mut self) -> Result<Option<RecordBatch>, AggregateError> {
        let Some(types) = self.told_types() else { return Ok(None) };
        let (mut fields, mut columns) = self.keys(types)?;
        for (((name, _), measured), kept) in
            self.aggregation.measures.iter().zip(&self.measured).zip(&types.kept)
        {
            let kept = StructArray::try_new(kept.clone(), self.columns_of(measured, false)?, None)?;
            fields.push(Field::new(name, kept.data_type().clone(), false));
            columns.push(Arc::new(kept));
        }
        let partials =
            self.batch(Schema::new_with_metadata(fields, metadata_of(&self.aggregation)), columns)?;
        self.clear();
        Ok(Some(partials))
    }

    /// The keys and the measures of each group, in the order in which the groups were met; `None`
    /// if there are none.
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
        let names = self.aggregation.key_names().zip(&types.keys);
        let fields =
            names.map(|(name, data_type)| Field::new(name, data_type.clone(), true)).collect();
        Ok((fields, self.groups.key_columns(&types.keys)?))
    }

    fn batch(&self, schema: Schema, columns: Vec<ArrayRef>) -> Result<RecordBatch, AggregateError> {
        let rows = RecordBatchOptions::new().with_row_count(Some(self.len()));
        Ok(RecordBatch::try_new_with_options(schema.into(), columns, &rows)?)
    }

    fn clear(&mut self) {
        self.groups = Groups::new(self.aggregation.key_names().count());
        self.states().for_each(|state| state.clear());
    }

    /// The first sum or mean of the column whose values a measure counts.
    fn sum_that_counts(&self, measure: &Measure) -> Option<usize> {
        let Measure::Count { column: Some(column) } = measure else { return None };
        self.aggregation.measures.iter().position(|(_, other)| match other {
            Measure::Sum { column: of } | Measure::Mean { column: of } => of == column,
            _ => false,
        })
    }

    // ---- one batch
    // -------------------------------------------------------------------------------------------

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
        let is_own: Vec<bool> =
            self.measured.iter().map(|one| matches!(one, Measured::Own(_))).collect();
        let prepared = Prepared::of(batch, &self.aggregation, &places, &is_own)?;
        if let PreparedOf::Partials(partials) = &prepared.of {
            self.states().zip(partials).try_for_each(|(state, partials)| state.check(partials))?;
        }
        Ok(prepared)
    }

    /// Finds the columns of a schema, and sees that they have the types that they had before.
    fn look_up(&mut self, schema: &Schema) -> Result<Places, AggregateError> {
        let of_partials = are_partials(schema, &self.aggregation)?;
        let (places, types) = if of_partials {
            in_partials(&self.aggregation, schema)?
        } else {
            in_rows(&self.aggregation, schema)?
        };
        match &self.types {
            None => {
                let described = self.aggregation.measures.iter().zip(&types.kept);
                let measured =
                    described.map(|((name, measure), kept)| match self.sum_that_counts(measure) {
                        Some(sum) => Measured::CountOf(sum),
                        None => Measured::Own(state_of(name, measure, kept)),
                    });
                self.measured = measured.collect();
                self.types = Some(types);
            }
            Some(known) => {
                let changed = |name: &str, now: &DataType, before: &DataType| {
                    if now == before {
                        Ok(())
                    } else {
                        Err(type_error(name, now, format!("{before}, as before")))
                    }
                };
                for (name, (before, now)) in
                    self.aggregation.key_names().zip(known.keys.iter().zip(&types.keys))
                {
                    changed(name, now, before)?;
                }
                for ((name, _), (before, now)) in
                    self.aggregation.measures.iter().zip(known.kept.iter().zip(&types.kept))
                {
                    changed(
                        name,
                        &DataType::Struct(now.clone()),
                        &DataType::Struct(before.clone()),
                    )?;
                }
            }
        }
        Ok(places)
    }
}
