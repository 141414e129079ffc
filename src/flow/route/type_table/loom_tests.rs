//! Lookups while the table changes.

use loom::thread;

use super::*;
use crate::flow::partition::ready::ReadySet;
use crate::flow::partition::segment_pool::SegmentPool;
use crate::sync::Mutex;
use crate::testing::loom::{model, model_by_turns};

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

    /// Whether a type is found; then it must be complete.
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

/// Growth while a producer looks up types: the entries that it finds are complete, also in a larger
/// table, and it finds them again.
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
        // one. They are inserted by this thread, which loom runs first: otherwise loom would not
        // explore a lookup before a store that follows a load of the same thread.
        (1..4).for_each(|number| world.insert(number));
        producer.join().unwrap();
    });
}

/// Types come and go while a producer looks up a type that stays. With each change of the table,
/// the one that the producer may be in is filled anew.
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
        // Of four slots one is live, and the marks of two others fill a table.
        for number in 1..6 {
            world.insert(number);
            world.remove(number);
        }
        let changes = world.table.current_version() >> TABLE_BITS;
        assert_eq!((changes, world.table.tables.iter().filter_map(OnceLock::get).count()), (2, 2));
        producer.join().unwrap();
    });
}
