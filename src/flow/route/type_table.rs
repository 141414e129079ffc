//! The type table: how producers look up the partition of a type.
//!
//! A hash table with open addressing that only grows: an entry is written once and stays, and a
//! table that is too full is followed by one of twice the size that holds all entries. A lookup is
//! a chain of plain loads, each of which depends on the previous one, and a put cannot lock the
//! gate before the last. So the chain is short, and an entry refers to its partition directly,
//! without an index. A published pointer with a reference count, as used for the rarely read parts
//! of the route, would cost two read-modify-writes, about as much as the rest of a put.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | a slot | the holder of the control lock, once | all threads |
//! | a table | the same, before it stores `newest` | threads that saw `newest` |
//! | `newest` | the same | all threads |

use crate::flow::partition::Partition;
use crate::item::TypeKey;
use crate::sync::{Arc, AtomicUsize, OnceLock, Ordering, SetOnce};

/// The slots of the first table; a power of two.
const FIRST_SLOTS: usize = if cfg!(loom) { 4 } else { 64 };

/// More than ever needed: the last table would hold a billion types.
const TABLES: usize = 26;

/// The partition of a type.
#[derive(Debug)]
pub(crate) struct TypeEntry<T> {
    key: TypeKey,
    /// The partition, or the first of those that the type is spread over.
    pub(crate) partition: Arc<Partition<T>>,
    number: u32,
    pub(crate) is_spread: bool,
}

impl<T> TypeEntry<T> {
    pub(crate) fn new(
        key: TypeKey,
        type_number: usize,
        partition: Arc<Partition<T>>,
        is_spread: bool,
    ) -> Self {
        let Ok(number) = u32::try_from(type_number) else {
            panic!("{type_number} types are more than a queue can hold")
        };
        Self { key, partition, number, is_spread }
    }

    pub(crate) fn type_number(&self) -> usize {
        self.number as usize
    }
}

impl<T> Clone for TypeEntry<T> {
    fn clone(&self) -> Self {
        Self { partition: self.partition.clone(), ..*self }
    }
}

/// Aligned, so that no slot straddles two cache lines.
#[derive(Debug)]
#[repr(align(32))]
struct Slot<T>(SetOnce<TypeEntry<T>>);

#[derive(Debug)]
struct Table<T> {
    slots: Box<[Slot<T>]>,
    /// Shifts a hash down to the bits of a slot index.
    shift: u32,
}

impl<T> Table<T> {
    fn with_slots(slots: usize) -> Self {
        Self {
            slots: (0..slots).map(|_| Slot(SetOnce::new())).collect(),
            shift: u64::BITS - slots.trailing_zeros(),
        }
    }

    /// The slots starting from the one where `key` belongs, cyclically. A quarter of them is free,
    /// so a search ends.
    #[inline]
    fn probe(&self, key: TypeKey) -> impl Iterator<Item = &SetOnce<TypeEntry<T>>> {
        // Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4): the top bits of the
        // product spread numbers and addresses evenly.
        let hash = (key.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mask = self.slots.len() - 1;
        #[allow(clippy::cast_possible_truncation)] // below the number of slots
        let start = (hash >> self.shift) as usize;
        (start..).map(move |index| &self.slots[index & mask].0)
    }

    #[inline]
    fn find(&self, key: TypeKey) -> Option<&TypeEntry<T>> {
        // The first empty slot ends the lookup.
        self.probe(key).map_while(SetOnce::get).find(|entry| entry.key == key)
    }

    fn insert(&self, entry: TypeEntry<T>) {
        let Some(slot) = self.probe(entry.key).find(|slot| slot.get().is_none()) else {
            unreachable!("a quarter is free")
        };
        assert!(slot.set(entry).is_ok(), "only the holder of the control lock writes");
    }
}

/// The entries of all types that were ever registered.
#[derive(Debug)]
pub(crate) struct TypeTable<T> {
    newest: AtomicUsize,
    tables: [OnceLock<Table<T>>; TABLES],
}

impl<T> TypeTable<T> {
    pub(crate) fn new() -> Self {
        let tables = [const { OnceLock::new() }; TABLES];
        tables[0].get_or_init(|| Table::with_slots(FIRST_SLOTS));
        Self { newest: AtomicUsize::new(0), tables }
    }

    #[inline]
    pub(crate) fn find(&self, key: TypeKey) -> Option<&TypeEntry<T>> {
        // Acquire: pairs with the Release in `insert`; the table is complete.
        self.tables[self.newest.load(Ordering::Acquire)].get()?.find(key)
    }

    /// Adds a new type. Called under the control lock. Types are numbered from 0 in order of
    /// registration, so the number equals the count of earlier types.
    pub(crate) fn insert(&self, entry: TypeEntry<T>) {
        // Relaxed: only the holder of the control lock writes it.
        let newest = self.newest.load(Ordering::Relaxed);
        let Some(table) = self.tables[newest].get() else {
            unreachable!("published before its number")
        };
        let slots = table.slots.len();
        if (entry.type_number() + 1) * 4 <= slots * 3 {
            table.insert(entry);
            return;
        }
        let larger = self.tables[newest + 1].get_or_init(|| Table::with_slots(slots * 2));
        for known in table.slots.iter().filter_map(|slot| slot.0.get()) {
            larger.insert(known.clone());
        }
        larger.insert(entry);
        // Release: pairs with the Acquire in `find`.
        self.newest.store(newest + 1, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::flow::partition::ready::{ReadyBit, new_word};
    use crate::flow::partition::segment_pool::SegmentPool;
    use crate::testing::loom::model;

    /// Growth while a producer looks up types: the entries that it finds are complete, also in a
    /// larger table, and it finds them again.
    #[test]
    fn loom_look_up_while_the_table_grows() {
        model(3, || {
            let table = Arc::new(TypeTable::<u64>::new());
            let insert = |number: usize| {
                let segment_pool = Arc::new(SegmentPool::new(1));
                let partition =
                    Partition::new(number, ReadyBit::new(new_word(), number), 1, 1, segment_pool);
                table.insert(TypeEntry::new(TypeKey(number), number, Arc::new(partition), false));
            };
            insert(0);
            let producer = {
                let table = table.clone();
                thread::spawn(move || {
                    let is_there = |&key: &usize| {
                        let entry = table.find(TypeKey(key));
                        entry.is_some_and(|entry| {
                            entry.partition.index == key && entry.partition.completed() == 0
                        })
                    };
                    let found: Vec<usize> = [3, 0, 2].into_iter().filter(is_there).collect();
                    assert!(found.contains(&0));
                    assert!(found.iter().all(is_there));
                })
            };
            // Three entries fit into the first table of four slots; the fourth goes into the second
            // one. They are inserted by this thread, which loom runs first: otherwise loom would
            // not explore a lookup before a store that follows a load of the same thread.
            (1..4).for_each(insert);
            producer.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::flow::partition::ready::{ReadyBit, new_word};
    use crate::flow::partition::segment_pool::SegmentPool;
    use proptest::prelude::*;

    fn partition(index: usize) -> Arc<Partition<u64>> {
        Arc::new(Partition::new(
            index,
            ReadyBit::new(new_word(), index),
            1,
            1,
            Arc::new(SegmentPool::new(1)),
        ))
    }

    #[test]
    fn two_slots_share_a_cache_line() {
        assert_eq!(size_of::<Slot<u64>>(), 32);
    }

    proptest! {
        #[test]
        fn every_inserted_type_is_found_and_no_other(
            keys in prop::collection::hash_set(any::<usize>(), 0..400),
        ) {
            let table = TypeTable::new();
            let (present, absent): (Vec<_>, Vec<_>) =
                keys.iter().enumerate().partition(|(number, _)| number % 4 != 3);
            for (number, (index, key)) in present.iter().enumerate() {
                table.insert(TypeEntry::new(
                    TypeKey(**key),
                    number,
                    partition(index / 3),
                    index % 5 == 0,
                ));
            }
            for (number, (index, key)) in present.iter().enumerate() {
                let entry = table.find(TypeKey(**key)).unwrap();
                prop_assert_eq!((entry.type_number(), entry.partition.index), (number, index / 3));
                prop_assert_eq!(entry.is_spread, index % 5 == 0);
            }
            for (_, key) in absent {
                prop_assert!(table.find(TypeKey(*key)).is_none());
            }
        }
    }
}
