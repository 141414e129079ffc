//! Numbers for values: 0 for the first that is met, 1 for the next.

use std::hash::Hasher;

use hashbrown::HashTable;
use rustc_hash::FxHasher;

use super::column::{Column, Value, Values};
use crate::arrow::grouping::spread;

/// The numbers of the values of one column: all of them codes, or all bytes.
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
        if let Some(indices) = &column.indices {
            // Of a dictionary: each value that a row has is looked up once.
            let mut known = vec![NONE; indices.iter().max().map_or(0, |&last| last as usize + 1)];
            for (row, number) in numbers.iter_mut().enumerate() {
                let index = indices[row] as usize;
                *number = match column.get(row) {
                    Some(_) if known[index] != NONE => known[index],
                    value => self.number(value),
                };
                if column.nulls.is_none() {
                    known[index] = *number;
                }
            }
            return;
        }
        match (&column.values, &column.nulls) {
            (Values::Codes(codes), None) => {
                let mut done = 0;
                while done < codes.len() {
                    done += self.codes.fill(&codes[done..], &mut numbers[done..]);
                    if let (Some(&code), Some(number)) = (codes.get(done), numbers.get_mut(done)) {
                        *number = self.code(code);
                        done += 1;
                    }
                }
            }
            (Values::Bytes(bytes), None) => {
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

    /// The value with a number; `None` is null.
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

    /// Forgets all values from a number on.
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

/// No value has this number.
const NONE: u32 = u32::MAX;

/// The widest range of codes that has a table.
const RANGE: u64 = 1 << 16;

/// The numbers of codes: a table where all codes are within a small range, as numbers of things often are, else a hash table.
#[derive(Default)]
struct Codes {
    near: Near,
    hashed: Hashed,
    /// By number.
    values: Vec<i64>,
}

impl Codes {
    /// Writes the numbers of the codes up to the first that is new, and returns how many those are.
    fn fill(&self, codes: &[i64], numbers: &mut [u32]) -> usize {
        if self.hashed.slots.is_empty() {
            fill(codes, numbers, |code| self.near.find(code))
        } else {
            fill(codes, numbers, |code| self.hashed.find(code).ok())
        }
    }

    /// Makes ready for a new code.
    fn expect(&mut self, code: i64) {
        if self.hashed.slots.is_empty() && !self.near.widen(code) {
            let near = std::mem::take(&mut self.near);
            for (place, number) in (0..).zip(near.numbers).filter(|&(_, number)| number != NONE) {
                self.hashed.insert(near.first.wrapping_add(place), number);
            }
            self.hashed.reserve(1);
        }
    }

    #[inline]
    fn find(&self, code: i64) -> Option<u32> {
        if self.hashed.slots.is_empty() { self.near.find(code) } else { self.hashed.find(code).ok() }
    }

    #[cold]
    fn insert(&mut self, code: i64, number: u32) {
        self.expect(code);
        self.values.push(code);
        if self.hashed.slots.is_empty() {
            self.near.insert(code, number);
        } else {
            self.hashed.insert(code, number);
        }
    }

    fn truncate(&mut self, len: usize, null: Option<u32>) {
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

/// The number of each code from the first on.
#[derive(Default)]
struct Near {
    first: i64,
    numbers: Vec<u32>,
}

impl Near {
    #[inline]
    fn place(&self, code: i64) -> usize {
        usize::try_from(code.wrapping_sub(self.first).cast_unsigned()).unwrap_or(usize::MAX)
    }

    #[inline]
    fn find(&self, code: i64) -> Option<u32> {
        self.numbers.get(self.place(code)).copied().filter(|&number| number != NONE)
    }

    fn insert(&mut self, code: i64, number: u32) {
        let place = self.place(code);
        self.numbers[place] = number;
    }

    /// Makes room for a code. `false`: the range would be too wide.
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
        // By powers of two, so that codes that come one by one are not copied each time.
        let more = (last.abs_diff(first) + 1).next_power_of_two() - 1;
        if down {
            first = last.saturating_sub_unsigned(more);
        }
        #[allow(clippy::cast_possible_truncation)] // both are in the range
        let (more, before) = (more as usize, self.first.abs_diff(first) as usize);
        let mut numbers = vec![NONE; more + 1];
        // A table may reach beyond the largest code that there can be.
        for (to, from) in numbers.iter_mut().skip(before).zip(&self.numbers) {
            *to = *from;
        }
        (self.first, self.numbers) = (first, numbers);
        true
    }
}

/// A hash table with linear probing, at most half full, whose slots hold all that a look-up needs.
#[derive(Default)]
struct Hashed {
    slots: Vec<(i64, u32)>,
    used: usize,
}

impl Hashed {
    /// The code's number, or the slot for it. There are slots.
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

    /// Makes slots for so many codes.
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

/// Texts in one piece of memory.
#[derive(Default)]
struct Texts {
    table: HashTable<u32>,
    bytes: Vec<u8>,
    /// Where each ends, by number.
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
        self.table.insert_unique(hash(text), number, |&number| hash(text_of(bytes, ends, number as usize)));
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

    /// Numbers of a column, by the interner and by a map.
    fn check(interner: &mut Interner, known: &mut HashMap<Option<String>, u32>, rows: &[Option<i64>], texts: bool) {
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
                Some(Value::Bytes(text)) => assert_eq!(Some(text), value.as_deref().map(str::as_bytes)),
                None => assert_eq!(None, *row),
            }
        }
        assert_eq!(interner.len(), known.len());
    }

    /// Some in a small range, some far away.
    fn codes() -> impl Strategy<Value = i64> {
        let edges = prop_oneof![Just(i64::MIN), Just(i64::MAX), 60_000..70_000_i64];
        prop_oneof![900 => -300..300_i64, 1 => edges, 1 => any::<i64>()]
    }

    proptest! {
        #[test]
        fn equal_values_have_equal_numbers_in_order_of_appearance(
            parts in prop::collection::vec(prop::collection::vec(prop::option::weighted(0.9, codes()), 0..300), 1..5),
            texts in any::<bool>(),
            cut in 0..200_u32,
        ) {
            let (mut interner, mut known) = (Interner::default(), HashMap::new());
            for rows in parts {
                check(&mut interner, &mut known, &rows, texts);
                interner.truncate(cut as usize);
                known.retain(|_, number| *number < cut);
            }
        }
    }
}
