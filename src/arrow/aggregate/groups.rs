//! Assigns each row a group: rows with equal keys get the same number.

use arrow_array::ArrayRef;
use arrow_schema::DataType;

use super::column::{Column, to_array};
use super::description::AggregateError;
use super::interner::Interner;
use super::value::Value;

/// Interns the values of each key column. Pairs of numbers are interned in turn, from left to
/// right: a group is the number of the last pair.
pub(super) struct Groups {
    columns: Vec<Interner>,
    /// The first interner pairs the first two columns, each further one the pairs so far with the
    /// next column.
    pairs: Vec<Interner>,
    /// Without keys, all rows form one group, which exists once there are rows.
    has_rows: bool,
}

/// A point that [`Groups`] can be rolled back to.
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

    /// Forgets everything that was added after the mark.
    pub(super) fn roll_back(&mut self, mark: &Mark) {
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

    /// The key columns of all groups, in group order.
    pub(super) fn key_columns(&self, types: &[DataType]) -> Result<Vec<ArrayRef>, AggregateError> {
        #[allow(clippy::cast_possible_truncation)] // group numbers have 32 bits
        let mut groups: Vec<u32> = (0..self.len() as u32).collect();
        let mut arrays = Vec::with_capacity(types.len());
        for (index, column) in self.columns.iter().enumerate().rev() {
            let numbers = match index.checked_sub(1) {
                Some(pairs) => {
                    let (before, numbers) =
                        groups.iter().map(|&group| self.pairs[pairs].pair_of(group)).unzip();
                    groups = before;
                    numbers
                }
                None => std::mem::take(&mut groups),
            };
            arrays
                .push(to_array(numbers.iter().map(|&number| column.value(number)), &types[index])?);
        }
        arrays.reverse();
        Ok(arrays)
    }
}

fn pair(first: u32, second: u32) -> i64 {
    (i64::from(first) << 32) | i64::from(second)
}

impl Interner {
    /// The two numbers of a pair.
    fn pair_of(&self, number: u32) -> (u32, u32) {
        let Some(Value::Code(code)) = self.value(number) else { return (0, 0) };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // its two halves
        ((code >> 32) as u32, code as u32)
    }
}
