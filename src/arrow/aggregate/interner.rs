//! Interns values: numbers them in order of first appearance, starting at 0.

use std::hash::Hasher;

use arrow_buffer::ScalarBuffer;
use hashbrown::HashTable;
use rustc_hash::FxHasher;

use super::codes::{Codes, NONE};
use super::column::{Column, Values};
use super::value::Value;

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

    /// The value with this number. Returns `None` for null.
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

    /// Forgets all values whose number is `len` or above.
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

#[cfg(test)]
mod tests {
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
