//! Tests of threads, with and without loom: a latch that opens once, and tasks of a pool.

use crate::sync::{Arc, Condvar, Deadline, Duration, Mutex, wait_for};
use crate::threads::pool::{After, Live, Pool, PoolTask};

/// The longest wait of a test. Only a failing test waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A latch that opens once.
pub(crate) struct Latch(Mutex<bool>, Condvar);

impl Default for Latch {
    fn default() -> Self {
        Self(Mutex::new(false), Condvar::new())
    }
}

impl Latch {
    pub(crate) fn open(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }

    #[cfg(not(loom))]
    pub(crate) fn is_open(&self) -> bool {
        *self.0.lock()
    }

    pub(crate) fn wait(&self) {
        let patience = Deadline::after(PATIENCE);
        let mut open = self.0.lock();
        while !*open {
            let left = patience.time_left().expect("the latch opens in time");
            open = wait_for(&self.1, open, Some(left));
        }
    }
}

/// A sleep that only a notification ends.
pub(crate) const FOR_EVER: After = After::Sleep(Duration::MAX);

struct Closure<F>(F);

impl<F: Fn() -> After + Send + Sync + 'static> PoolTask for Closure<F> {
    fn step(&self) -> After {
        (self.0)()
    }
}

pub(crate) fn task(step: impl Fn() -> After + Send + Sync + 'static) -> Arc<dyn PoolTask> {
    Arc::new(Closure(step))
}

/// The host of workers that need none.
pub(crate) fn live() -> Live {
    Arc::new(|body| body())
}

pub(crate) fn start(size: usize) -> Arc<Pool> {
    Pool::start("test", size, live()).unwrap()
}

/// Closes the pool and waits for the end of its last worker.
pub(crate) fn end(pool: &Pool) {
    pool.close();
    wait_for_end(pool);
}

/// Waits for the end of a pool that was closed.
pub(crate) fn wait_for_end(pool: &Pool) {
    let patience = Deadline::after(PATIENCE);
    while !pool.has_ended() {
        pool.wait_ended(Some(patience.time_left().expect("the workers end in time")));
    }
}
