//! Places: type → partition, as producers look it up.
//!
//! A hash table with open addressing that only grows: an entry is written once and stays, and a table that is too full
//! is followed by one of twice the size that holds all entries. A look-up is a few plain loads. A published pointer with
//! a reference count, as for the rarely read parts of the route, costs two read-modify-writes: about as much as the
//! whole rest of a put.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `key` of a slot | whoever holds the control lock, before `place` | who saw `place` |
//! | `place` of a slot | the same, once; 0: empty | everybody |
//! | `newest` | the same | everybody |

use crate::flow::handler::TypeKey;
use crate::sync::{AppendOnly, AtomicU64, AtomicUsize, Ordering};

/// Slots of the first table; a power of two.
const FIRST_SLOTS: usize = if cfg!(loom) { 4 } else { 64 };

const PARTITION_BITS: u32 = 24;
const SPREAD: u64 = 1 << 63;

/// Where the items of a type go. One word: bits 0 to 23 the partition plus 1, bits 24 to 62 the type's number, bit 63
/// whether the type is spread over several partitions, of which this one is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Place {
    pub(crate) fn new(type_number: usize, partition: usize, spread: bool) -> Self {
        let word = (type_number as u64) << PARTITION_BITS | (partition as u64 + 1);
        Self(if spread { word | SPREAD } else { word })
    }

    #[allow(clippy::cast_possible_truncation)] // 24 bits
    pub(crate) fn partition(self) -> usize {
        (self.0 & ((1 << PARTITION_BITS) - 1)) as usize - 1
    }

    #[allow(clippy::cast_possible_truncation)] // it came out of a usize
    pub(crate) fn type_number(self) -> usize {
        ((self.0 & !SPREAD) >> PARTITION_BITS) as usize
    }

    pub(crate) fn is_spread(self) -> bool {
        self.0 & SPREAD != 0
    }
}

#[derive(Debug)]
struct Slot {
    key: AtomicUsize,
    place: AtomicU64,
}

#[derive(Debug)]
struct Table(Box<[Slot]>);

impl Table {
    fn with_slots(slots: usize) -> Self {
        Self((0..slots).map(|_| Slot { key: AtomicUsize::new(0), place: AtomicU64::new(0) }).collect())
    }

    /// The slots from the one where `key` belongs, once around.
    #[inline]
    fn probe(&self, key: TypeKey) -> impl Iterator<Item = &Slot> {
        // Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4): the upper bits of the product are well mixed.
        let hash = (key.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mask = self.0.len() - 1;
        #[allow(clippy::cast_possible_truncation)] // only the bits under the mask count
        let start = (hash >> 32) as usize;
        (start..=start + mask).map(move |index| &self.0[index & mask])
    }

    #[inline]
    fn find(&self, key: TypeKey) -> Option<Place> {
        for slot in self.probe(key) {
            // Acquire: pairs with the Release in `insert`; publishes the key, and the partition with all it holds.
            let place = slot.place.load(Ordering::Acquire);
            if place == 0 {
                return None;
            }
            // Relaxed: written before `place`.
            if slot.key.load(Ordering::Relaxed) == key.0 {
                return Some(Place(place));
            }
        }
        None
    }

    fn insert(&self, key: TypeKey, place: Place) {
        // Relaxed: only the holder of the control lock writes.
        if let Some(slot) = self.probe(key).find(|slot| slot.place.load(Ordering::Relaxed) == 0) {
            slot.key.store(key.0, Ordering::Relaxed);
            // Release: pairs with the Acquire in `find`.
            slot.place.store(place.0, Ordering::Release);
        }
    }
}

/// The places of all types that were ever registered.
#[derive(Debug)]
pub(crate) struct Places {
    tables: AppendOnly<Table>,
    newest: AtomicUsize,
}

impl Places {
    pub(crate) fn new() -> Self {
        let tables = AppendOnly::new();
        tables.push(Table::with_slots(FIRST_SLOTS));
        Self { tables, newest: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn find(&self, key: TypeKey) -> Option<Place> {
        // Acquire: pairs with the Release in `insert`; the table is complete.
        self.tables.get(self.newest.load(Ordering::Acquire))?.find(key)
    }

    /// Adds a type that is not there. `before`: how many are. Under the control lock.
    pub(crate) fn insert(&self, key: TypeKey, place: Place, before: usize) {
        // Relaxed: only the holder of the control lock writes it.
        let newest = self.newest.load(Ordering::Relaxed);
        let Some(table) = self.tables.get(newest) else { return };
        let slots = table.0.len();
        if (before + 1) * 2 <= slots {
            table.insert(key, place);
            return;
        }
        let larger = Table::with_slots(slots * 2);
        for slot in &table.0 {
            let place = slot.place.load(Ordering::Relaxed);
            if place != 0 {
                larger.insert(TypeKey(slot.key.load(Ordering::Relaxed)), Place(place));
            }
        }
        larger.insert(key, place);
        self.tables.push(larger);
        // Release: pairs with the Acquire in `find`.
        self.newest.store(newest + 1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_type_is_found_where_it_was_put_and_no_other(keys in prop::collection::hash_set(any::<usize>(), 0..400)) {
            let places = Places::new();
            let (present, absent): (Vec<_>, Vec<_>) = keys.iter().enumerate().partition(|(number, _)| number % 4 != 3);
            for (before, (number, key)) in present.iter().enumerate() {
                places.insert(TypeKey(**key), Place::new(*number, number / 3, number % 5 == 0), before);
            }
            for (number, key) in present {
                let place = places.find(TypeKey(*key)).unwrap();
                prop_assert_eq!((place.type_number(), place.partition()), (number, number / 3));
                prop_assert_eq!(place.is_spread(), number % 5 == 0);
            }
            for (_, key) in absent {
                prop_assert_eq!(places.find(TypeKey(*key)), None);
            }
        }
    }
}
