//! The shared pools of the process, by name: created on first use, reference-counted, and closed
//! when the last queue releases them.

use std::io;

use super::pool::Pool;
use super::worker::{Live, forget_worker};
use crate::sync::{Arc, AtomicBool, Forgettable, Mutex, Ordering, Weak};

static REGISTRY: Forgettable<Registry> = Forgettable::new();

/// The pool with this name. The first caller creates it and determines its size. Returns the size
/// of an existing pool if it differs, for a warning.
///
/// # Errors
/// The system cannot start the threads of its workers.
pub(crate) fn shared_pool(
    name: &str,
    size: usize,
    live: Live,
) -> io::Result<(Arc<PoolRef>, Option<usize>)> {
    REGISTRY.get().pool(name, size, live)
}

/// Every shared pool that has a worker, including pools that are closed and about to end: the end
/// of the process waits for them.
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
pub(crate) fn live_pools() -> Vec<Arc<Pool>> {
    REGISTRY.get().live_pools()
}

/// For a forked child: the workers do not exist here, and the parent's locks may be held for ever.
/// From now on all names are free, and dropping a reference to one of the parent's pools does
/// nothing.
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
pub(crate) fn forget_pools() {
    if let Some(parents) = REGISTRY.forget() {
        parents.forget();
    }
    forget_worker();
}

/// A queue's share of a pool. Dropping the last share frees the name and closes the pool. It does
/// not wait, so it may happen on a worker.
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
pub(super) struct Registry {
    pools: Mutex<Vec<LivePool>>,
    /// Whether this process is a forked child of the process that owns the pools.
    forgotten: AtomicBool,
}

/// A pool from its start to the end of its last worker.
#[derive(Debug)]
struct LivePool {
    /// Dead as soon as the last queue drops its share, before the pool is closed: the name is free
    /// from that moment, and no request can revive a pool that is about to close. At most one live
    /// pool of a name still has a share.
    share: Weak<PoolRef>,
    pool: Arc<Pool>,
}

impl Registry {
    pub(super) fn pool(
        self: &Arc<Self>,
        name: &str,
        size: usize,
        live: Live,
    ) -> io::Result<(Arc<PoolRef>, Option<usize>)> {
        // Held while the workers start, which does not wait: two concurrent first callers get the
        // same pool.
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
    pub(super) fn live_pools(&self) -> Vec<Arc<Pool>> {
        let mut pools = self.pools.lock();
        pools.retain(|live| !live.pool.has_ended());
        pools.iter().map(|live| live.pool.clone()).collect()
    }

    #[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
    pub(super) fn forget(&self) {
        // Relaxed: as in `PoolRef::drop`.
        self.forgotten.store(true, Ordering::Relaxed);
    }
}
