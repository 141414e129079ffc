use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::flow::partition::ready::ReadySet;
use crate::flow::partition::segment_pool::SegmentPool;

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

/// Types that stay refer to their partitions without an index, whatever comes and goes beside them.
#[test]
fn types_that_stay_are_found_directly() {
    let (table, usage, partitions) = (TypeTable::new(), &mut TableUse::default(), partitions(101));
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
    // 256 slots have room for them, and so do the smaller tables before.
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
