//! Pools by name. Each test has its own registry, except the last one, which uses that of the
//! process.

use std::sync::mpsc;

use super::registry::{PoolRef, Registry};
use super::support::{end, live, task, wait_for_end};
use super::{After, forget_pools, shared_pool};
use crate::sync::{Arc, Mutex};
use crate::testing::latch::{Latch, PATIENCE};

fn take(registry: &Arc<Registry>, name: &str, size: usize) -> Arc<PoolRef> {
    registry.pool(name, size, live()).unwrap().0
}

#[test]
fn a_name_refers_to_one_pool_until_the_last_queue_releases_it() {
    let registry = Arc::new(Registry::default());
    let (first, second) = (take(&registry, "IO", 1), take(&registry, "IO", 1));
    let elsewhere = take(&registry, "CPU", 1);
    assert!(Arc::ptr_eq(first.pool(), second.pool()));
    assert!(!Arc::ptr_eq(first.pool(), elsewhere.pool()));
    let pool = first.pool().clone();
    drop(first);
    assert!(Arc::ptr_eq(&pool, take(&registry, "IO", 1).pool()));
    // Still open: it accepts a task.
    let ran = Arc::new(Latch::default());
    let runs = ran.clone();
    pool.add(task(move || {
        runs.open();
        After::Done
    }));
    ran.wait();
    drop(second);
    let next = take(&registry, "IO", 1);
    assert!(!Arc::ptr_eq(&pool, next.pool()));
    wait_for_end(&pool);
    assert!(!next.pool().has_ended());
    drop((next, elsewhere));
    registry.live_pools().iter().for_each(|pool| end(pool));
    assert!(registry.live_pools().is_empty());
}

#[test]
fn the_first_size_wins_and_another_is_reported() {
    let registry = Arc::new(Registry::default());
    let (first, other) = registry.pool("IO", 2, live()).unwrap();
    assert_eq!((first.pool().size(), other), (2, None));
    let (second, other) = registry.pool("IO", 3, live()).unwrap();
    assert_eq!((second.pool().size(), other), (2, Some(2)));
    assert_eq!(registry.pool("IO", 2, live()).unwrap().1, None);
    let pool = first.pool().clone();
    drop((first, second));
    end(&pool);
}

#[test]
fn the_last_reference_can_be_dropped_on_a_worker() {
    let registry = Arc::new(Registry::default());
    let share = take(&registry, "IO", 2);
    let pool = share.pool().clone();
    let share = Mutex::new(Some(share));
    pool.add(task(move || {
        drop(share.lock().take());
        After::Done
    }));
    wait_for_end(&pool);
}

/// Repeatedly races the last drop against a new request: every request returns a pool that works.
#[test]
fn a_pool_that_is_requested_during_the_last_release_works() {
    let registry = Arc::new(Registry::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let registry = &registry;
            scope.spawn(move || {
                for _ in 0..200 {
                    let share = take(registry, "IO", 1);
                    let (sender, receiver) = mpsc::channel();
                    share.pool().add(task(move || {
                        sender.send(()).unwrap();
                        After::Done
                    }));
                    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(()));
                }
            });
        }
    });
    registry.live_pools().iter().for_each(|pool| end(pool));
}

#[test]
fn a_forgotten_pool_is_left_alone() {
    let (parents, _) = shared_pool("a forgotten pool", 1, live()).unwrap();
    let pool = parents.pool().clone();
    forget_pools();
    let (childs, other) = shared_pool("a forgotten pool", 2, live()).unwrap();
    assert_eq!(other, None);
    assert!(!Arc::ptr_eq(childs.pool(), &pool));
    // As in a child, the parent's pool is not touched. In this process its worker exists, so the
    // pool keeps running.
    drop(parents);
    let ran = Arc::new(Latch::default());
    let runs = ran.clone();
    pool.add(task(move || {
        runs.open();
        After::Done
    }));
    ran.wait();
    end(&pool);
    let pool = childs.pool().clone();
    drop(childs);
    wait_for_end(&pool);
}
