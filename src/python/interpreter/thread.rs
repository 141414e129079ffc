//! How a native thread becomes one of Python's: its work runs inside a call of
//! `batchqueue.base.threads.run`, which gives it a name and the hooks of debuggers and profilers.
//! Its stack is as large as that of a thread that Python starts.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustix::process::{Resource, getrlimit};

use super::guarded_call::{guarded_call, release};
use crate::control::scheduler::ThreadBody;
use crate::sync::set_stack_size;

/// The least stack of a thread, unless the user asks for less: where the limit of the process is
/// smaller, or there is none, Python's own threads get at least so much on most systems.
const LEAST_STACK: usize = 8 << 20;

/// Gives the threads that start from now on the stack of a `threading.Thread`, so that a handler
/// may call what it may call there.
///
/// That is `threading.stack_size()` if it is set, or else the soft limit of the process. The
/// environment variable `RUST_MIN_STACK` makes it larger.
pub(crate) fn use_stacks_of_python(py: Python<'_>) -> PyResult<()> {
    let asked: usize = py.import("threading")?.call_method0("stack_size")?.extract()?;
    let size = if asked > 0 {
        asked
    } else {
        let limit = getrlimit(Resource::Stack).current;
        limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0).max(LEAST_STACK)
    };
    let least = std::env::var("RUST_MIN_STACK").ok().and_then(|bytes| bytes.parse().ok());
    set_stack_size(size.max(least.unwrap_or(0)));
    Ok(())
}

/// Runs the work of the calling thread, unless the interpreter finalizes.
pub(crate) fn run_thread(body: ThreadBody) {
    let work = Arc::new(Work { body: Mutex::new(Some(body)), panic: Mutex::new(None) });
    Python::try_attach(|py| {
        let name = std::thread::current().name().unwrap_or("batchqueue").to_owned();
        let ran = py.import("batchqueue.base.threads").and_then(|module| {
            let args = PyTuple::new(
                py,
                [
                    name.into_pyobject(py)?.into_any(),
                    Bound::new(py, ThreadWork(work.clone()))?.into_any(),
                ],
            )?;
            let ran = guarded_call(&module.getattr("run")?, &args);
            release(args.into_any());
            ran.map(release)
        });
        if let Err(error) = ran {
            error.write_unraisable(py, None);
        }
        // A hook of the user raised, or there is no memory: the work is done all the same.
        py.detach(|| work.run());
    });
    let panic = work.panic.lock().take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

struct Work {
    /// `None` once it is begun.
    body: Mutex<Option<ThreadBody>>,
    /// What the body panicked with: it must not pass through the frames of Python.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Work {
    fn run(&self) {
        let Some(body) = self.body.lock().take() else { return };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            *self.panic.lock() = Some(panic);
        }
    }
}

/// Makes the class that the first thread would make.
pub(crate) fn prepare_threads(py: Python<'_>) {
    ThreadWork::type_object(py);
}

/// The work as `batchqueue.base.threads.run` calls it.
#[pyclass(frozen)]
struct ThreadWork(Arc<Work>);

#[pymethods]
impl ThreadWork {
    fn __call__(&self, py: Python<'_>) {
        py.detach(|| self.0.run());
    }
}
