//! Which tag each row of a column has.

use std::hash::Hash;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowDictionaryKeyType, ArrowPrimitiveType};
use arrow_array::{
    Array, ArrayAccessor, DictionaryArray, PrimitiveArray, downcast_dictionary_array, downcast_integer_array,
};
use arrow_buffer::ArrowNativeType;
use arrow_schema::DataType;
use arrow_select::take::{TakeOptions, take};
use rustc_hash::FxHashMap;

use super::Tags;
use super::buffers::{Buffers, Values};
use super::split::SplitError;
use crate::flow::handler::TypeKey;

/// The groups of the rows of one column, in the order in which they were met.
pub(super) struct Groups {
    pub(super) keys: Vec<TypeKey>,
    /// For each row the number of its group.
    of_row: Values<u32>,
}

impl Groups {
    pub(super) fn of(column: &dyn Array, tags: &Tags, buffers: &Buffers) -> Result<Self, SplitError> {
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
            DataType::Utf8 => self.texts(&column.as_string::<i32>(), of_row),
            DataType::LargeUtf8 => self.texts(&column.as_string::<i64>(), of_row),
            DataType::Utf8View => self.texts(&column.as_string_view(), of_row),
            DataType::Dictionary(_, _) => return downcast_dictionary_array! {
                // Not only the type of its values, when those are no tags.
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

    /// The group of a key.
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

    fn texts<'t>(&mut self, column: &impl ArrayAccessor<Item = &'t str>, of_row: &mut [u32]) {
        let (mut recent, mut known) = (Recent::new(Signature::default()), FxHashMap::default());
        self.rows(column, of_row, |finder, text| {
            let signature = Signature::of(text);
            let mut find = || *known.entry(text).or_insert_with(|| finder.group(finder.tags.key(text)));
            if signature.is_whole() { recent.group(signature.hash(), signature, find) } else { find() }
        });
    }

    fn integers<N: ArrowPrimitiveType>(&mut self, column: &PrimitiveArray<N>, of_row: &mut [u32])
    where
        N::Native: Eq + Hash + ToString,
    {
        let (mut recent, mut known) = (Recent::new(N::Native::default()), FxHashMap::default());
        self.rows(&column, of_row, |finder, value: N::Native| {
            recent.group(spread(value.as_usize() as u64), value, || {
                *known.entry(value).or_insert_with(|| finder.group(finder.tags.key(&value.to_string())))
            })
        });
    }

    /// Finds the group of each row.
    fn rows<A: ArrayAccessor<Item: Copy>>(
        &mut self,
        column: &A,
        of_row: &mut [u32],
        mut group_of: impl FnMut(&mut Self, A::Item) -> u32,
    ) {
        for (row, group) in of_row.iter_mut().enumerate() {
            *group = if column.is_null(row) { self.null() } else { group_of(self, column.value(row)) };
        }
    }

    /// Looks each value of the dictionary up once. Nobody has looked at the indices before: they may be another library's.
    fn dictionary<K: ArrowDictionaryKeyType>(
        &mut self,
        column: &DictionaryArray<K>,
        of_row: &mut [u32],
    ) -> Result<(), SplitError> {
        let (indices, values) = (column.keys(), column.values());
        if values.len() > column.len() {
            // Most of its values have no row here.
            let options = TakeOptions { check_bounds: true };
            let of_rows = take(values, indices, Some(options)).map_err(SplitError::Arrow)?;
            return self.column(&of_rows, of_row);
        }
        // The groups of the values, each met in the order of the values.
        let of_values = Groups::of(values, self.tags, self.buffers)?;
        let of_value = of_values.of_row();
        let mut groups: Vec<Option<u32>> = vec![None; of_values.keys.len()];
        for (row, group) in of_row.iter_mut().enumerate() {
            *group = if indices.is_null(row) {
                self.null()
            } else {
                let index = indices.value(row).as_usize();
                let value =
                    *of_value.get(index).ok_or_else(|| SplitError::index(&indices.value(row), values))? as usize;
                match groups[value] {
                    Some(group) => group,
                    None => *groups[value].insert(self.group(of_values.keys[value])),
                }
            };
        }
        Ok(())
    }
}

/// Groups of values met lately, each where its hash says: a look at one place, before the look into a map.
struct Recent<V>(Vec<(V, u32)>);

impl<V: Copy + Eq> Recent<V> {
    const BITS: u32 = 10;

    /// No group has this number.
    const NONE: u32 = u32::MAX;

    fn new(any: V) -> Self {
        Self(vec![(any, Self::NONE); 1 << Self::BITS])
    }

    #[inline]
    fn group(&mut self, hash: u64, value: V, find: impl FnOnce() -> u32) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // it is below the number of places
        let place = &mut self.0[(hash >> (u64::BITS - Self::BITS)) as usize];
        if place.0 != value || place.1 == Self::NONE {
            *place = (value, find());
        }
        place.1
    }
}

/// The length of a text with its first and its last bytes: up to sixteen bytes that is all of it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Signature {
    len: usize,
    first: u64,
    last: u64,
}

impl Signature {
    #[inline]
    fn of(text: &str) -> Self {
        let (bytes, len) = (text.as_bytes(), text.len());
        let (first, last) = if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk()) {
            (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
        } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk()) {
            (u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into())
        } else if let [first, .., last] = bytes {
            (u64::from(*first) << 8 | u64::from(bytes[len / 2]), (*last).into())
        } else {
            (bytes.first().map_or(0, |&byte| byte.into()), 0)
        };
        Self { len, first, last }
    }

    fn is_whole(&self) -> bool {
        self.len <= 16
    }

    fn hash(&self) -> u64 {
        spread(self.first ^ self.last.rotate_left(29) ^ self.len as u64)
    }
}

/// Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4): the uppermost bits depend on all.
#[inline]
pub(super) fn spread(value: u64) -> u64 {
    value.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn signatures_of_short_texts_are_equal_where_the_texts_are(one in "[ab]{0,16}", other in "[ab]{0,16}") {
            let (first, second) = (Signature::of(&one), Signature::of(&other));
            prop_assert!(first.is_whole() && second.is_whole());
            prop_assert_eq!(first == second, one == other);
        }

        #[test]
        fn a_changed_byte_changes_the_signature(text in "[a-z]{1,16}", place in 0..16_usize) {
            let mut bytes = text.clone().into_bytes();
            let place = place % bytes.len();
            bytes[place] ^= 1;
            let changed = String::from_utf8(bytes).unwrap();
            prop_assert!(Signature::of(&text) != Signature::of(&changed));
        }

        #[test]
        fn the_recent_group_is_the_group(values in prop::collection::vec(0..3_000_i64, 0..4_000)) {
            let mut recent = Recent::new(0);
            for value in values {
                let group = u32::try_from(value * 7).unwrap();
                prop_assert_eq!(recent.group(spread(value.as_usize() as u64), value, || group), group);
            }
        }
    }
}
