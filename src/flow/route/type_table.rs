//! The type table: how producers look up the partition of a type.
//!
//! A hash table with open addressing. A lookup is a chain of plain loads, each of which depends on
//! the previous one, and a put cannot lock the gate before the last. So the chain is short, and a
//! slot refers to its partition directly rather than by index, unless another type had the slot
//! before. A published pointer with a reference count, as used for the rarely read parts of the
//! route, would cost two read-modify-writes, about as much as the rest of a put.
//!
//! Nothing is freed under a reader, and no type that comes and goes costs an allocation. In a table
//! that is in use, a slot belongs to one key: a removed type leaves a mark, which only the same key
//! can reuse. A full table is followed by one of twice the size or, if many of its slots are marks,
//! by its *twin*: there are two tables of each size, and the one out of use is cleared and filled.
//! A reader may still be in it from the time when it was in use. So the number of the table in use,
//! its *version*, never repeats, and a reader that finds another version after its search than
//! before searches again.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `version` | the holder of the control lock | all threads |
//! | a table | the same, before it stores its first version | threads that saw that version |
//! | `Slot::word` of the table in use | the same: empty → live ⇄ marked | all threads |
//! | `Slot::key` of the table in use | the same, before the first word | threads that saw it |
//! | both, of a table that is out of use | the same | late readers, which discard the result |
//! | `Slot::home` | the same, once, before a word that refers to it | threads that saw that word |
//!
//! ```text
//! version   changes so far, 57 bits | the table, 7 bits
//! word      number of the type, 32 bits | index, 28 bits | spread | direct | state, 2 bits
//! ```

use crate::flow::partition::Partition;
use crate::item::TypeKey;
use crate::sync::{AppendOnly, Arc, AtomicU64, AtomicUsize, OnceLock, Ordering, SetOnce};

/// The slots of the first table; a power of two.
const FIRST_SLOTS: usize = if cfg!(loom) { 4 } else { 64 };

/// Two tables of each size. More than ever needed: the last one would hold a billion types.
const TABLES: usize = 2 * 26;

/// The bits of a version that say which table is in use.
const TABLE_BITS: u32 = 7;

/// The entry of a type in its slot, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TypeEntry(u64);

impl TypeEntry {
    const EMPTY: Self = Self(0);
    const LIVE: u64 = 1;
    const MARKED: Self = Self(2);
    const STATE: u64 = 3;
    const DIRECT: u64 = 1 << 2;
    const SPREAD: u64 = 1 << 3;
    const INDEX_SHIFT: u32 = 4;
    const INDEX_BITS: u32 = 28;
    const NUMBER_SHIFT: u32 = 32;

    /// Creates a live entry. `index` is that of the partition, or of the spread if the type has
    /// several.
    pub(crate) fn new(number: usize, index: usize, is_spread: bool) -> Self {
        let Ok(number) = u32::try_from(number) else {
            panic!("{number} types are more than a queue can hold")
        };
        assert!(index < 1 << Self::INDEX_BITS, "there are fewer partitions");
        let spread = if is_spread { Self::SPREAD } else { 0 };
        let (number, index) = (u64::from(number), index as u64);
        Self(number << Self::NUMBER_SHIFT | index << Self::INDEX_SHIFT | spread | Self::LIVE)
    }

    #[allow(clippy::cast_possible_truncation)] // 32 bits
    pub(crate) fn number(self) -> usize {
        (self.0 >> Self::NUMBER_SHIFT) as usize
    }

    #[allow(clippy::cast_possible_truncation)] // 28 bits
    pub(crate) fn index(self) -> usize {
        (self.0 >> Self::INDEX_SHIFT) as usize & ((1 << Self::INDEX_BITS) - 1)
    }

    pub(crate) fn is_spread(self) -> bool {
        self.0 & Self::SPREAD != 0
    }

    fn directly(self, is_direct: bool) -> Self {
        Self(self.0 & !Self::DIRECT | if is_direct { Self::DIRECT } else { 0 })
    }

    fn is_direct(self) -> bool {
        self.0 & Self::DIRECT != 0
    }

    fn is_live(self) -> bool {
        self.0 & Self::STATE == Self::LIVE
    }
}

/// A type that was found.
pub(crate) struct Found<'a, T> {
    pub(crate) entry: TypeEntry,
    /// Its partition, unless the slot refers to another one, or the type is spread.
    pub(crate) partition: Option<&'a Partition<T>>,
}

/// Aligned, so that no slot straddles two cache lines.
#[derive(Debug)]
#[repr(align(32))]
struct Slot<T> {
    key: AtomicUsize,
    /// A [`TypeEntry`].
    word: AtomicU64,
    /// The partition of the slot's first type.
    home: SetOnce<Arc<Partition<T>>>,
}

impl<T> Slot<T> {
    fn new() -> Self {
        Self {
            key: AtomicUsize::new(0),
            word: AtomicU64::new(TypeEntry::EMPTY.0),
            home: SetOnce::new(),
        }
    }

    #[inline]
    fn entry(&self) -> TypeEntry {
        // Acquire: pairs with the Release in `store`, after the key and the home were written. In a
        // table that is out of use it may be a later word; then the version is later, too.
        TypeEntry(self.word.load(Ordering::Acquire))
    }

    #[inline]
    fn has(&self, key: TypeKey) -> bool {
        // Acquire: pairs with the Release in `fill`. In a table that is out of use it may be the
        // key of a later word; then the version is later, too.
        self.key.load(Ordering::Acquire) == key.0
    }

    /// Gives the slot to a type, and refers to its partition directly if possible.
    fn fill(&self, key: TypeKey, entry: TypeEntry, partitions: &AppendOnly<Arc<Partition<T>>>) {
        // Release: pairs with the Acquire in `has`, after the store of the version that put the
        // table out of use.
        self.key.store(key.0, Ordering::Release);
        let partition = partitions.get(entry.index()).filter(|_| !entry.is_spread());
        if let Some(partition) = partition.filter(|_| self.home.get().is_none()) {
            assert!(self.home.set(partition.clone()).is_ok(), "under the control lock");
        }
        let is_home = |home: &Arc<Partition<T>>| partition.is_some_and(|it| Arc::ptr_eq(it, home));
        self.store(entry.directly(self.home.get().is_some_and(is_home)));
    }

    fn store(&self, entry: TypeEntry) {
        // Release: pairs with the Acquire in `entry`, as in `fill`.
        self.word.store(entry.0, Ordering::Release);
    }
}

#[derive(Debug)]
struct Table<T> {
    slots: Box<[Slot<T>]>,
    /// The number of bits in the index of a slot.
    bits: u32,
}

impl<T> Table<T> {
    fn with_slots(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| Slot::new()).collect(), bits: slots.trailing_zeros() }
    }

    /// Returns the slots and their entries, cyclically from the one where `key` belongs. Callers
    /// stop at the first empty one; a quarter of the slots are empty while the table is in use.
    #[inline]
    fn probe(&self, key: TypeKey) -> impl Iterator<Item = (&Slot<T>, TypeEntry)> {
        let mask = self.slots.len() - 1;
        let start = key.place(self.bits);
        // A late reader may find no empty slot.
        (0..self.slots.len()).map(move |step| {
            let slot = &self.slots[(start + step) & mask];
            (slot, slot.entry())
        })
    }

    #[inline]
    fn find(&self, key: TypeKey) -> Option<Found<'_, T>> {
        let (slot, entry) = self
            .probe(key)
            .take_while(|(_, entry)| *entry != TypeEntry::EMPTY)
            .find(|(slot, _)| slot.has(key))?;
        let partition = if entry.is_direct() { slot.home.get().map(|home| &**home) } else { None };
        entry.is_live().then_some(Found { entry, partition })
    }

    /// Returns the partition of a type whose slot refers to it directly.
    #[inline]
    fn find_direct(&self, key: TypeKey) -> Option<&Partition<T>> {
        for (slot, entry) in self.probe(key) {
            if slot.has(key) {
                let is_direct = entry.is_live() && entry.is_direct();
                return if is_direct { slot.home.get().map(|home| &**home) } else { None };
            }
            if entry == TypeEntry::EMPTY {
                break;
            }
        }
        None
    }

    /// Returns the slot of a key, or the empty one that it would get.
    fn slot_for(&self, key: TypeKey) -> (&Slot<T>, TypeEntry) {
        let found =
            self.probe(key).find(|(slot, entry)| *entry == TypeEntry::EMPTY || slot.has(key));
        match found {
            Some(found) => found,
            None => unreachable!("a quarter is empty"),
        }
    }
}

/// The types that producers find.
#[derive(Debug)]
pub(crate) struct TypeTable<T> {
    version: AtomicUsize,
    /// The tables by size, each before its twin.
    tables: [OnceLock<Table<T>>; TABLES],
}

/// The use of the current table; known to the holder of the control lock only.
#[derive(Debug, Default)]
pub(crate) struct TableUse {
    live: usize,
    marked: usize,
}

impl<T> TypeTable<T> {
    pub(crate) fn new() -> Self {
        let tables = [const { OnceLock::new() }; TABLES];
        tables[0].get_or_init(|| Table::with_slots(FIRST_SLOTS));
        Self { version: AtomicUsize::new(0), tables }
    }

    #[inline]
    pub(crate) fn find(&self, key: TypeKey) -> Option<Found<'_, T>> {
        // Acquire: pairs with the Release in `follow`; the table is complete.
        let mut version = self.version.load(Ordering::Acquire);
        loop {
            let found = self.table(version).find(key);
            // Acquire: as above. This load comes after the search, whose loads acquire, too: if one
            // of them has read what was written after the table was out of use, this one returns a
            // later version.
            let now = self.version.load(Ordering::Acquire);
            if now == version {
                return found;
            }
            version = now;
        }
    }

    /// Returns the partition of a type whose slot refers to it directly, for producers. The version
    /// is not checked after the search: a result was valid at some time since the call began, and
    /// the system may delay a producer after any search. If there is no result, the caller must use
    /// [`find`](Self::find).
    #[inline]
    pub(crate) fn find_direct(&self, key: TypeKey) -> Option<&Partition<T>> {
        // Acquire: as in `find`.
        self.table(self.version.load(Ordering::Acquire)).find_direct(key)
    }

    #[inline]
    fn table(&self, version: usize) -> &Table<T> {
        match self.tables[table_of(version)].get() {
            Some(table) => table,
            None => unreachable!("made before its first version"),
        }
    }

    // ---- under the control lock

    fn current_version(&self) -> usize {
        // Relaxed: only the holder of the control lock writes it.
        self.version.load(Ordering::Relaxed)
    }

    /// Adds a type that is not in the table.
    pub(crate) fn insert(
        &self,
        usage: &mut TableUse,
        key: TypeKey,
        entry: TypeEntry,
        partitions: &AppendOnly<Arc<Partition<T>>>,
    ) {
        let table = self.table(self.current_version());
        let (mut slot, before) = table.slot_for(key);
        if before == TypeEntry::MARKED {
            usage.marked -= 1;
        } else if (usage.live + usage.marked + 1) * 4 > table.slots.len() * 3 {
            slot = self.follow(usage, partitions).slot_for(key).0;
        }
        usage.live += 1;
        slot.fill(key, entry, partitions);
    }

    /// Removes a type that is in the table.
    pub(crate) fn remove(&self, usage: &mut TableUse, key: TypeKey) {
        self.table(self.current_version()).slot_for(key).0.store(TypeEntry::MARKED);
        usage.live -= 1;
        usage.marked += 1;
    }

    /// Fills the table that follows the current one, and puts it into use. It is larger if more
    /// than half of the slots would be live.
    fn follow(
        &self,
        usage: &mut TableUse,
        partitions: &AppendOnly<Arc<Partition<T>>>,
    ) -> &Table<T> {
        let version = self.current_version();
        let (before, table) = (self.table(version), table_of(version));
        let is_larger = (usage.live + 1) * 2 > before.slots.len();
        let table = if is_larger { table / 2 * 2 + 2 } else { table ^ 1 };
        let next = self.tables[table].get_or_init(|| Table::with_slots(FIRST_SLOTS << (table / 2)));
        next.slots.iter().for_each(|slot| slot.store(TypeEntry::EMPTY));
        let entries = before.slots.iter().map(|slot| (slot, slot.entry()));
        for (slot, entry) in entries.filter(|(_, entry)| entry.is_live()) {
            // Relaxed: only the holder of the control lock writes it.
            let key = TypeKey(slot.key.load(Ordering::Relaxed));
            next.slot_for(key).0.fill(key, entry, partitions);
        }
        usage.marked = 0;
        let changes = (version >> TABLE_BITS) + 1;
        // Release: pairs with the Acquire in `find`.
        self.version.store(changes << TABLE_BITS | table, Ordering::Release);
        next
    }
}

fn table_of(version: usize) -> usize {
    version & ((1 << TABLE_BITS) - 1)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::flow::partition::ready::ReadySet;
    use crate::flow::segments::SegmentPool;
    use crate::sync::Mutex;
    use crate::testing::loom::{model, model_by_turns};

    // Lookups while the table changes.

    /// A table of types whose key is the number of their partition.
    struct World {
        table: TypeTable<u64>,
        usage: Mutex<TableUse>,
        partitions: AppendOnly<Arc<Partition<u64>>>,
    }

    impl World {
        fn new(partitions: usize, types: std::ops::Range<usize>) -> Arc<Self> {
            let world = Self {
                table: TypeTable::new(),
                usage: Mutex::new(TableUse::default()),
                partitions: AppendOnly::new(),
            };
            let ready = ReadySet::new();
            for index in 0..partitions {
                let (ready, pool) = (ready.add(index), Arc::new(SegmentPool::new(1)));
                world.partitions.push(Arc::new(Partition::new(index, ready, 1, 1, pool)));
            }
            types.for_each(|number| world.insert(number));
            Arc::new(world)
        }

        fn insert(&self, number: usize) {
            let entry = TypeEntry::new(number, number, false);
            self.table.insert(&mut self.usage.lock(), TypeKey(number), entry, &self.partitions);
        }

        fn remove(&self, number: usize) {
            self.table.remove(&mut self.usage.lock(), TypeKey(number));
        }

        /// Whether a type is found. Asserts that its entry is complete.
        fn has(&self, number: usize) -> bool {
            let direct = self.table.find_direct(TypeKey(number));
            assert!(direct.is_none_or(|partition| partition.index == number));
            let Some(found) = self.table.find(TypeKey(number)) else { return false };
            let direct = found.partition.map(|partition| partition.index);
            assert_eq!((found.entry.number(), found.entry.index()), (number, number));
            assert!(direct.is_none_or(|index| index == number));
            true
        }
    }

    /// The table grows while a producer looks up types: the entries that it finds are complete,
    /// even in a larger table, and it finds them again.
    #[test]
    fn loom_look_up_while_the_table_grows() {
        model(3, || {
            let world = World::new(4, 0..1);
            let producer = {
                let world = world.clone();
                thread::spawn(move || {
                    let found: Vec<usize> =
                        [3, 0, 2].into_iter().filter(|&number| world.has(number)).collect();
                    assert!(found.contains(&0));
                    assert!(found.iter().all(|&number| world.has(number)));
                })
            };
            // Three entries fit into the first table of four slots; the fourth goes into the second
            // one. They are inserted by this thread, which loom runs first: otherwise loom would
            // not explore a lookup before a store that follows a load of the same thread.
            (1..4).for_each(|number| world.insert(number));
            producer.join().unwrap();
        });
    }

    /// Types come and go while a producer looks up a type that stays. Each change of the table
    /// refills the one that the producer may be in.
    #[test]
    fn loom_look_up_while_the_twins_follow_each_other() {
        model_by_turns(1, 2, || {
            let world = World::new(6, 0..1);
            let producer = {
                let world = world.clone();
                thread::spawn(move || {
                    assert!(world.has(0), "it stays all the time");
                    world.has(2)
                })
            };
            // With one of four slots live, two marks fill a table.
            for number in 1..6 {
                world.insert(number);
                world.remove(number);
            }
            let changes = world.table.current_version() >> TABLE_BITS;
            assert_eq!(
                (changes, world.table.tables.iter().filter_map(OnceLock::get).count()),
                (2, 2)
            );
            producer.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::flow::partition::ready::ReadySet;
    use crate::flow::segments::SegmentPool;

    fn partitions(count: usize) -> AppendOnly<Arc<Partition<u64>>> {
        let (partitions, ready) = (AppendOnly::new(), ReadySet::new());
        for index in 0..count {
            let (ready, pool) = (ready.add(index), Arc::new(SegmentPool::new(1)));
            partitions.push(Arc::new(Partition::new(index, ready, 1, 1, pool)));
        }
        partitions
    }

    fn slots(table: &TypeTable<u64>) -> usize {
        table.tables.iter().filter_map(OnceLock::get).map(|table| table.slots.len()).sum()
    }

    #[test]
    fn two_slots_share_a_cache_line() {
        assert_eq!(size_of::<Slot<u64>>(), 32);
    }

    #[test]
    fn the_fields_of_an_entry_do_not_overlap() {
        let largest = (u32::MAX as usize, (1 << TypeEntry::INDEX_BITS) - 1);
        for (number, index) in [(0, 0), (largest.0, 0), (0, largest.1), largest] {
            for is_spread in [false, true] {
                let entry = TypeEntry::new(number, index, is_spread).directly(true);
                assert_eq!((entry.number(), entry.index()), (number, index));
                assert_eq!(
                    (entry.is_spread(), entry.is_direct(), entry.is_live()),
                    (is_spread, true, true)
                );
                assert!(!entry.directly(false).is_direct());
            }
        }
    }

    /// Types that stay refer to their partitions directly, whatever other types come and go.
    #[test]
    fn types_that_stay_are_found_directly() {
        let (table, usage, partitions) =
            (TypeTable::new(), &mut TableUse::default(), partitions(101));
        let insert = |usage: &mut TableUse, key: usize, index| {
            table.insert(usage, TypeKey(key), TypeEntry::new(index, index, false), &partitions);
        };
        (0..100).for_each(|number| insert(usage, number << 4, number));
        for session in 1_000..20_000 {
            insert(usage, session << 4, 100);
            table.remove(usage, TypeKey(session << 4));
        }
        let direct = (0..100).filter(|&number| {
            let found = table.find(TypeKey(number << 4)).unwrap();
            assert_eq!(found.entry.index(), number);
            found.partition.inspect(|partition| assert_eq!(partition.index, number)).is_some()
        });
        assert!(direct.count() > 90);
        // 256 slots have room for all of them; smaller tables came before.
        assert!(slots(&table) <= 64 + 128 + 2 * 256, "{} slots", slots(&table));
    }

    proptest! {
        #[test]
        fn what_was_inserted_and_not_removed_is_found_and_nothing_else(
            steps in prop::collection::vec((0_usize..60, any::<bool>(), 0_usize..8), 0..2_000),
        ) {
            let (table, usage, partitions) =
                (TypeTable::new(), &mut TableUse::default(), partitions(8));
            let mut model = HashMap::new();
            // Keys that collide in small tables.
            let key = |number: usize| TypeKey(number.wrapping_mul(0x1_0000_0001));
            for (step, (number, is_spread, index)) in steps.into_iter().enumerate() {
                if model.remove(&number).is_some() {
                    table.remove(usage, key(number));
                } else {
                    let entry = TypeEntry::new(step, index, is_spread);
                    table.insert(usage, key(number), entry, &partitions);
                    model.insert(number, (step, index, is_spread));
                }
                prop_assert_eq!(usage.live, model.len());
            }
            for number in 0..60 {
                let found = table.find(key(number));
                let entry = found.as_ref().map(|found| found.entry);
                let entry = entry.map(|it| (it.number(), it.index(), it.is_spread()));
                prop_assert_eq!(entry, model.get(&number).copied());
                if let Some(partition) = found.and_then(|found| found.partition) {
                    prop_assert_eq!(partition.index, model[&number].1);
                    prop_assert!(!model[&number].2);
                }
            }
            prop_assert!(slots(&table) <= 2 * (64 + 128));
        }
    }
}
