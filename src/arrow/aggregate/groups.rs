//! The group of each row: rows with the same keys have the same number.

use arrow_array::ArrayRef;
use arrow_schema::DataType;

use super::column::{Column, to_array};
use super::description::AggregateError;
use super::interner::Interner;

/// Each key column has its own numbers, and each pair of numbers, from the left, one of its own;
/// the last is the group.
pub(super) struct Groups {
    columns: Vec<Interner>,
    /// The first is of the first two columns.
    pairs: Vec<Interner>,
    /// Without keys all rows are one group, if there are any.
    has_rows: bool,
}

/// How far [`Groups`] had come.
pub(super) struct Mark {
    columns: Vec<usize>,
    pairs: Vec<usize>,
    has_rows: bool,
}

impl Groups {
    pub(super) fn new(keys: usize) -> Self {
        let several = |count: usize| (0..count).map(|_| Interner::default()).collect();
        Self { columns: several(keys), pairs: several(keys.saturating_sub(1)), has_rows: false }
    }

    pub(super) fn len(&self) -> usize {
        let last = self.pairs.last().or(self.columns.last());
        last.map_or(usize::from(self.has_rows), Interner::len)
    }

    /// Writes the group of each row.
    pub(super) fn assign(&mut self, keys: &[Column], rows: usize, groups: &mut Vec<u32>) {
        self.has_rows |= rows > 0;
        groups.clear();
        groups.resize(rows, 0);
        let Some((first, others)) = self.columns.split_first_mut() else { return };
        first.column(&keys[0], groups);
        let mut numbers = vec![0; if others.is_empty() { 0 } else { rows }];
        for ((column, pairs), key) in others.iter_mut().zip(&mut self.pairs).zip(&keys[1..]) {
            column.column(key, &mut numbers);
            for (group, &number) in groups.iter_mut().zip(&numbers) {
                *group = pairs.code(pair(*group, number));
            }
        }
    }

    pub(super) fn mark(&self) -> Mark {
        let lens = |all: &[Interner]| all.iter().map(Interner::len).collect();
        Mark { columns: lens(&self.columns), pairs: lens(&self.pairs), has_rows: self.has_rows }
    }

    /// Forgets what came after the mark.
    pub(super) fn back_to(&mut self, mark: &Mark) {
        let all = self
            .columns
            .iter_mut()
            .zip(&mark.columns)
            .chain(self.pairs.iter_mut().zip(&mark.pairs));
        for (interner, &len) in all {
            interner.truncate(len);
        }
        self.has_rows = mark.has_rows;
    }

    /// The key columns of all groups, in the order of their numbers.
    pub(super) fn key_columns(&self, types: &[DataType]) -> Result<Vec<ArrayRef>, AggregateError> {
        #[allow(clippy::cast_possible_truncation)] // groups have 32 bits
        let mut groups: Vec<u32> = (0..self.len() as u32).collect();
        let mut arrays = Vec::with_capacity(types.len());
        for (place, column) in self.columns.iter().enumerate().rev() {
            let numbers = match place.checked_sub(1) {
                Some(pairs) => {
                    let (before, numbers) =
                        groups.iter().map(|&group| self.pairs[pairs].pair_of(group)).unzip();
                    groups = before;
                    numbers
                }
                None => std::mem::take(&mut groups),
            };
            arrays
                .push(to_array(numbers.iter().map(|&number| column.value(number)), &types[place])?);
        }
        arrays.reverse();
        Ok(arrays)
    }
}

fn pair(first: u32, second: u32) -> i64 {
    (i64::from(first) << 32) | i64::from(second)
}

impl Interner {
    /// The two numbers that a pair is made of.
    fn pair_of(&self, number: u32) -> (u32, u32) {
        let Some(super::column::Value::Code(code)) = self.value(number) else { return (0, 0) };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // its two halves
        ((code >> 32) as u32, code as u32)
    }
}
