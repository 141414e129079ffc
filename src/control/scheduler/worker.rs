//! The life of one worker of a shared pool: turn after turn, inside the pool's host; its last act
//! is to count itself out.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::pool::Pool;
use super::tasks::{After, Turn};
use crate::shared::Running;
use crate::sync::{Arc, spawn, thread_local};

thread_local! {
    // Not `const`: loom's twin has no such form.
    #[allow(clippy::missing_const_for_thread_local)]
    /// The pool whose worker this thread is, as an address; 0: not a worker. A worker keeps its
    /// pool alive.
    static WORKS_FOR: Cell<usize> = Cell::new(0);
}

/// Whether the calling thread is a worker of `pool`.
pub(super) fn works_for(pool: &Pool) -> bool {
    WORKS_FOR.with(Cell::get) == std::ptr::from_ref(pool) as usize
}

/// In a forked child: its only thread is not a worker, even if the parent's was one.
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
pub(super) fn forget_worker() {
    WORKS_FOR.with(|works_for| works_for.set(0));
}

/// Counts a worker out when everything that it held is gone, whatever ended it.
struct CountOut(Arc<Running>);

impl Drop for CountOut {
    fn drop(&mut self) {
        self.0.count_out();
    }
}

/// The pool has counted the worker among those that look for work.
pub(super) fn spawn_worker(pool: &Arc<Pool>, number: usize) -> io::Result<()> {
    pool.running.count_in();
    // Outside the thread's body: it is dropped as well when the thread does not start.
    let count_out = CountOut(pool.running.clone());
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
fn live(pool: Arc<Pool>) {
    WORKS_FOR.with(|works_for| works_for.set(Arc::as_ptr(&pool) as usize));
    let mut worked = false;
    (pool.live)(&mut || {
        worked = true;
        while let Some(turn) = pool.next_turn() {
            run(&pool, turn);
        }
    });
    if !worked {
        pool.lost_worker();
    }
}

fn run(pool: &Pool, turn: Turn) {
    let after = guarded(pool, || turn.step()).unwrap_or(After::Done);
    pool.give_back(&turn, after);
    // If it is done, the task dies here, outside the lock: its end may close this very pool.
    guarded(pool, || drop(turn));
}

/// `None`: it panicked, and the log says so. A worker is never lost to a task.
fn guarded<R>(pool: &Pool, body: impl FnOnce() -> R) -> Option<R> {
    let panic = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => return Some(result),
        Err(panic) => panic,
    };
    let cause = panic.downcast_ref::<&str>().copied();
    let cause = cause
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    log::error!(target: "batchqueue", "pool {}: a task panicked and is given up: {cause}", pool.name());
    None
}
