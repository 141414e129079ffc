//! The generation of this process, which distinguishes the objects of a forked child from those
//! that its parent made.
//!
//! The system itself counts the forks, so that a host written in C that forks without the hooks of
//! Python, like uWSGI, is noticed as well. The first use of a queue in the child of such a host
//! runs the hooks: without them, a thread that takes the GIL may wait for one of the parent.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// How many forks lie between this process and the first one: each child adds one. A queue keeps
/// the generation that it was made in, because reading a counter costs less than asking for the
/// process id with every item.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The generation that has forgotten its parent. Locked while attached, and never across a wait, so
/// no fork finds it locked.
static SETTLED: Mutex<u32> = Mutex::new(0);

pub(crate) fn generation() -> u32 {
    // Relaxed: changed only in a child, before it has a second thread.
    GENERATION.load(Ordering::Relaxed)
}

/// The system calls this in each child, before `fork` returns there.
extern "C" fn enter_child() {
    // A signal handler may do as much, and no more is allowed here.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Counts the forks of this process from now on.
pub(crate) fn watch_forks() -> PyResult<()> {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: the function is a static one that only adds to an atomic, and the module is never
    // unloaded. No safe interface exists: to ask for the process id costs 85 ns an item.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(enter_child)) };
    if failed == 0 {
        return Ok(());
    }
    Err(PyOSError::new_err((failed, "cannot count the forks of this process")))
}

/// Calls `forget` if this process is a forked child that has not called it yet. Returns whether it
/// did. `forget` must not detach.
pub(crate) fn settle_in_child(forget: impl FnOnce()) -> bool {
    let mut settled = SETTLED.lock();
    let is_new = *settled != generation();
    if is_new {
        forget();
        *settled = generation();
    }
    is_new
}

/// Does in a forked child what Python does there, for a host that has not.
///
/// Not if the child has threads already, whose states would be freed, nor if a thread that does not
/// exist here holds the import lock. Then only queues are forgotten.
pub(crate) fn run_fork_hooks(py: Python<'_>) -> PyResult<()> {
    let imports = py.import("_imp")?;
    if !is_only_thread() || imports.call_method0("lock_held")?.extract()? {
        return Ok(());
    }
    // Held across each fork by Python, which releases it in the call below.
    imports.call_method0("acquire_lock")?;
    // SAFETY: as the function demands, the calling thread is attached, was attached when the
    // process forked, and is the only one of the child. It has the import lock.
    unsafe { pyo3::ffi::PyOS_AfterFork_Child() }
    Ok(())
}

/// Whether the process has one thread; `false` where the system does not say.
fn is_only_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}
