//! The shared pools of the process, by name: created on first use, reference-counted, and closed
//! when the last queue releases them.

use std::io;

use crate::sync::{Arc, AtomicBool, Forgettable, Mutex, Ordering, Weak};
use crate::threads::pool::{Live, Pool, forget_worker};

static REGISTRY: Forgettable<Registry> = Forgettable::new();

/// Returns the pool with this name. The first caller creates it and sets its size. If an existing
/// pool has a different size, also returns that, for a warning.
///
/// # Errors
/// The system cannot start the pool's workers.
pub(crate) fn shared_pool(
    name: &str,
    size: usize,
    live: Live,
) -> io::Result<(Arc<PoolRef>, Option<usize>)> {
    REGISTRY.get().pool(name, size, live)
}

/// Returns every shared pool that has a worker, including closed pools about to end: process exit
/// waits for them.
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
pub(crate) fn live_pools() -> Vec<Arc<Pool>> {
    REGISTRY.get().live_pools()
}

/// Resets the pools in a forked child, where the workers do not exist and the parent's locks may
/// never be released. From now on all names are free, and dropping a share of one of the parent's
/// pools does nothing.
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
pub(crate) fn forget_pools() {
    if let Some(parents) = REGISTRY.forget() {
        parents.forget();
    }
    forget_worker();
}

/// A queue's share of a pool. Dropping the last share frees the name and closes the pool, without
/// waiting, so it may happen on a worker.
#[derive(Debug)]
pub(crate) struct PoolRef {
    pool: Arc<Pool>,
    registry: Arc<Registry>,
}

impl PoolRef {
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for PoolRef {
    fn drop(&mut self) {
        // Relaxed: set only in a child that has no second thread yet.
        if !self.registry.forgotten.load(Ordering::Relaxed) {
            self.pool.close();
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    pools: Mutex<Vec<LivePool>>,
    /// Whether this process is a forked child of the process that owns the pools.
    forgotten: AtomicBool,
}

/// A pool from its start to the end of its last worker.
#[derive(Debug)]
struct LivePool {
    /// Dead once the last queue drops its share, before the pool is closed: from then on the name
    /// is free, and no request can revive a pool that is about to close. At most one live pool of a
    /// name has a share.
    share: Weak<PoolRef>,
    pool: Arc<Pool>,
}

impl Registry {
    pub(crate) fn pool(
        self: &Arc<Self>,
        name: &str,
        size: usize,
        live: Live,
    ) -> io::Result<(Arc<PoolRef>, Option<usize>)> {
        // Held while the workers start, which does not wait, so that two concurrent first callers
        // get the same pool.
        let mut pools = self.pools.lock();
        pools.retain(|live| !live.pool.has_ended());
        let known = pools
            .iter()
            .filter(|live| live.pool.name() == name)
            .find_map(|live| live.share.upgrade());
        if let Some(share) = known {
            let other = Some(share.pool.size()).filter(|&known| known != size.max(1));
            return Ok((share, other));
        }
        let pool = Pool::start(name, size, live)?;
        let share = Arc::new(PoolRef { pool: pool.clone(), registry: self.clone() });
        pools.push(LivePool { share: Arc::downgrade(&share), pool });
        Ok((share, None))
    }

    #[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
    pub(crate) fn live_pools(&self) -> Vec<Arc<Pool>> {
        let mut pools = self.pools.lock();
        pools.retain(|live| !live.pool.has_ended());
        pools.iter().map(|live| live.pool.clone()).collect()
    }

    #[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
    pub(crate) fn forget(&self) {
        // Relaxed: as in `PoolRef::drop`.
        self.forgotten.store(true, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;

    use super::{PoolRef, Registry, forget_pools, shared_pool};
    use crate::sync::{Arc, Mutex};
    use crate::testing::threads::{Latch, PATIENCE, end, live, task, wait_for_end};
    use crate::threads::pool::After;

    // Pools by name. Each test has its own registry, except the last one, which uses the process's.

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
        // The pool is still open: it accepts a task.
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

    /// Races the last drop against a new request, many times: every request returns a pool that
    /// works.
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
        // As in a child, the parent's pool is not touched. In this process its worker exists, so
        // the pool keeps running.
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
}
