//! The life of one worker of a shared pool: turn after turn, inside the pool's host; its last act
//! is to count itself out.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::running::{CountOut, RunningThreads};
use super::tasks::{After, Turn};
use crate::sync::{Arc, spawn, thread_local};

/// Wraps the whole life of a worker. If it does not call the body, the pool continues with one
/// worker less.
pub(crate) type Live = Arc<dyn Fn(&mut (dyn FnMut() + Send)) + Send + Sync>;

/// What a worker needs of its pool.
pub(super) trait Employer: Send + Sync + 'static {
    fn name(&self) -> &str;

    fn live(&self) -> &Live;

    /// Threads that have not ended; counted out by each as its very last act.
    fn running(&self) -> &Arc<RunningThreads>;

    /// Waits for a task. `None`: this worker is to leave, and counts no more.
    fn next_turn(&self) -> Option<Turn>;

    fn give_back(&self, turn: &Turn, after: After);

    /// A worker has ended without having worked.
    fn lost_worker(&self);
}

thread_local! {
    // Not `const`: loom's twin has no such form.
    #[allow(clippy::missing_const_for_thread_local)]
    /// The pool whose worker this thread is, as an address; 0: not a worker. A worker keeps its
    /// pool alive.
    static WORKS_FOR: Cell<usize> = Cell::new(0);
}

/// Whether the calling thread is a worker of `pool`.
pub(super) fn works_for<P: Employer>(pool: &P) -> bool {
    WORKS_FOR.with(Cell::get) == std::ptr::from_ref(pool) as usize
}

/// In a forked child: its only thread is not a worker, even if the parent's was one.
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
pub(super) fn forget_worker() {
    WORKS_FOR.with(|works_for| works_for.set(0));
}

/// The pool has counted the worker among those that look for work.
pub(super) fn spawn_worker<P: Employer>(pool: &Arc<P>, number: usize) -> io::Result<()> {
    pool.running().count_in();
    // Outside the thread's body: it is dropped as well when the thread does not start.
    let count_out = CountOut(pool.running().clone());
    let pool = pool.clone();
    spawn(format!("batchqueue-{}-{number}", pool.name()), move || {
        let _count_out = count_out;
        live(pool);
    })
    // Nobody joins a worker: the count tells when it is gone, and the last reference to a pool may
    // be dropped on one.
    .map(drop)
}

/// Takes the pool by value, so that it is gone before the worker is counted out.
#[allow(clippy::needless_pass_by_value)]
fn live<P: Employer>(pool: Arc<P>) {
    WORKS_FOR.with(|works_for| works_for.set(Arc::as_ptr(&pool) as usize));
    let mut worked = false;
    (pool.live())(&mut || {
        worked = true;
        while let Some(turn) = pool.next_turn() {
            run(&*pool, turn);
        }
    });
    if !worked {
        pool.lost_worker();
    }
}

fn run<P: Employer>(pool: &P, turn: Turn) {
    let after = guarded(pool.name(), || turn.step()).unwrap_or(After::Done);
    pool.give_back(&turn, after);
    // If it is done, the task dies here, outside the lock: its end may close this very pool.
    guarded(pool.name(), || drop(turn));
}

/// `None`: it panicked, and the log says so. A worker is never lost to a task.
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
