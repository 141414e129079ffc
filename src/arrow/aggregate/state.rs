//! What is kept of one measure for each group.

use std::sync::Arc;

use arrow_array::{ArrayRef, StructArray};
use arrow_schema::{DataType, Field, Fields};

use super::column::{Column, value_type};
use super::description::{AggregateError, Measure};
use super::extremes::{At, Extreme};
use super::quantiles::Quantiles;
use super::sums::{Counts, FloatSums, IntegerSums};
use super::top_n::TopN;

/// The columns that a measure looks at, for some rows.
pub(super) struct Input {
    /// Of numbers, for sums.
    pub(super) array: Option<ArrayRef>,
    pub(super) value: Option<Column>,
    /// The order, or the label.
    pub(super) second: Option<Column>,
}

impl Input {
    /// Some of its rows.
    pub(super) fn slice(&self, start: usize, rows: usize) -> Self {
        let column =
            |column: &Option<Column>| column.as_ref().map(|column| column.slice(start, rows));
        Self {
            array: self.array.as_ref().map(|array| array.slice(start, rows)),
            value: column(&self.value),
            second: column(&self.second),
        }
    }
}

/// What is kept of one measure. Groups are numbers below the last `grow`.
pub(super) trait State: Send {
    /// Makes room for so many groups.
    fn grow(&mut self, groups: usize);

    /// Takes rows in: `groups` has the group of each.
    fn update(&mut self, groups: &[u32], input: &Input);

    /// Looks for what [`merge`](Self::merge) could not do with.
    fn check(&self, _partials: &StructArray) -> Result<(), AggregateError> {
        Ok(())
    }

    /// Takes partials in, that [`check`](Self::check) has seen.
    fn merge(&mut self, groups: &[u32], partials: &StructArray);

    /// A copy, to come back to, if it is one of plain numbers: that costs less per group than the
    /// look-up of some rows.
    fn copied(&self) -> Option<Box<dyn State>> {
        None
    }

    /// What is kept, as columns for the fields that [`kept_fields`] gives.
    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError>;

    /// The measure of each group.
    fn result(&self) -> Result<ArrayRef, AggregateError>;

    /// The values in each group, where they are counted anyway.
    fn counts(&self) -> Option<ArrayRef> {
        None
    }

    /// Forgets all groups.
    fn clear(&mut self);
}

/// The exact sum of integers: a decimal has room for 2^63 of the largest.
pub(super) const EXACT: DataType = DataType::Decimal128(38, 0);

/// The fields of a measure's partials, for a column of this type and a second one.
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
            (Measure::Sum { .. } | Measure::Mean { .. }, Some(of), None) if of.is_floating() => {
                vec![
                    field("sum", DataType::Float64),
                    field("error", DataType::Float64),
                    field("count", DataType::Int64),
                ]
            }
            (Measure::Sum { .. } | Measure::Mean { .. }, Some(_), None) => {
                vec![field("sum", EXACT), field("count", DataType::Int64)]
            }
            (Measure::Min { .. } | Measure::Max { .. }, Some(of), None) => {
                vec![field("value", of.clone())]
            }
            (Measure::First { .. } | Measure::Last { .. }, Some(of), Some(by)) => {
                vec![field("value", of.clone()), field("by", by.clone())]
            }
            (Measure::Quantiles { .. }, Some(_), None) => vec![field("sketch", DataType::Binary)],
            (Measure::TopN { label: None, .. }, Some(of), None) => vec![list("values", of.clone())],
            (Measure::TopN { .. }, Some(of), Some(label)) => {
                vec![list("values", of.clone()), list("labels", label.clone())]
            }
            _ => return None,
        }
        .into(),
    )
}

/// The fields of a measure's partials, if these are as good: a file may have renamed what is in a
/// list.
pub(super) fn as_kept_fields(measure: &Measure, fields: &Fields) -> Option<Fields> {
    let of = |place: usize| {
        let data_type = match fields.get(place)?.data_type() {
            DataType::List(values) => values.data_type(),
            exact if *exact == EXACT => return Some(DataType::Int64),
            other => other,
        };
        value_type(data_type)
    };
    let second = match measure {
        Measure::Sum { .. } | Measure::Mean { .. } => None,
        _ => of(1),
    };
    let kept = kept_fields(measure, of(0).as_ref(), second.as_ref())?;
    let is_same = |(one, other): (&Arc<Field>, &Arc<Field>)| {
        let same_type = match (one.data_type(), other.data_type()) {
            (DataType::List(one), DataType::List(other)) => one.data_type() == other.data_type(),
            (one, other) => one == other,
        };
        one.name() == other.name() && same_type
    };
    (kept.len() == fields.len() && kept.iter().zip(fields).all(is_same)).then_some(kept)
}

/// A state for partials with these fields.
pub(super) fn state_of(name: &str, measure: &Measure, fields: &Fields) -> Box<dyn State> {
    let of = |place: usize| fields[place].data_type().clone();
    match measure {
        Measure::Count { .. } => Box::<Counts>::default(),
        Measure::Sum { .. } | Measure::Mean { .. } => {
            let is_mean = matches!(measure, Measure::Mean { .. });
            if of(0) == EXACT {
                Box::new(IntegerSums::new(name, is_mean))
            } else {
                Box::new(FloatSums::new(is_mean))
            }
        }
        Measure::Min { .. } => Box::new(Extreme::new(of(0), false)),
        Measure::Max { .. } => Box::new(Extreme::new(of(0), true)),
        Measure::First { .. } => Box::new(At::new(of(0), of(1), false)),
        Measure::Last { .. } => Box::new(At::new(of(0), of(1), true)),
        Measure::Quantiles { quantiles, .. } => Box::new(Quantiles::new(quantiles)),
        Measure::TopN { n, .. } => Box::new(TopN::new(*n, fields)),
    }
}

/// A column of partials, by place.
pub(super) fn kept(partials: &StructArray, place: usize) -> Column {
    Column::of_kept(partials.column(place))
}
