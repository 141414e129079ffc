//! Minimum and maximum; the value at the minimum or maximum of another column.

use arrow_array::{ArrayRef, StructArray};
use arrow_schema::DataType;

use super::column::{Column, to_array};
use super::description::AggregateError;
use super::partials::column_of;
use super::state::{Input, State};
use super::value::{OwnedValue, Value};

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
    fn grow(&mut self, groups: usize) {
        self.values.resize(groups, None);
    }

    fn update(&mut self, groups: &[u32], input: &Input) {
        if let Some(values) = &input.value {
            self.take(groups, values);
        }
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        self.take(groups, &column_of(partials, 0));
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

    fn clear(&mut self) {
        self.values.clear();
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
    fn grow(&mut self, groups: usize) {
        self.rows.resize(groups, None);
    }

    fn update(&mut self, groups: &[u32], input: &Input) {
        if let (Some(values), Some(order)) = (&input.value, &input.second) {
            self.take(groups, values, order);
        }
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        self.take(groups, &column_of(partials, 0), &column_of(partials, 1));
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

    fn clear(&mut self) {
        self.rows.clear();
    }
}
