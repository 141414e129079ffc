//! Groups the rows of a column by tag.

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowDictionaryKeyType, ArrowPrimitiveType};
use arrow_array::{
    Array, ArrayAccessor, DictionaryArray, GenericStringArray, OffsetSizeTrait, PrimitiveArray,
    StringViewArray, downcast_dictionary_array, downcast_integer_array,
};
use arrow_buffer::ArrowNativeType;
use arrow_schema::DataType;
use arrow_select::take::{TakeOptions, take};
use rustc_hash::FxHashMap;

use crate::arrow::gather::{Buffers, PooledValues};
use crate::arrow::tags::{SplitError, Tags};
use crate::item::TypeKey;

/// The rows of one column grouped by tag. Groups are numbered in order of first appearance.
pub(super) struct TagGroups {
    pub(super) keys: Vec<TypeKey>,
    /// The group of each row.
    of_row: PooledValues<u32>,
}

impl TagGroups {
    pub(super) fn of(
        column: &dyn Array,
        tags: &Tags,
        buffers: &Buffers,
    ) -> Result<Self, SplitError> {
        let mut of_row = buffers.values(column.len());
        let mut finder = Finder { keys: Vec::new(), by_key: FxHashMap::default(), tags, buffers };
        finder.column(column, of_row.as_mut())?;
        Ok(Self { keys: finder.keys, of_row })
    }

    pub(super) fn of_row(&self) -> &[u32] {
        self.of_row.as_slice()
    }
}

struct Finder<'a> {
    keys: Vec<TypeKey>,
    by_key: FxHashMap<TypeKey, u32>,
    tags: &'a Tags,
    buffers: &'a Buffers,
}

impl Finder<'_> {
    fn column(&mut self, column: &dyn Array, of_row: &mut [u32]) -> Result<(), SplitError> {
        downcast_integer_array! {
            column => self.integers(column, of_row),
            DataType::Utf8 => self.texts(column.as_string::<i32>(), of_row, signature_in),
            DataType::LargeUtf8 => self.texts(column.as_string::<i64>(), of_row, signature_in),
            DataType::Utf8View => self.texts(column.as_string_view(), of_row, signature_of_view),
            DataType::Dictionary(_, _) => return downcast_dictionary_array! {
                // Name the dictionary's type in the error, not only the type of its values.
                column => self.dictionary(column, of_row).map_err(|error| match error {
                    SplitError::Column(_) => SplitError::Column(column.data_type().to_string()),
                    broken @ SplitError::Arrow(_) => broken,
                }),
                other => Err(SplitError::Column(other.to_string()))
            },
            other => return Err(SplitError::Column(other.to_string()))
        }
        Ok(())
    }

    /// Returns the group of a key, creating it on first use.
    fn group(&mut self, key: TypeKey) -> u32 {
        let (keys, next) = (&mut self.keys, self.by_key.len());
        *self.by_key.entry(key).or_insert_with(|| {
            keys.push(key);
            u32::try_from(next).unwrap_or(u32::MAX)
        })
    }

    fn null(&mut self) -> u32 {
        self.group(Tags::NULL)
    }

    fn texts<'t, A>(
        &mut self,
        column: &'t A,
        of_row: &mut [u32],
        signature: impl Fn(&A, usize) -> Option<Signature>,
    ) where
        &'t A: ArrayAccessor<Item = &'t str>,
    {
        let (mut short, mut long) =
            (GroupTable::new(Signature::default(), Signature::hash), FxHashMap::default());
        self.rows(&column, of_row, |finder, row| {
            let mut find = |text| finder.group(finder.tags.key(text));
            match signature(column, row) {
                Some(signature) => short.group(signature, || find(column.value(row))),
                None => *long.entry(column.value(row)).or_insert_with_key(|text| find(text)),
            }
        });
    }

    fn integers<N: ArrowPrimitiveType>(&mut self, column: &PrimitiveArray<N>, of_row: &mut [u32])
    where
        N::Native: Eq + ToString,
    {
        let mut table = GroupTable::new(N::Native::default(), |value: N::Native| {
            spread(value.as_usize() as u64)
        });
        self.rows(&column, of_row, |finder, row| {
            let value = column.value(row);
            table.group(value, || finder.group(finder.tags.key(&value.to_string())))
        });
    }

    /// Finds the group of each row.
    fn rows(
        &mut self,
        column: &impl Array,
        of_row: &mut [u32],
        mut group_of: impl FnMut(&mut Self, usize) -> u32,
    ) {
        for (row, group) in of_row.iter_mut().enumerate() {
            *group = if column.is_null(row) { self.null() } else { group_of(self, row) };
        }
    }

    /// Looks up each value of the dictionary once. The indices are checked here: they may come from
    /// another library and were not validated before.
    fn dictionary<K: ArrowDictionaryKeyType>(
        &mut self,
        column: &DictionaryArray<K>,
        of_row: &mut [u32],
    ) -> Result<(), SplitError> {
        let (indices, values) = (column.keys(), column.values());
        if values.len() > column.len() {
            // Most of the values are not referenced by any row.
            let options = TakeOptions { check_bounds: true };
            let of_rows = take(values, indices, Some(options)).map_err(SplitError::Arrow)?;
            return self.column(&of_rows, of_row);
        }
        // Groups numbered in the order of the dictionary's values.
        let of_values = TagGroups::of(values, self.tags, self.buffers)?;
        let of_value = of_values.of_row();
        let mut groups: Vec<Option<u32>> = vec![None; of_values.keys.len()];
        for (row, group) in of_row.iter_mut().enumerate() {
            *group = if indices.is_null(row) {
                self.null()
            } else {
                let index = indices.value(row).as_usize();
                let value = *of_value
                    .get(index)
                    .ok_or_else(|| SplitError::index(&indices.value(row), values))?
                    as usize;
                match groups[value] {
                    Some(group) => group,
                    None => *groups[value].insert(self.group(of_values.keys[value])),
                }
            };
        }
        Ok(())
    }
}

/// Maps values to groups: a hash table with linear probing, sparse enough that nearly every value
/// is in its first slot.
struct GroupTable<V, H> {
    slots: Vec<(V, u32)>,
    values: usize,
    /// Shifts a hash down to the bits of a slot index.
    shift: u32,
    hash: H,
}

impl<V: Copy + Eq, H: Fn(V) -> u64 + Copy> GroupTable<V, H> {
    const FIRST_SLOTS: usize = 2_048;

    /// Marks an empty slot, whatever its value. No group has this number.
    const NONE: u32 = u32::MAX;

    fn new(any: V, hash: H) -> Self {
        Self::with_slots(Self::FIRST_SLOTS, any, hash)
    }

    fn with_slots(slots: usize, any: V, hash: H) -> Self {
        Self {
            slots: vec![(any, Self::NONE); slots],
            values: 0,
            shift: u64::BITS - slots.trailing_zeros(),
            hash,
        }
    }

    #[inline]
    fn group(&mut self, value: V, find: impl FnOnce() -> u32) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // below the number of slots
        let first = ((self.hash)(value) >> self.shift) as usize;
        let (here, group) = self.slots[first];
        if here == value && group != Self::NONE { group } else { self.probe(first, value, find) }
    }

    #[inline(never)]
    fn probe(&mut self, first: usize, value: V, find: impl FnOnce() -> u32) -> u32 {
        let (mut slot, mask) = (first, self.slots.len() - 1);
        while self.slots[slot].1 != Self::NONE {
            if self.slots[slot].0 == value {
                return self.slots[slot].1;
            }
            slot = (slot + 1) & mask;
        }
        let group = find();
        self.slots[slot] = (value, group);
        self.values += 1;
        if self.values * 4 > self.slots.len() {
            self.grow();
        }
        group
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Self::with_slots(self.slots.len() * 4, self.slots[0].0, self.hash);
        for &(value, group) in self.slots.iter().filter(|slot| slot.1 != Self::NONE) {
            larger.group(value, || group);
        }
        *self = larger;
    }
}

/// A string of up to fifteen bytes, padded with zeros, with its length in the last byte.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Signature {
    low: u64,
    high: u64,
}

impl Signature {
    const BYTES: usize = 16;

    /// For each length, the masks that keep the string's bytes in the two halves.
    const MASKS: [(u64, u64); Self::BYTES] = {
        let mut masks = [(0, 0); Self::BYTES];
        let mut len = 1;
        while len < Self::BYTES {
            let (low, high) = masks[len - 1];
            masks[len] = if len <= 8 { (low << 8 | 0xff, 0) } else { (low, high << 8 | 0xff) };
            len += 1;
        }
        masks
    };

    /// Returns the signature of the first `len` bytes, or `None` if the string is too long.
    #[inline]
    fn of(bytes: &[u8], len: usize) -> Option<Self> {
        let masks = Self::MASKS.get(len)?;
        // Load a fixed-size block and mask off the rest, so that no branch depends on the length.
        let both = bytes
            .first_chunk()
            .map_or_else(|| padded(&bytes[..len]), |&chunk| u128::from_le_bytes(chunk));
        Some(Self::cut(both, len, masks))
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // both halves
    fn cut(both: u128, len: usize, masks: &(u64, u64)) -> Self {
        let (low, high) = (both as u64, (both >> u64::BITS) as u64);
        Self { low: low & masks.0, high: high & masks.1 | (len as u64) << 56 }
    }

    /// Hashes by folded multiplication, as in wyhash: every byte affects every bit, even where tags
    /// differ in only a few digits.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // both halves
    fn hash(self) -> u64 {
        let both = u128::from(self.low ^ 0x9e37_79b9_7f4a_7c15)
            * u128::from(self.high ^ 0xd1b5_4a32_d192_ed03);
        both as u64 ^ (both >> u64::BITS) as u64
    }
}

/// Loads a string at the end of a column, where no full block is left to read.
#[cold]
fn padded(bytes: &[u8]) -> u128 {
    let mut chunk = [0; Signature::BYTES];
    chunk[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(chunk)
}

#[inline(always)]
#[allow(clippy::inline_always)] // otherwise the result passes through memory: twice the cost
fn signature_in<O: OffsetSizeTrait>(
    column: &GenericStringArray<O>,
    row: usize,
) -> Option<Signature> {
    let (start, end) =
        (column.value_offsets()[row].as_usize(), column.value_offsets()[row + 1].as_usize());
    Signature::of(&column.value_data()[start..], end - start)
}

/// The longest string that is stored inline in its view, after the length (Arrow columnar format,
/// variable-size binary views).
const INLINE_BYTES: usize = 12;

#[inline]
fn signature_of_view(column: &StringViewArray, row: usize) -> Option<Signature> {
    let view = column.views()[row];
    #[allow(clippy::cast_possible_truncation)] // the low 32 bits are the length
    let len = view as u32 as usize;
    if len <= INLINE_BYTES {
        Some(Signature::cut(view >> u32::BITS, len, &Signature::MASKS[len]))
    } else {
        None
    }
}

/// Spreads a value by Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4): the top bits
/// depend on all input bits.
#[inline]
pub(super) fn spread(value: u64) -> u64 {
    value.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use arrow_array::StringArray;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn signatures_are_equal_iff_the_strings_are(
            text in "[ab\\x00]{0,18}",
            other in "[ab\\x00]{0,18}",
            behind in "[ab]{0,20}",
        ) {
            let both = StringArray::from(vec![text.clone(), other.clone(), behind]);
            let views: StringViewArray = both.iter().collect();
            let long = |value: &str, most: usize| value.len() > most;
            for (first, second, most) in [
                (signature_in(&both, 0), signature_in(&both, 1), Signature::BYTES - 1),
                (signature_of_view(&views, 0), signature_of_view(&views, 1), INLINE_BYTES),
            ] {
                prop_assert_eq!(
                    (first.is_none(), second.is_none()),
                    (long(&text, most), long(&other, most))
                );
                if first.is_some() && second.is_some() {
                    prop_assert_eq!(first == second, text == other);
                }
            }
        }

        #[test]
        fn each_value_keeps_its_group(
            values in prop::collection::vec(0..900_u64, 0..1_000),
            few in any::<bool>(),
        ) {
            // With few hash bits, most values collide.
            let mut table =
                GroupTable::with_slots(
                    4,
                    0,
                    |value: u64| if few { value >> 9 << 60 } else { spread(value) },
                );
            let mut wanted = std::collections::HashMap::new();
            for value in values {
                let next = u32::try_from(wanted.len()).unwrap();
                let group = *wanted.entry(value).or_insert(next);
                prop_assert_eq!(table.group(value, || next), group);
            }
        }
    }
}
