//! Assigns each row a group: rows with equal keys get the same number.

use std::hash::Hasher;

use arrow_array::ArrayRef;
use arrow_buffer::ScalarBuffer;
use arrow_schema::DataType;
use hashbrown::HashTable;
use rustc_hash::FxHasher;

use crate::arrow::aggregate::column::{Column, Value, Values, to_array};
use crate::arrow::aggregate::description::AggregateError;
use crate::arrow::grouping::spread;

/// Interns the values of each key column. Pairs of numbers are interned in turn, from left to
/// right: a group is the number of the last pair.
pub(super) struct Groups {
    columns: Vec<Interner>,
    /// The first interner pairs the first two columns; each further one pairs the last number with
    /// the next column.
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

    /// Returns the key columns of all groups, in group order.
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
    /// Returns the two numbers of a pair.
    fn pair_of(&self, number: u32) -> (u32, u32) {
        let Some(Value::Code(code)) = self.value(number) else { return (0, 0) };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // its two halves
        ((code >> 32) as u32, code as u32)
    }
}

// Interns values: numbers them in order of first appearance, starting at 0.

/// Numbers the values of one column, which are either all codes or all bytes.
#[derive(Default)]
pub(super) struct Interner {
    codes: Codes,
    texts: Texts,
    /// The number of null.
    null: Option<u32>,
    len: u32,
}

impl Interner {
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Writes the number of each row's value.
    pub(super) fn column(&mut self, column: &Column, numbers: &mut [u32]) {
        // For a dictionary much larger than the column, a table of all values would cost more than
        // it saves.
        let small = |indices: &&ScalarBuffer<u32>| {
            indices.iter().all(|&index| (index as usize) < 4 * numbers.len())
        };
        if let Some(indices) = column.indices.as_ref().filter(small) {
            // Look up each value of the dictionary once, when the first row references it.
            let mut known = vec![NONE; indices.iter().max().map_or(0, |&last| last as usize + 1)];
            for (row, number) in numbers.iter_mut().enumerate() {
                let (index, value) = (indices[row] as usize, column.get(row));
                if value.is_none() {
                    *number = self.number(None);
                    continue;
                }
                if known[index] == NONE {
                    known[index] = self.number(value);
                }
                *number = known[index];
            }
            return;
        }
        match (&column.values, &column.nulls) {
            (Values::Codes(codes), None) if column.indices.is_none() => {
                let mut done = 0;
                while done < codes.len() {
                    done += self.codes.fill(&codes[done..], &mut numbers[done..]);
                    if let (Some(&code), Some(number)) = (codes.get(done), numbers.get_mut(done)) {
                        *number = self.code(code);
                        done += 1;
                    }
                }
            }
            (Values::Bytes(bytes), None) if column.indices.is_none() => {
                for (row, number) in numbers.iter_mut().enumerate() {
                    *number = self.text(bytes.value(row));
                }
            }
            _ => {
                for (row, number) in numbers.iter_mut().enumerate() {
                    *number = self.number(column.get(row));
                }
            }
        }
    }

    fn number(&mut self, value: Option<Value<'_>>) -> u32 {
        match value {
            Some(Value::Code(code)) => self.code(code),
            Some(Value::Bytes(text)) => self.text(text),
            None => *self.null.get_or_insert_with(|| {
                self.codes.values.push(0);
                self.texts.push(&[]);
                next(&mut self.len)
            }),
        }
    }

    #[inline]
    pub(super) fn code(&mut self, code: i64) -> u32 {
        self.codes.find(code).unwrap_or_else(|| {
            let number = next(&mut self.len);
            self.codes.insert(code, number);
            number
        })
    }

    #[inline]
    fn text(&mut self, text: &[u8]) -> u32 {
        self.texts.find(text).unwrap_or_else(|| {
            let number = next(&mut self.len);
            self.texts.insert(text, number);
            number
        })
    }

    /// Returns the value with this number, or `None` for null.
    pub(super) fn value(&self, number: u32) -> Option<Value<'_>> {
        if self.null == Some(number) {
            return None;
        }
        let number = number as usize;
        Some(match self.codes.values.get(number) {
            Some(&code) if self.texts.table.is_empty() => Value::Code(code),
            _ => Value::Bytes(self.texts.get(number)),
        })
    }

    /// Forgets all values numbered `len` or above.
    pub(super) fn truncate(&mut self, len: usize) {
        self.null = self.null.filter(|&number| (number as usize) < len);
        self.codes.truncate(len, self.null);
        self.texts.truncate(len);
        self.len = self.len.min(u32::try_from(len).unwrap_or(u32::MAX));
    }
}

fn next(len: &mut u32) -> u32 {
    let number = *len;
    *len += 1;
    number
}

/// Strings in one contiguous buffer.
#[derive(Default)]
struct Texts {
    table: HashTable<u32>,
    bytes: Vec<u8>,
    /// The end offset of each string, by number.
    ends: Vec<usize>,
}

impl Texts {
    fn get(&self, number: usize) -> &[u8] {
        text_of(&self.bytes, &self.ends, number)
    }

    #[inline]
    fn find(&self, text: &[u8]) -> Option<u32> {
        self.table.find(hash(text), |&number| self.get(number as usize) == text).copied()
    }

    fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    #[cold]
    fn insert(&mut self, text: &[u8], number: u32) {
        self.push(text);
        let (bytes, ends) = (&self.bytes, &self.ends);
        self.table.insert_unique(hash(text), number, |&number| {
            hash(text_of(bytes, ends, number as usize))
        });
    }

    fn truncate(&mut self, len: usize) {
        if len < self.ends.len() {
            self.table.retain(|&mut number| (number as usize) < len);
            self.bytes.truncate(len.checked_sub(1).map_or(0, |last| self.ends[last]));
            self.ends.truncate(len);
        }
    }
}

fn text_of<'a>(bytes: &'a [u8], ends: &[usize], number: usize) -> &'a [u8] {
    &bytes[number.checked_sub(1).map_or(0, |before| ends[before])..ends[number]]
}

#[inline]
fn hash(text: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(text);
    hasher.finish()
}

// Numbers 64-bit codes consecutively.

/// Marks a missing number. No code is assigned it.
pub(super) const NONE: u32 = u32::MAX;

/// The widest range of codes that is kept in a dense table.
const RANGE: u64 = 1 << 16;

/// The number of each code: a dense table while all codes lie within a small range, as ids often
/// do, otherwise a hash table.
#[derive(Default)]
pub(super) struct Codes {
    dense: Dense,
    hashed: Hashed,
    /// The code of each number.
    pub(super) values: Vec<i64>,
}

impl Codes {
    /// Writes the numbers of all codes before the first unknown one. Returns how many were written.
    pub(super) fn fill(&self, codes: &[i64], numbers: &mut [u32]) -> usize {
        if self.hashed.slots.is_empty() {
            fill(codes, numbers, |code| self.dense.find(code))
        } else {
            fill(codes, numbers, |code| self.hashed.find(code).ok())
        }
    }

    /// Makes room for a new code, switching to the hash table if the range becomes too wide.
    fn expect(&mut self, code: i64) {
        if self.hashed.slots.is_empty() && !self.dense.widen(code) {
            let dense = std::mem::take(&mut self.dense);
            for (offset, number) in (0..).zip(dense.numbers).filter(|&(_, number)| number != NONE) {
                self.hashed.insert(dense.first.wrapping_add(offset), number);
            }
            self.hashed.reserve(1);
        }
    }

    #[inline]
    pub(super) fn find(&self, code: i64) -> Option<u32> {
        if self.hashed.slots.is_empty() {
            self.dense.find(code)
        } else {
            self.hashed.find(code).ok()
        }
    }

    #[cold]
    pub(super) fn insert(&mut self, code: i64, number: u32) {
        self.expect(code);
        self.values.push(code);
        if self.hashed.slots.is_empty() {
            self.dense.insert(code, number);
        } else {
            self.hashed.insert(code, number);
        }
    }

    pub(super) fn truncate(&mut self, len: usize, null: Option<u32>) {
        if len >= self.values.len() {
            return;
        }
        let kept = std::mem::take(self).values;
        for (number, &code) in (0..).zip(&kept[..len]) {
            if null == Some(number) {
                self.values.push(0);
            } else {
                self.insert(code, number);
            }
        }
    }
}

#[inline]
fn fill(codes: &[i64], numbers: &mut [u32], find: impl Fn(i64) -> Option<u32>) -> usize {
    for (row, (&code, number)) in codes.iter().zip(numbers).enumerate() {
        match find(code) {
            Some(known) => *number = known,
            None => return row,
        }
    }
    codes.len()
}

/// The numbers of consecutive codes, starting with `first`.
#[derive(Default)]
struct Dense {
    first: i64,
    numbers: Vec<u32>,
}

impl Dense {
    #[inline]
    fn offset(&self, code: i64) -> usize {
        usize::try_from(code.wrapping_sub(self.first).cast_unsigned()).unwrap_or(usize::MAX)
    }

    #[inline]
    fn find(&self, code: i64) -> Option<u32> {
        self.numbers.get(self.offset(code)).copied().filter(|&number| number != NONE)
    }

    fn insert(&mut self, code: i64, number: u32) {
        let offset = self.offset(code);
        self.numbers[offset] = number;
    }

    /// Makes room for a code. Returns `false` if the range would be too wide.
    fn widen(&mut self, code: i64) -> bool {
        let (mut first, mut last, mut down) = (code, code, false);
        if let Some(more) = self.numbers.len().checked_sub(1) {
            let end = self.first.saturating_add(i64::try_from(more).unwrap_or(i64::MAX));
            if (self.first..=end).contains(&code) {
                return true;
            }
            (first, last, down) = (code.min(self.first), code.max(end), code < self.first);
        }
        if last.abs_diff(first) >= RANGE {
            return false;
        }
        // Grow by powers of two, so that codes that arrive one by one do not copy the table each
        // time.
        let more = (last.abs_diff(first) + 1).next_power_of_two() - 1;
        if down {
            first = last.saturating_sub_unsigned(more);
        }
        #[allow(clippy::cast_possible_truncation)] // both are in the range
        let (more, before) = (more as usize, self.first.abs_diff(first) as usize);
        let mut numbers = vec![NONE; more + 1];
        // The table may extend past the largest possible code.
        for (to, from) in numbers.iter_mut().skip(before).zip(&self.numbers) {
            *to = *from;
        }
        (self.first, self.numbers) = (first, numbers);
        true
    }
}

/// A hash table with linear probing, at most half full. A slot holds everything that a lookup
/// needs.
#[derive(Default)]
struct Hashed {
    slots: Vec<(i64, u32)>,
    used: usize,
}

impl Hashed {
    /// Returns the code's number, or the free slot for it. The table must have slots.
    #[inline]
    fn find(&self, code: i64) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        #[allow(clippy::cast_possible_truncation)] // the mask is smaller
        let mut at = (spread(code.cast_unsigned()) >> 32) as usize & mask;
        loop {
            let (known, number) = self.slots[at];
            if known == code && number != NONE {
                return Ok(number);
            }
            if number == NONE {
                return Err(at);
            }
            at = (at + 1) & mask;
        }
    }

    fn insert(&mut self, code: i64, number: u32) {
        self.used += 1;
        self.reserve(self.used);
        if let Err(slot) = self.find(code) {
            self.slots[slot] = (code, number);
        }
    }

    /// Makes room for this many codes.
    fn reserve(&mut self, codes: usize) {
        if codes * 2 > self.slots.len() {
            let slots = vec![(0, NONE); (codes * 4).next_power_of_two().max(16)];
            for (code, number) in std::mem::replace(&mut self.slots, slots) {
                if number != NONE
                    && let Err(slot) = self.find(code)
                {
                    self.slots[slot] = (code, number);
                }
            }
        }
    }
}

#[cfg(test)]
mod interner_tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, StringArray};
    use proptest::prelude::*;

    use super::*;

    /// Checks the interner's numbers of a column against those of a map.
    fn check(
        interner: &mut Interner,
        known: &mut HashMap<Option<String>, u32>,
        rows: &[Option<i64>],
        texts: bool,
    ) {
        let column: ArrayRef = if texts {
            Arc::new(rows.iter().map(|row| row.map(|row| row.to_string())).collect::<StringArray>())
        } else {
            Arc::new(rows.iter().copied().collect::<Int64Array>())
        };
        let mut numbers = vec![0; rows.len()];
        interner.column(&Column::of(&column).unwrap(), &mut numbers);
        for (row, number) in rows.iter().zip(numbers) {
            let next = u32::try_from(known.len()).unwrap();
            assert_eq!(number, *known.entry(row.map(|row| row.to_string())).or_insert(next));
            let value = row.map(|row| row.to_string());
            match interner.value(number) {
                Some(Value::Code(code)) => assert_eq!(Some(code), *row),
                Some(Value::Bytes(text)) => {
                    assert_eq!(Some(text), value.as_deref().map(str::as_bytes));
                }
                None => assert_eq!(None, *row),
            }
        }
        assert_eq!(interner.len(), known.len());
    }

    /// Codes mostly in a small range, with some outliers.
    fn codes() -> impl Strategy<Value = i64> {
        let edges = prop_oneof![Just(i64::MIN), Just(i64::MAX), 60_000..70_000_i64];
        prop_oneof![900 => -300..300_i64, 1 => edges, 1 => any::<i64>()]
    }

    proptest! {
        #[test]
        fn equal_values_have_equal_numbers_in_order_of_appearance(
            batches in prop::collection::vec(
                prop::collection::vec(prop::option::weighted(0.9, codes()), 0..300),
                1..5,
            ),
            texts in any::<bool>(),
            cut in 0..200_u32,
        ) {
            let (mut interner, mut known) = (Interner::default(), HashMap::new());
            for rows in batches {
                check(&mut interner, &mut known, &rows, texts);
                interner.truncate(cut as usize);
                known.retain(|_, number| *number < cut);
            }
        }
    }
}
