//! Helpers for the tests of the pool, with and without loom.

use super::{After, Live, Pool, PoolTask};
use crate::sync::{Arc, Deadline, Duration};
use crate::testing::latch::PATIENCE;

/// A sleep that only a notification ends.
pub(super) const FOR_EVER: After = After::Sleep(Duration::MAX);

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
