//! A worker of a shared pool: it runs turn after turn inside the pool's host, and finally counts
//! itself out.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::running::{CountOut, RunningThreads};
use super::tasks::{After, Turn};
use crate::sync::{Arc, spawn, thread_local};

/// What a drain thread does from start to end.
pub type ThreadBody = Box<dyn FnOnce() + Send>;

/// Runs a worker from start to end. If it does not call the body, the pool continues with one
/// worker less.
pub(crate) type Live = Arc<dyn Fn(ThreadBody) + Send + Sync>;

/// What a worker needs of its pool.
pub(super) trait Employer: Send + Sync + 'static {
    fn name(&self) -> &str;

    fn live(&self) -> &Live;

    /// Threads that have not ended. Each counts itself out as its very last act.
    fn running(&self) -> &Arc<RunningThreads>;

    /// Waits for a task. Returns `None` if this worker must leave; it no longer counts then.
    fn next_turn(&self) -> Option<Turn>;

    fn give_back(&self, turn: &Turn, after: After);

    /// Called when a worker has ended without running its body.
    fn lost_worker(&self);
}

thread_local! {
    // Not `const`: loom's macro has no such form.
    #[allow(clippy::missing_const_for_thread_local)]
    /// The address of the pool whose worker this thread is, or 0 if it is not a worker. A worker
    /// keeps its pool alive.
    static WORKS_FOR: Cell<usize> = Cell::new(0);
}

/// Whether the calling thread is a worker of `pool`.
pub(super) fn works_for<P: Employer>(pool: &P) -> bool {
    WORKS_FOR.with(Cell::get) == std::ptr::from_ref(pool) as usize
}

/// Whether the calling thread is a worker of any pool.
#[cfg(feature = "python")]
pub(crate) fn is_worker() -> bool {
    WORKS_FOR.with(Cell::get) != 0
}

/// For a forked child: its only thread is not a worker, even if the forking thread was one.
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
pub(super) fn forget_worker() {
    WORKS_FOR.with(|works_for| works_for.set(0));
}

/// Starts a worker, which the pool has counted already.
pub(super) fn spawn_worker<P: Employer>(pool: &Arc<P>, number: usize) -> io::Result<()> {
    pool.running().count_in();
    // Created outside the thread's body, so that it is also dropped if the thread does not start.
    let count_out = CountOut(pool.running().clone());
    let pool = pool.clone();
    spawn(format!("batchqueue-{}-{number}", pool.name()), move || {
        let _count_out = count_out;
        live(pool);
    })
    // Workers are not joined: the count shows when they have ended, and the last reference to a
    // pool may be dropped on a worker.
    .map(drop)
}

/// Takes the pool by value, so that it is dropped before the worker is counted out.
#[allow(clippy::needless_pass_by_value)]
fn live<P: Employer>(pool: Arc<P>) {
    WORKS_FOR.with(|works_for| works_for.set(Arc::as_ptr(&pool) as usize));
    let mut idle = IdleWorker(Some(pool.clone()));
    (pool.live())(Box::new(move || {
        let Some(pool) = idle.0.take() else { return };
        while let Some(turn) = pool.next_turn() {
            run(&*pool, turn);
        }
    }));
}

/// A worker that has not run its body. If that is dropped, the pool has lost the worker.
struct IdleWorker<P: Employer>(Option<Arc<P>>);

impl<P: Employer> Drop for IdleWorker<P> {
    fn drop(&mut self) {
        if let Some(pool) = &self.0 {
            pool.lost_worker();
        }
    }
}

fn run<P: Employer>(pool: &P, turn: Turn) {
    let after = guarded(pool.name(), || turn.step()).unwrap_or(After::Done);
    pool.give_back(&turn, after);
    // A task that is done is dropped here, outside the lock: its end may close this very pool.
    guarded(pool.name(), || drop(turn));
}

/// Runs `body`. Returns `None` if it panicked, which is logged: a task never ends its worker.
fn guarded<R>(pool: &str, body: impl FnOnce() -> R) -> Option<R> {
    let panic = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => return Some(result),
        Err(panic) => panic,
    };
    let cause = panic.downcast_ref::<&str>().copied();
    let cause = cause
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    log::error!(target: "batchqueue", "pool {pool}: a task panicked and is given up: {cause}");
    None
}
