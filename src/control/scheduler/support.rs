//! Helpers for the tests of the pool, with and without loom.

use super::{After, Live, Pool, PoolTask};
use crate::sync::{Arc, Condvar, Deadline, Duration, Mutex, wait_for};

/// The longest wait of a test. Only a failing test waits that long.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A sleep that only a notification ends.
pub(super) const FOR_EVER: After = After::Sleep(Duration::MAX);

/// A latch that opens once.
pub(super) struct Latch(Mutex<bool>, Condvar);

impl Default for Latch {
    fn default() -> Self {
        Self(Mutex::new(false), Condvar::new())
    }
}

impl Latch {
    pub(super) fn open(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }

    #[cfg(not(loom))]
    pub(super) fn is_open(&self) -> bool {
        *self.0.lock()
    }

    pub(super) fn wait(&self) {
        let patience = Deadline::after(PATIENCE);
        let mut open = self.0.lock();
        while !*open {
            let left = patience.time_left().expect("the latch opens in time");
            open = wait_for(&self.1, open, Some(left));
        }
    }
}

struct Closure<F>(F);

impl<F: Fn() -> After + Send + Sync + 'static> PoolTask for Closure<F> {
    fn step(&self) -> After {
        (self.0)()
    }
}

pub(super) fn task(step: impl Fn() -> After + Send + Sync + 'static) -> Arc<dyn PoolTask> {
    Arc::new(Closure(step))
}

/// The host of workers that need none.
pub(super) fn live() -> Live {
    Arc::new(|body| body())
}

pub(super) fn start(size: usize) -> Arc<Pool> {
    Pool::start("test", size, live()).unwrap()
}

/// Closes the pool and waits for the end of its last worker.
pub(super) fn end(pool: &Pool) {
    pool.close();
    wait_for_end(pool);
}

/// Waits for the end of a pool that was closed.
pub(super) fn wait_for_end(pool: &Pool) {
    let patience = Deadline::after(PATIENCE);
    while !pool.has_ended() {
        pool.wait_ended(Some(patience.time_left().expect("the workers end in time")));
    }
}
