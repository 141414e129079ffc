//! Minimum and maximum; the value at the minimum or maximum of another column.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, ListArray, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields};

use crate::arrow::aggregate::column::{
    Column, Input, OwnedValue, State, Value, check_size, to_array,
};
use crate::arrow::aggregate::description::AggregateError;

/// The minimum or maximum of each group.
pub(super) struct Extreme {
    data_type: DataType,
    is_max: bool,
    values: Vec<Option<OwnedValue>>,
}

impl Extreme {
    pub(super) fn new(data_type: DataType, is_max: bool) -> Self {
        Self { data_type, is_max, values: Vec::new() }
    }

    fn take(&mut self, groups: &[u32], values: &Column) {
        for (row, &group) in groups.iter().enumerate() {
            let Some(value) = values.get(row) else { continue };
            let kept = &mut self.values[group as usize];
            if kept.as_ref().is_none_or(|kept| is_beyond(value, kept.as_value(), self.is_max)) {
                *kept = Some(value.into());
            }
        }
    }
}

fn is_beyond(value: Value<'_>, than: Value<'_>, is_max: bool) -> bool {
    if is_max { value > than } else { value < than }
}

impl State for Extreme {
    fn resize(&mut self, groups: usize) {
        self.values.resize(groups, None);
    }

    fn update(&mut self, groups: &[u32], input: &Input) {
        if let Some(values) = &input.value {
            self.take(groups, values);
        }
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        self.take(groups, &Column::of_plain(partials.column(0)));
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        Ok(vec![self.result()?])
    }

    fn result(&self) -> Result<ArrayRef, AggregateError> {
        to_array(
            self.values.iter().map(|kept| kept.as_ref().map(OwnedValue::as_value)),
            &self.data_type,
        )
    }
}

/// The value of the row that comes first or last in the order of another column.
pub(super) struct FirstLast {
    value_type: DataType,
    by_type: DataType,
    is_last: bool,
    /// The order and the value of each group's row.
    rows: Vec<Option<(OwnedValue, OwnedValue)>>,
}

impl FirstLast {
    pub(super) fn new(value_type: DataType, by_type: DataType, is_last: bool) -> Self {
        Self { value_type, by_type, is_last, rows: Vec::new() }
    }

    fn take(&mut self, groups: &[u32], values: &Column, order: &Column) {
        for (row, &group) in groups.iter().enumerate() {
            let (Some(value), Some(by)) = (values.get(row), order.get(row)) else { continue };
            let kept = &mut self.rows[group as usize];
            if kept
                .as_ref()
                .is_none_or(|(before, _)| is_beyond(by, before.as_value(), self.is_last))
            {
                *kept = Some((by.into(), value.into()));
            }
        }
    }
}

impl State for FirstLast {
    fn resize(&mut self, groups: usize) {
        self.rows.resize(groups, None);
    }

    fn update(&mut self, groups: &[u32], input: &Input) {
        if let (Some(values), Some(order)) = (&input.value, &input.second) {
            self.take(groups, values, order);
        }
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        self.take(
            groups,
            &Column::of_plain(partials.column(0)),
            &Column::of_plain(partials.column(1)),
        );
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        let order = self.rows.iter().map(|row| row.as_ref().map(|(by, _)| by.as_value()));
        Ok(vec![self.result()?, to_array(order, &self.by_type)?])
    }

    fn result(&self) -> Result<ArrayRef, AggregateError> {
        to_array(
            self.rows.iter().map(|row| row.as_ref().map(|(_, value)| value.as_value())),
            &self.value_type,
        )
    }
}

// The rows with the largest values.

/// A ranked row: its value and its label.
type Row = (OwnedValue, Option<OwnedValue>);

/// The best rows of each group, best first.
pub(super) struct TopN {
    n: usize,
    /// The types of the values and of the labels.
    types: Vec<DataType>,
    best: Vec<Vec<Row>>,
}

/// Orders rows: larger values first; among equal values the smaller label, and rows without a label
/// last.
fn compare((value, label): (Value<'_>, Option<Value<'_>>), other: &Row) -> Ordering {
    let other_label = other.1.as_ref().map(OwnedValue::as_value);
    let by_label = match (label, other_label) {
        (Some(label), Some(other)) => label.cmp(&other),
        (label, other) => other.is_some().cmp(&label.is_some()),
    };
    other.0.as_value().cmp(&value).then(by_label)
}

impl TopN {
    pub(super) fn new(n: usize, fields: &Fields) -> Self {
        let types = fields.iter().map(|field| match field.data_type() {
            DataType::List(values) => values.data_type().clone(),
            other => unreachable!("{other} is not a list"),
        });
        Self { n, types: types.collect(), best: Vec::new() }
    }

    fn take(&mut self, group: u32, value: Value<'_>, label: Option<Value<'_>>) {
        let best = &mut self.best[group as usize];
        if best.len() == self.n
            && best.last().is_none_or(|last| compare((value, label), last) != Ordering::Less)
        {
            return;
        }
        let place = best.partition_point(|row| compare((value, label), row) != Ordering::Less);
        best.truncate(self.n - 1);
        best.insert(place, (value.into(), label.map(Into::into)));
    }

    fn offsets(&self) -> Result<OffsetBuffer<i32>, AggregateError> {
        check_size(self.best.iter().map(Vec::len).sum())?;
        Ok(OffsetBuffer::from_lengths(self.best.iter().map(Vec::len)))
    }
}

impl State for TopN {
    fn resize(&mut self, groups: usize) {
        self.best.resize(groups, Vec::new());
    }

    fn update(&mut self, groups: &[u32], input: &Input) {
        let Some(values) = &input.value else { return };
        for (row, &group) in groups.iter().enumerate() {
            if let Some(value) = values.get(row) {
                self.take(group, value, input.second.as_ref().and_then(|labels| labels.get(row)));
            }
        }
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        let lists: Vec<&ListArray> = partials.columns().iter().map(AsArray::as_list).collect();
        let columns: Vec<Column> =
            lists.iter().map(|list| Column::of_plain(list.values())).collect();
        for (row, &group) in groups.iter().enumerate() {
            #[allow(clippy::cast_sign_loss)] // offsets
            let rows =
                lists[0].value_offsets()[row] as usize..lists[0].value_offsets()[row + 1] as usize;
            for row in rows {
                if let Some(value) = columns[0].get(row) {
                    self.take(group, value, columns.get(1).and_then(|labels| labels.get(row)));
                }
            }
        }
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        let part = |place: usize| -> Vec<Option<Value<'_>>> {
            let rows = self.best.iter().flatten();
            rows.map(|(value, label)| {
                if place == 0 { Some(value) } else { label.as_ref() }.map(OwnedValue::as_value)
            })
            .collect()
        };
        let lists = self.types.iter().enumerate().map(
            |(place, data_type)| -> Result<ArrayRef, AggregateError> {
                let values = to_array(part(place).into_iter(), data_type)?;
                let field = Field::new_list_field(data_type.clone(), true).into();
                Ok(Arc::new(ListArray::try_new(field, self.offsets()?, values, None)?))
            },
        );
        lists.collect()
    }

    /// Returns lists of structs with the fields `value` and, if there are labels, `label`.
    fn result(&self) -> Result<ArrayRef, AggregateError> {
        let lists = self.partials()?;
        let columns: Vec<ArrayRef> =
            lists.iter().map(|list| list.as_list::<i32>().values().clone()).collect();
        let names = ["value", "label"].into_iter().zip(&self.types);
        let fields: Fields =
            names.map(|(name, data_type)| Field::new(name, data_type.clone(), true)).collect();
        let rows = StructArray::try_new(fields, columns, None)?;
        let field =
            Field::new_list_field(arrow_array::Array::data_type(&rows).clone(), true).into();
        Ok(Arc::new(ListArray::try_new(field, self.offsets()?, Arc::new(rows), None)?))
    }
}
