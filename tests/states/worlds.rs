//! The worlds to search, from small to large.

use super::changes::Change;
use super::world::{Hang, World};
use super::worlds_of_batches::{dead_letters, lingering};
use super::worlds_of_types::{types_that_return, types_that_return_meanwhile};

/// A world of two threads with a partition each.
fn two(name: &'static str, puts: &'static [&'static [(u8, u8)]]) -> World {
    World { threads: 2, partitions: 2, ..World::new(name, puts) }
}

/// A world of two threads, and one partition for two types.
fn mixed(name: &'static str, puts: &'static [&'static [(u8, u8)]]) -> World {
    World { threads: 2, is_mixed: true, ..World::new(name, puts) }
}

/// Returns the worlds. In `puts`, an item is a partition and a type.
pub fn worlds() -> Vec<World> {
    let mut worlds = Vec::from(in_one_partition());
    worlds.extend(moves());
    worlds.extend(shared_handlers());
    worlds.extend(removals());
    worlds.extend(long_calls());
    worlds.extend(lingering());
    worlds.extend(dead_letters());
    worlds.extend(types_that_return());
    worlds.extend(types_that_return_meanwhile());
    worlds
}

fn in_one_partition() -> [World; 18] {
    [
        World::new("one thread", &[&[(0, 0), (0, 0), (0, 0)]]),
        World { closes: true, ..World::new("a close", &[&[(0, 0), (0, 0)]]) },
        World { flushes: true, ..World::new("a flush", &[&[(0, 0), (0, 0)]]) },
        World { batch: 1, ..World::new("batches of one item", &[&[(0, 0), (0, 0), (0, 0)]]) },
        World {
            batch: 1,
            closes: true,
            ..World::new("a close, batches of one item", &[&[(0, 0), (0, 0)]])
        },
        World {
            bound: 1,
            ..World::new("producers that wait", &[&[(0, 0), (0, 0)], &[(0, 0), (0, 0)]])
        },
        World {
            bound: 1,
            closes: true,
            ..World::new("a close, producers that wait", &[&[(0, 0), (0, 0)], &[(0, 0)]])
        },
        World { failures: [1, 0], ..World::new("a retry", &[&[(0, 0), (0, 0), (0, 0)]]) },
        World {
            failures: [1, 0],
            batch: 1,
            bound: 2,
            ..World::new("a retry, a small buffer", &[&[(0, 0), (0, 0), (0, 0), (0, 0)]])
        },
        World {
            failures: [2, 0],
            closes: true,
            ..World::new("a close, a retry", &[&[(0, 0), (0, 0)]])
        },
        World {
            failures: [2, 0],
            has_long_waits: true,
            closes: true,
            has_deadline: true,
            ..World::new("a close with a deadline, a long back-off", &[&[(0, 0), (0, 0)]])
        },
        World {
            failures: [1, 0],
            flushes: true,
            ..World::new("a flush, a retry", &[&[(0, 0), (0, 0)]])
        },
        World {
            failures: [1, 0],
            closes: true,
            expires: true,
            ..World::new("a close that runs out of time, a retry", &[&[(0, 0), (0, 0)]])
        },
        World {
            failures: [2, 0],
            fails_in_part: true,
            bound: 2,
            ..World::new("a retry of a part", &[&[(0, 0), (0, 0), (0, 0), (0, 0)]])
        },
        World {
            failures: [1, 0],
            fails_in_part: true,
            flushes: true,
            ..World::new("a flush, a retry of a part", &[&[(0, 0), (0, 0), (0, 0)]])
        },
        World {
            failures: [1, 0],
            fails_in_part: true,
            closes: true,
            expires: true,
            ..World::new(
                "a close that runs out of time, a retry of a part",
                &[&[(0, 0), (0, 0), (0, 0)]],
            )
        },
        World {
            failures: [1, 0],
            is_mixed: true,
            ..World::new("a retry beside another type", &[&[(0, 0), (0, 1), (0, 0)]])
        },
        World {
            failures: [1, 0],
            is_mixed: true,
            batch: 1,
            bound: 1,
            ..World::new(
                "a retry beside another type, a small buffer",
                &[&[(0, 0), (0, 0), (0, 0), (0, 0), (0, 0)]],
            )
        },
    ]
}

fn moves() -> [World; 14] {
    [
        World { moves: &[(0, 1)], ..two("a move", &[&[(0, 0), (0, 0)]]) },
        World { moves: &[(0, 1), (0, 0)], ..two("a move there and back", &[&[(0, 0)]]) },
        World {
            moves: &[(0, 1)],
            has_consumers: true,
            ..two("a move between consumers", &[&[(0, 0), (0, 0)]])
        },
        World {
            moves: &[(0, 1)],
            has_consumers: true,
            failures: [1, 0],
            ..two("a move between consumers, a retry", &[&[(0, 0)]])
        },
        World { moves: &[(0, 1)], closes: true, ..two("a move, a close", &[&[(0, 0)]]) },
        World { moves: &[(0, 1)], flushes: true, ..two("a move, a flush", &[&[(0, 0)]]) },
        World {
            moves: &[(0, 1)],
            failures: [1, 0],
            ..two("a move, a retry", &[&[(0, 0), (0, 0)]])
        },
        World {
            failures: [1, 0],
            has_long_waits: true,
            closes: true,
            has_deadline: true,
            moves: &[(0, 1)],
            ..two("a move, a close with a deadline, a long back-off", &[&[(0, 0)]])
        },
        World {
            moves: &[(0, 1)],
            failures: [1, 0],
            fails_in_part: true,
            ..two("a move, a retry of a part", &[&[(0, 0), (0, 0)]])
        },
        World { moves: &[(0, 1), (1, 0)], ..two("a swap", &[&[(0, 0)], &[(1, 1)]]) },
        World {
            moves: &[(0, 1)],
            changes: &[Change::Remove(0)],
            ..two("a move, a removal", &[&[(0, 0)]])
        },
        World {
            moves: &[(0, 1)],
            failures: [1, 0],
            has_long_waits: true,
            closes: true,
            expires: true,
            ..two("a move, a close that runs out of time", &[&[(0, 0)]])
        },
        World {
            threads: 3,
            moves: &[(0, 1), (0, 2)],
            ..World::new("three threads, one partition", &[&[(0, 0), (0, 0)]])
        },
        World {
            threads: 3,
            partitions: 2,
            moves: &[(0, 1), (1, 2)],
            ..World::new("three threads", &[&[(0, 0)], &[(1, 1)]])
        },
    ]
}

fn shared_handlers() -> [World; 5] {
    [
        World { locks: [0, 0], ..two("two threads at one lock", &[&[(0, 0), (0, 0)], &[(1, 1)]]) },
        World {
            locks: [0, 0],
            closes: true,
            ..two("two threads at one lock, a close", &[&[(0, 0)], &[(1, 1)]])
        },
        World {
            locks: [0, 0],
            flushes: true,
            ..two("two threads at one lock, a flush", &[&[(0, 0)], &[(1, 1)]])
        },
        World { locks: [0, 0], ..mixed("two types at one lock", &[&[(0, 0), (0, 1), (0, 0)]]) },
        World {
            locks: [0, 0],
            moves: &[(1, 0)],
            ..two("two threads at one lock, a move", &[&[(0, 0)], &[(1, 1)]])
        },
    ]
}

fn removals() -> [World; 7] {
    [
        World { changes: &[Change::Remove(0)], ..World::new("a removal", &[&[(0, 0), (0, 0)]]) },
        World {
            changes: &[Change::Remove(0)],
            closes: true,
            ..World::new("a removal, a close", &[&[(0, 0), (0, 0)]])
        },
        World {
            changes: &[Change::Remove(0)],
            is_mixed: true,
            ..two("a removal from two partitions", &[&[(0, 0)], &[(1, 0)]])
        },
        World {
            changes: &[Change::Add(0, 2)],
            failures: [1, 0],
            ..World::new("a replacement, a retry", &[&[(0, 0), (0, 0)]])
        },
        World {
            changes: &[Change::Remove(0)],
            failures: [1, 0],
            has_long_waits: true,
            ..World::new("a removal, a long back-off", &[&[(0, 0), (0, 0)]])
        },
        World {
            changes: &[Change::Remove(0)],
            failures: [1, 0],
            has_long_waits: true,
            moves: &[(0, 1)],
            ..two("a removal, a long back-off, a move", &[&[(0, 0)]])
        },
        World {
            changes: &[Change::Add(0, 2)],
            is_mixed: true,
            ..two("a replacement in two partitions", &[&[(0, 0)], &[(1, 0)]])
        },
    ]
}

fn long_calls() -> [World; 11] {
    [
        World {
            hang: Hang::Forever(0),
            ..mixed("a call that hangs", &[&[(0, 0), (0, 1), (0, 1)]])
        },
        World {
            hang: Hang::Long(0),
            ..mixed("a call that takes long", &[&[(0, 0), (0, 1), (0, 0)]])
        },
        World {
            hang: Hang::Forever(0),
            closes: true,
            ..mixed("a call that hangs, a close", &[&[(0, 0), (0, 1)]])
        },
        World {
            hang: Hang::Long(0),
            flushes: true,
            ..mixed("a call that takes long, a flush", &[&[(0, 0), (0, 1)]])
        },
        World {
            hang: Hang::Long(0),
            closes: true,
            ..mixed("a call that takes long, a close", &[&[(0, 0), (0, 1)]])
        },
        World {
            hang: Hang::Long(0),
            closes: true,
            expires: true,
            ..World::new(
                "a call that takes long, a close that runs out of time",
                &[&[(0, 0), (0, 0)]],
            )
        },
        World {
            hang: Hang::Forever(0),
            closes: true,
            expires: true,
            bound: 1,
            ..World::new(
                "a call that hangs, a close that runs out of time",
                &[&[(0, 0), (0, 0), (0, 0)]],
            )
        },
        World {
            hang: Hang::Forever(0),
            closes: true,
            expires: true,
            ..two("the same with two threads", &[&[(0, 0)], &[(1, 1)]])
        },
        World {
            hang: Hang::Forever(0),
            bound: 1,
            batch: 1,
            ..mixed("a stalled type", &[&[(0, 0), (0, 0)], &[(0, 1)]])
        },
        World {
            hang: Hang::Long(0),
            bound: 1,
            batch: 1,
            threads: 1,
            failures: [1, 0],
            ..mixed("a type that is stalled for a while", &[&[(0, 0), (0, 0), (0, 0)], &[(0, 1)]])
        },
        World {
            hang: Hang::Forever(0),
            bound: 2,
            batch: 2,
            ..mixed(
                "a stalled type, a larger buffer",
                &[&[(0, 0), (0, 0), (0, 0)], &[(0, 1), (0, 1)]],
            )
        },
    ]
}
