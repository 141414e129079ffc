//! The worlds in which types go and come back while their items are still in the queue.

use super::changes::Change::{Add, Remove, RemoveSoon};
use super::letters::Keeper;
use super::world::{Hang, World};

/// A world of one thread and one partition, in which the first type has a handler and the second
/// has none.
fn alone(name: &'static str, puts: &'static [&'static [(u8, u8)]]) -> World {
    World { homes: Some([Some(0), None]), ..World::new(name, puts) }
}

pub fn types_that_return() -> Vec<World> {
    vec![
        World {
            changes: &[Remove(0), Add(0, 2)],
            ..alone("a type that goes and comes back", &[&[(0, 0), (0, 0)]])
        },
        World {
            changes: &[Remove(0), Add(1, 2)],
            ..alone("a type that leaves its partition to another", &[&[(0, 0), (0, 0)], &[(0, 1)]])
        },
        World {
            partitions: 2,
            homes: Some([Some(1), Some(0)]),
            leaving: Some(1),
            is_early: true,
            changes: &[Remove(0), Add(0, 2)],
            ..World::new("a type that comes back to its partition", &[&[(0, 0), (0, 0)]])
        },
        World {
            partitions: 2,
            homes: Some([None, Some(0)]),
            changes: &[Remove(1), Add(0, 2)],
            ..World::new("a type that comes behind its first items", &[&[(1, 0), (1, 0)]])
        },
        World {
            partitions: 2,
            homes: Some([Some(1), None]),
            changes: &[Remove(0), Add(0, 2), Remove(0), Add(0, 3)],
            ..World::new("a type that goes and comes back twice", &[&[(0, 0), (0, 0)]])
        },
        World {
            failures: [1, 0],
            changes: &[RemoveSoon(0), Add(0, 2)],
            ..alone("a type that comes back while its batch backs off", &[&[(0, 0), (0, 0)]])
        },
        World {
            threads: 2,
            hang: Hang::Long(0),
            changes: &[RemoveSoon(0), Add(0, 2)],
            ..alone("a type that comes back while its call takes long", &[&[(0, 0), (0, 0)]])
        },
        World {
            threads: 2,
            hang: Hang::Forever(0),
            changes: &[RemoveSoon(0), Add(1, 2)],
            ..alone("another type comes while a call hangs", &[&[(0, 0), (0, 1)]])
        },
        World {
            lingers: true,
            has_long_waits: true,
            batch: 3,
            changes: &[RemoveSoon(0), Add(0, 2)],
            ..alone("a type that comes back while its batch waits", &[&[(0, 0), (0, 0)]])
        },
        World {
            lingers: true,
            has_long_waits: true,
            batch: 3,
            changes: &[Add(1, 2)],
            ..alone("another type comes while a batch waits", &[&[(0, 0)], &[(0, 1)]])
        },
        World {
            failures: [1, 0],
            keeper: Some(Keeper { lock: 3, attempts: 1, most: 1 }),
            batch: 1,
            changes: &[RemoveSoon(0), Add(0, 2)],
            ..alone("a type that comes back behind its dead letters", &[&[(0, 0), (0, 0)]])
        },
        World {
            failures: [1, 0],
            fails_in_part: true,
            changes: &[RemoveSoon(0), Add(0, 2)],
            ..alone("a type that comes back while a part is tried again", &[&[(0, 0), (0, 0)]])
        },
    ]
}

pub fn types_that_return_meanwhile() -> Vec<World> {
    vec![
        World {
            flushes: true,
            changes: &[RemoveSoon(0), Add(0, 2)],
            ..alone("a type that comes back, a flush", &[&[(0, 0), (0, 0)]])
        },
        World {
            closes: true,
            changes: &[RemoveSoon(0), Add(0, 2)],
            ..alone("a type that comes back, a close", &[&[(0, 0), (0, 0)]])
        },
        World {
            closes: true,
            expires: true,
            changes: &[RemoveSoon(0), Add(1, 2)],
            ..alone("another type comes, a close that runs out of time", &[&[(0, 0), (0, 1)]])
        },
        World {
            bound: 1,
            changes: &[RemoveSoon(0), Add(0, 2)],
            ..alone("a type that comes back, producers that wait", &[&[(0, 0), (0, 0)]])
        },
        World {
            threads: 2,
            partitions: 2,
            homes: Some([Some(0), None]),
            moves: &[(0, 1)],
            changes: &[RemoveSoon(0), Add(0, 2)],
            ..World::new("a type that comes back, a move", &[&[(0, 0)]])
        },
        World {
            partitions: 2,
            homes: Some([Some(0), Some(1)]),
            changes: &[RemoveSoon(0), RemoveSoon(1), Add(1, 2), Add(0, 3)],
            ..World::new("two types that come back in another order", &[&[(1, 0), (0, 1)]])
        },
    ]
}
