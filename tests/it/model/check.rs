//! Checks of what must hold after a run.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::SeqCst;

use batchqueue::{BatchQueue, Selector};

use super::actor::is_ordered;
use super::settings::{Mode, is_spread};
use super::world::{Ended, World};
use crate::support::{Sent, assert_conserved};

/// Panics with all violations.
pub fn check(world: &World, queue: &BatchQueue<Sent>) {
    assert!(queue.has_ended() && !queue.is_running());
    let mut wrong = std::mem::take(&mut *world.violations.lock().unwrap());
    counts(world, queue, &mut wrong);
    items(world, &mut wrong);
    closes(world, &mut wrong);
    assert!(
        wrong.is_empty(),
        "{} violations: {:#?}\n{:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(10)],
        world.settings
    );
}

/// P2: conservation of items, compared with what the actors and the handlers saw.
fn counts(world: &World, queue: &BatchQueue<Sent>, wrong: &mut Vec<String>) {
    let stats = queue.stats();
    assert_conserved(&stats);
    let (mut consumed, mut failed) = (0, 0);
    for ended in world.ended.iter().flat_map(|kind| kind.lock().unwrap().clone()) {
        *(if ended.consumed { &mut consumed } else { &mut failed }) += 1;
    }
    failed += world.between_tries.lock().unwrap().len() as u64;
    let accepted = world.accepted.lock().unwrap().len() as u64;
    let refused = world.refused.load(SeqCst);
    if (stats.produced, stats.refused) != (accepted, refused) {
        wrong.push(format!("{accepted} accepted and {refused} refused: {stats:?}"));
    }
    // A batch that returned after time ran out had already been counted as abandoned.
    let late = world.may_run_out_of_time();
    let all_failed = stats.failed + stats.dead_lettered;
    if (stats.consumed, all_failed) != (consumed, failed)
        && !(late && stats.consumed <= consumed && all_failed <= failed)
    {
        wrong.push(format!("{consumed} consumed and {failed} failed: {stats:?}"));
    }
    let kept = world.kept.lock().unwrap().values().filter(|&&kept| kept).count() as u64;
    if stats.dead_lettered != kept && !(late && stats.dead_lettered <= kept) {
        wrong.push(format!("{kept} kept: {stats:?}"));
    }
    if stats.abandoned > 0 && !late {
        wrong.push(format!("abandoned: {stats:?}"));
    }
}

/// P2, P3: every handled item was accepted, none was handled twice, and ordered items keep their
/// order.
fn items(world: &World, wrong: &mut Vec<String>) {
    let accepted: HashSet<(usize, usize, usize)> = world
        .accepted
        .lock()
        .unwrap()
        .iter()
        .map(|item| (item.kind, item.producer, item.number))
        .collect();
    let factories: HashSet<usize> = world
        .probes
        .lock()
        .unwrap()
        .iter()
        .filter(|probe| probe.of_factory)
        .map(|probe| probe.id)
        .collect();
    // With a consumer the order is per partition, and registering a handler for a type may move it
    // to another partition.
    let by_type =
        world.settings.config.selector == Selector::ByType && world.settings.mode == Mode::Handlers;
    let by_partition = world.settings.config.selector == Selector::Given;
    let mut known = HashSet::new();
    for kind in &world.ended {
        let mut last: HashMap<(usize, usize), usize> = HashMap::new();
        for &Ended { item, probe, consumed } in &*kind.lock().unwrap() {
            let name = (item.kind, item.producer, item.number);
            if !accepted.contains(&name) {
                wrong.push(format!("{item:?} was handled but never accepted"));
            }
            if world.kept.lock().unwrap().contains_key(&name) && consumed {
                wrong.push(format!("{item:?} was consumed and kept"));
            }
            if !known.insert(name) {
                wrong.push(format!("{item:?} was handled twice"));
            }
            // The order is by type, also across handlers that replace each other; for a factory it
            // is by partition.
            let same = match (by_type, is_spread(item.kind)) {
                (true, false) => (item.producer, 0),
                (true, true) if factories.contains(&probe) => (item.producer, probe),
                (false, _) if by_partition && is_ordered(item.producer) => (item.producer, 0),
                _ => continue,
            };
            let before = last.insert(same, item.number);
            if before.is_some_and(|before| before > item.number) {
                wrong.push(format!("{item:?} came after number {before:?}"));
            }
        }
    }
}

/// P1, P9: each instance that was ever registered was closed exactly once. Probes record calls
/// after their close themselves.
fn closes(world: &World, wrong: &mut Vec<String>) {
    for probe in &*world.probes.lock().unwrap() {
        let (closed, registered) = (probe.closed.load(SeqCst), probe.registered.load(SeqCst));
        if closed != usize::from(registered) {
            wrong
                .push(format!("{} (registered: {registered}) was closed {closed} times", probe.id));
        }
    }
}
