//! Numbers 64-bit codes consecutively.

use crate::arrow::grouping::spread;

/// Marks the absence of a number. No code has it.
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
