//! The worlds in which batches wait to become full, or fail for good.

use super::changes::Change;
use super::letters::Keeper;
use super::world::World;

/// A world of one type whose batches of two items wait until they are full, however long.
fn patient(name: &'static str, puts: &'static [&'static [(u8, u8)]]) -> World {
    World { lingers: true, has_long_waits: true, batch: 2, ..World::new(name, puts) }
}

pub fn lingering() -> [World; 14] {
    [
        patient("a batch that becomes full", &[&[(0, 0), (0, 0), (0, 0)]]),
        World {
            batch: 3,
            has_long_waits: false,
            ..patient("a batch that becomes due", &[&[(0, 0), (0, 0)]])
        },
        World {
            flushes: true,
            ..patient("a batch that waits, a flush", &[&[(0, 0), (0, 0), (0, 0)]])
        },
        World {
            closes: true,
            ..patient("a batch that waits, a close", &[&[(0, 0), (0, 0), (0, 0)]])
        },
        World {
            batch: 4,
            bound: 2,
            ..patient("a batch that waits, a small buffer", &[&[(0, 0), (0, 0)], &[(0, 0), (0, 0)]])
        },
        World {
            changes: &[Change::Remove(0)],
            ..patient("a batch that waits, a removal", &[&[(0, 0), (0, 0), (0, 0)]])
        },
        World {
            changes: &[Change::Remove(0)],
            batch: 3,
            flushes: true,
            ..patient("a batch that waits, a removal, a flush", &[&[(0, 0), (0, 0)]])
        },
        World {
            changes: &[Change::Add(0, 2)],
            ..patient("a batch that waits, a replacement", &[&[(0, 0), (0, 0), (0, 0)]])
        },
        World {
            changes: &[Change::Remove(0)],
            closes: true,
            ..patient("a batch that waits, a removal, a close", &[&[(0, 0), (0, 0)]])
        },
        World {
            threads: 2,
            partitions: 2,
            moves: &[(0, 1)],
            ..patient("a batch that waits, a move", &[&[(0, 0), (0, 0), (0, 0)]])
        },
        World {
            threads: 2,
            partitions: 2,
            moves: &[(0, 1)],
            changes: &[Change::Remove(0)],
            ..patient("a batch that waits, a move, a removal", &[&[(0, 0), (0, 0)]])
        },
        World {
            is_mixed: true,
            ..patient("two types whose batches wait", &[&[(0, 0), (0, 1), (0, 0)]])
        },
        World {
            failures: [1, 0],
            has_long_waits: false,
            batch: 3,
            ..patient("a batch that waits, a retry", &[&[(0, 0), (0, 0), (0, 0), (0, 0)]])
        },
        World {
            threads: 2,
            partitions: 2,
            locks: [0, 0],
            flushes: true,
            ..patient("batches that wait, two threads at one lock", &[&[(0, 0)], &[(1, 1)]])
        },
    ]
}

/// A world of batches of one item, where those of the first type fail for good, and a box for one
/// item.
fn failing(name: &'static str, puts: &'static [&'static [(u8, u8)]]) -> World {
    let keeper = Some(Keeper { lock: 2, attempts: 1, most: 1 });
    World { failures: [1, 0], keeper, batch: 1, ..World::new(name, puts) }
}

pub fn dead_letters() -> [World; 12] {
    [
        failing("dead letters", &[&[(0, 0), (0, 0), (0, 0)]]),
        World { flushes: true, ..failing("dead letters, a flush", &[&[(0, 0), (0, 0)]]) },
        World { closes: true, ..failing("dead letters, a close", &[&[(0, 0), (0, 0)]]) },
        World {
            closes: true,
            expires: true,
            ..failing("dead letters, a close that runs out of time", &[&[(0, 0), (0, 0)]])
        },
        World {
            failures: [3, 0],
            keeper: Some(Keeper { lock: 2, attempts: 3, most: 1 }),
            has_long_waits: true,
            closes: true,
            has_deadline: true,
            ..failing("dead letters, a close with a deadline", &[&[(0, 0), (0, 0)]])
        },
        World { bound: 1, ..failing("dead letters, a small buffer", &[&[(0, 0), (0, 0), (0, 0)]]) },
        World {
            is_mixed: true,
            ..failing("dead letters beside another type", &[&[(0, 0), (0, 1), (0, 0)]])
        },
        World {
            threads: 2,
            partitions: 2,
            keeper: Some(Keeper { lock: 1, attempts: 1, most: 1 }),
            failures: [1, 1],
            ..failing("dead letters from two threads", &[&[(0, 0)], &[(1, 1)]])
        },
        World {
            threads: 2,
            ..failing("a full box of dead letters", &[&[(0, 0), (0, 0), (0, 0), (0, 0)]])
        },
        World {
            threads: 2,
            partitions: 2,
            moves: &[(0, 1)],
            ..failing("dead letters, a move", &[&[(0, 0), (0, 0)]])
        },
        World {
            changes: &[Change::Remove(0)],
            ..failing("dead letters, a removal", &[&[(0, 0), (0, 0), (0, 0)]])
        },
        World {
            lingers: true,
            batch: 2,
            ..failing("dead letters from batches that wait", &[&[(0, 0), (0, 0), (0, 0)]])
        },
    ]
}
