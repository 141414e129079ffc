//! The interface of a measure's state.

use arrow_array::{ArrayRef, StructArray};
use arrow_schema::DataType;

use crate::arrow::aggregate::column::Column;
use crate::arrow::aggregate::description::AggregateError;

/// The type of an exact sum of integers: wide enough for 2^63 of the largest.
pub(super) const EXACT: DataType = DataType::Decimal128(38, 0);

/// The columns that a measure reads, for a range of rows.
pub(super) struct Input {
    /// The values of a count, sum, mean or quantile.
    pub(super) array: Option<ArrayRef>,
    /// The values of every other measure.
    pub(super) value: Option<Column>,
    /// The order, or the label.
    pub(super) second: Option<Column>,
}

impl Input {
    /// A range of its rows.
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

/// The state of one measure, for each group. Groups are numbered below the argument of the last
/// [`grow`](Self::grow).
pub(super) trait State: Send {
    /// Makes room for this many groups.
    fn grow(&mut self, groups: usize);

    /// Adds rows; `groups` holds the group of each.
    fn update(&mut self, groups: &[u32], input: &Input);

    /// Checks partials for anything that [`merge`](Self::merge) could not handle.
    fn check(&self, _partials: &StructArray) -> Result<(), AggregateError> {
        Ok(())
    }

    /// Merges partials that [`check`](Self::check) has accepted.
    fn merge(&mut self, groups: &[u32], partials: &StructArray);

    /// A copy to roll back to, if the state is plain numbers: copying those costs less per group
    /// than looking up a few rows.
    fn copied(&self) -> Option<Box<dyn State>> {
        None
    }

    /// The state as columns, with the fields of
    /// [`kept_fields`](crate::arrow::aggregate::partials::kept_fields).
    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError>;

    /// The result of each group.
    fn result(&self) -> Result<ArrayRef, AggregateError>;

    /// The number of values in each group, if the state counts them anyway.
    fn counts(&self) -> Option<ArrayRef> {
        None
    }

    /// Forgets all groups.
    fn clear(&mut self);
}
