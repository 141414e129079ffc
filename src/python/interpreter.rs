//! Calls into the interpreter, waits outside it, and forks of its process.

use std::any::Any;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError};
use pyo3::inspect::PyStaticExpr;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyFloat, PyTuple};
use pyo3::{PyTypeInfo, ffi, type_hint_identifier, type_hint_union};
use rustix::process::{Resource, getrlimit};

use crate::python::errors::{BatchQueueError, ConfigError, type_with_article};
use crate::sync::set_stack_size;
use crate::threads::pool::ThreadBody;
use crate::threads::waits::Pause;

// Waits of Python callers: detached, in slices, with checks for signals in between.

/// The longest wait without a check for signals.
const SLICE: Duration = Duration::from_millis(100);

/// Waits detached, in slices, and checks for signals in between.
pub(crate) struct InterpreterPause<'py>(pub(crate) Python<'py>);

impl Pause for InterpreterPause<'_> {
    type Interrupt = PyErr;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> PyResult<()> {
        self.0.detach(|| wait(Some(SLICE)));
        self.0.check_signals()
    }
}

/// Waits detached, in slices, until a `threading.Event` is set.
pub(crate) struct StoppablePause<'a, 'py>(pub(crate) &'a Bound<'py, PyAny>);

impl Pause for StoppablePause<'_, '_> {
    type Interrupt = PyErr;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> PyResult<()> {
        self.0.py().detach(|| wait(Some(SLICE)));
        self.check()
    }
}

impl StoppablePause<'_, '_> {
    /// Raises an error if the event is set.
    pub(crate) fn check(&self) -> PyResult<()> {
        if self.0.call_method0("is_set")?.is_truthy()? {
            return Err(BatchQueueError::new_err("the wait was cancelled"));
        }
        Ok(())
    }
}

/// Does not wait.
pub(crate) struct NoPause;

impl Pause for NoPause {
    type Interrupt = ();

    fn pause(&mut self, _wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> Result<(), ()> {
        Err(())
    }
}

/// Returns the moment `timeout` seconds from now, or `None` for no deadline.
#[inline]
pub(crate) fn deadline_of(timeout: Option<Timeout>) -> PyResult<Option<Instant>> {
    timeout.map_or(Ok(None), |Timeout(seconds)| deadline_in(seconds))
}

#[cold]
fn deadline_in(seconds: f64) -> PyResult<Option<Instant>> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(ConfigError::new_err(format!(
            "timeout is {seconds}; give seconds from 0 up, or None to wait"
        )));
    }
    // A moment beyond the range of the clock means no deadline.
    Ok(Duration::try_from_secs_f64(seconds).ok().and_then(|time| Instant::now().checked_add(time)))
}

// Timeouts as callers give them: seconds, or a `timedelta`.

/// Seconds that a call may wait.
#[derive(Clone, Copy)]
pub(crate) struct Timeout(pub(crate) f64);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    const INPUT_TYPE: PyStaticExpr =
        type_hint_union!(f64::INPUT_TYPE, type_hint_identifier!("datetime", "timedelta"));

    #[inline]
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyFloat>() {
            Ok(seconds) => Ok(Self(seconds.value())),
            Err(_) => other(&object),
        }
    }
}

#[cold]
fn other(object: &Bound<'_, PyAny>) -> PyResult<Timeout> {
    let number = if object.is_instance_of::<PyBool>() { None } else { object.extract().ok() };
    // A `timedelta` has this method.
    let seconds = || object.call_method0("total_seconds").ok()?.extract().ok();
    match number.or_else(seconds) {
        Some(seconds) => Ok(Timeout(seconds)),
        None => Err(ConfigError::new_err(format!(
            "timeout is {}, {}; give seconds from 0 up, a timedelta, or None to wait",
            object.repr()?,
            type_with_article(object)
        ))),
    }
}

// Calls into Python code that survive the end of the interpreter.
//
// A handler that still runs when the interpreter finalizes loses its thread: before Python 3.14,
// the next step that needs the interpreter ends the thread by a forced unwind. Rust frames abort
// the process on that. Here the unwind meets a guard, which parks the thread forever, as Python
// 3.14 does itself; the process then ends normally. So on a drain thread everything that may run
// the user's Python code goes through this file: calls, and the release of objects whose
// `__del__` may be the user's.

type Call = unsafe extern "C-unwind" fn(
    *mut ffi::PyObject,
    *mut ffi::PyObject,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

type Release = unsafe extern "C-unwind" fn(*mut ffi::PyObject);

mod libpython {
    use super::ffi;

    unsafe extern "C-unwind" {
        /// The function of the stable ABI; declared once more because it can unwind, which
        /// `pyo3::ffi` does not say.
        pub(super) fn PyObject_Call(
            callable: *mut ffi::PyObject,
            args: *mut ffi::PyObject,
            kwargs: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject;

        /// Declared again for the same reason.
        pub(super) fn Py_DecRef(object: *mut ffi::PyObject);
    }
}

/// Read as volatile before each call: a compiler that knows which function is called trusts the
/// other declaration, by which nothing unwinds, and drops the guard.
static CALL: Call = libpython::PyObject_Call;

static RELEASE: Release = libpython::Py_DecRef;

/// Parks the thread forever when it is dropped.
struct HangThread;

impl Drop for HangThread {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// The arguments of a call: a tuple, of Rust or of Python.
pub(crate) trait Args<'py>:
    IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>
{
}

impl<'py, A> Args<'py> for A where
    A: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>
{
}

/// Calls `callable(*args)`.
pub(crate) fn guarded_call<'py>(
    callable: &Bound<'py, PyAny>,
    args: impl Args<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let args = args.into_pyobject(callable.py()).map_err(Into::into)?;
    let guard = HangThread;
    // SAFETY: `CALL` is a static function pointer. `callable` and `args` are objects of this
    // interpreter that live until after the call, and `args` is a tuple; the thread is attached, as
    // the `Bound`s prove. Null `kwargs` are allowed.
    let result = unsafe {
        let call = std::ptr::read_volatile(&raw const CALL);
        call(callable.as_ptr(), args.as_ptr(), std::ptr::null_mut())
    };
    // Before anything that may panic: the guard is for a forced unwind out of the call only.
    std::mem::forget(guard);
    // SAFETY: the result is a new reference, or null with an exception set.
    let result = unsafe { Bound::from_owned_ptr_or_err(callable.py(), result) };
    release(args.into_any());
    result
}

/// Drops a reference, perhaps the last one.
pub(crate) fn release(object: Bound<'_, PyAny>) {
    let object = object.into_ptr();
    let guard = HangThread;
    // SAFETY: `into_ptr` gave this function the reference that it drops, and the thread is
    // attached, as the `Bound` proved.
    unsafe {
        let release = std::ptr::read_volatile(&raw const RELEASE);
        release(object);
    }
    std::mem::forget(guard);
}

/// A reference to the user's object that is released through the guard, wherever it is dropped.
pub(crate) struct GuardedRef(Option<Py<PyAny>>);

impl GuardedRef {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self(Some(object))
    }
}

impl Deref for GuardedRef {
    type Target = Py<PyAny>;

    fn deref(&self) -> &Py<PyAny> {
        match &self.0 {
            Some(object) => object,
            None => unreachable!("only the drop takes it"),
        }
    }
}

impl Drop for GuardedRef {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            Python::try_attach(|py| release(object.into_bound(py)));
        }
    }
}

// Calls of `batchqueue.queues.callbacks` and `batchqueue.base.threads`: log lines, tracebacks and
// stacks.
//
// They all go through the guarded call, because log handlers, `__str__` and `__repr__` are the
// user's code.

pub(crate) const CALLBACKS: &str = "batchqueue.queues.callbacks";

const THREADS: &str = "batchqueue.base.threads";

/// Calls a function of a module of the package.
pub(crate) fn call_in<'py>(
    py: Python<'py>,
    module: &str,
    function: &str,
    args: impl Args<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded_call(&py.import(module)?.getattr(function)?, args)
}

/// Logs a line to the logger `batchqueue` with `function`, `warn` or `inform`. Exceptions of its
/// handlers are printed to stderr and not propagated.
pub(crate) fn log(function: &str, line: &str) {
    Python::try_attach(|py| {
        match call_in(py, CALLBACKS, function, (line,)).map(release) {
            // Ctrl-C arrived while the line was written. It is for the caller, who checks for
            // signals.
            Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => {
                // SAFETY: any thread may call it, and this one is attached.
                unsafe { pyo3::ffi::PyErr_SetInterrupt() }
            }
            Err(error) => error.write_unraisable(py, None),
            Ok(()) => {}
        }
    });
}

/// Returns the object of an exception.
pub(crate) fn error_value(py: Python<'_>, error: PyErr) -> Bound<'_, PyAny> {
    error.into_value(py).into_bound(py).into_any()
}

/// Formats an exception with its traceback, as Python would print it.
pub(crate) fn describe_error(py: Python<'_>, error: PyErr) -> String {
    let error = error_value(py, error);
    let text = call_in(py, CALLBACKS, "describe_error", (&error,));
    let text = text.and_then(|text| text.extract());
    release(error);
    text.unwrap_or_else(|cause| format!("an exception that cannot be shown: {cause}"))
}

/// Returns the number by which Python knows the calling thread, or 0 if the interpreter finalizes.
pub(crate) fn thread_number() -> u64 {
    let number = |py: Python<'_>| py.import("threading")?.call_method0("get_ident")?.extract();
    Python::try_attach(|py| number(py).unwrap_or(0)).unwrap_or(0)
}

/// Calls `function` of `batchqueue.base.threads`, `name_of` or `stack_of`, for the thread that
/// Python knows by this number. Exceptions are printed to stderr.
pub(crate) fn ask_of_thread(function: &str, number: u64) -> Option<String> {
    Python::try_attach(|py| {
        let answer = call_in(py, THREADS, function, (number,)).and_then(|answer| answer.extract());
        answer.unwrap_or_else(|error: PyErr| {
            error.write_unraisable(py, None);
            None
        })
    })?
}

/// Whether the interpreter runs one thread at a time; determined when the package is imported.
pub(crate) fn has_gil(py: Python<'_>) -> bool {
    static HAS_GIL: PyOnceLock<bool> = PyOnceLock::new();
    let is_enabled =
        || py.import("sys").and_then(|sys| sys.getattr("_is_gil_enabled")?.call0()?.extract());
    // A Python without `sys._is_gil_enabled` always has a GIL.
    *HAS_GIL.get_or_init(py, || is_enabled().unwrap_or(true))
}

// Makes a native thread one of Python's: its work runs inside a call of
// `batchqueue.base.threads.run`, which gives it a name and the hooks of debuggers and profilers.
// Its stack is as large as that of a thread that Python starts.

/// The minimum stack of a thread, unless the user asks for less. Where the process has a smaller
/// limit or none, Python's own threads still get at least this much on most systems.
const LEAST_STACK: usize = 8 << 20;

/// Gives the threads that start from now on the stack size of a `threading.Thread`, so that a
/// handler can make the same calls as there.
///
/// This is `threading.stack_size()` if set, or else the soft limit of the process. The environment
/// variable `RUST_MIN_STACK` can raise it.
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

/// Runs the work of the calling thread, unless the interpreter is finalizing.
pub(crate) fn run_thread(body: ThreadBody) {
    let work = Arc::new(Work { body: Mutex::new(Some(body)), panic: Mutex::new(None) });
    Python::try_attach(|py| {
        let name = std::thread::current().name().unwrap_or("batchqueue").to_owned();
        match call_in(py, THREADS, "run", (name, ThreadWork(work.clone()))) {
            Ok(nothing) => release(nothing),
            Err(error) => error.write_unraisable(py, None),
        }
        // A user's hook raised, or memory ran out: the work is done all the same.
        py.detach(|| work.run());
    });
    let panic = work.panic.lock().take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

struct Work {
    /// `None` once the work has begun.
    body: Mutex<Option<ThreadBody>>,
    /// The payload of the body's panic, which must not pass through Python's frames.
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

/// Creates the type of `ThreadWork`, which the first thread would create otherwise.
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

// The generation of this process, which distinguishes the objects of a forked child from those
// that its parent made.
//
// The system itself counts the forks, so that those of a C host that bypasses Python's hooks, like
// uWSGI, are noticed as well. The first use of a queue in the child of such a host runs the hooks:
// without them, a thread that takes the GIL may wait for a thread of the parent.

/// The number of forks between the first process and this one; each child adds one. A queue keeps
/// the generation in which it was created, because reading a counter costs less than asking for the
/// process id with every item.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The generation that has forgotten its parent. Locked while attached, and never across a wait, so
/// no fork finds it locked.
static SETTLED: Mutex<u32> = Mutex::new(0);

pub(crate) fn generation() -> u32 {
    // Relaxed: changed only in a child, before it has a second thread.
    GENERATION.load(Ordering::Relaxed)
}

/// Counts a fork. The system calls this in each child, before `fork` returns there.
extern "C" fn enter_child() {
    // Only what a signal handler may do is allowed here.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Count the forks of this process from now on.
#[pyfunction]
pub(crate) fn watch_forks() -> PyResult<()> {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: the function is a static one that only adds to an atomic, and the module is never
    // unloaded. No safe interface exists: asking for the process id costs 85 ns per item.
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

/// Runs Python's fork hooks in a forked child whose host has not.
///
/// Does nothing if the child already has threads, whose states would be freed, or if a thread that
/// does not exist here holds the import lock. Then only queues are forgotten.
pub(crate) fn run_fork_hooks(py: Python<'_>) -> PyResult<()> {
    let imports = py.import("_imp")?;
    if !is_only_thread() || imports.call_method0("lock_held")?.extract()? {
        return Ok(());
    }
    // Python holds this lock across each fork, and releases it in the call below.
    imports.call_method0("acquire_lock")?;
    // SAFETY: as the function demands, the calling thread is attached, was attached when the
    // process forked, and is the only one of the child. It has the import lock.
    unsafe { pyo3::ffi::PyOS_AfterFork_Child() }
    Ok(())
}

/// Whether the process has a single thread; `false` if the system does not say.
fn is_only_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}
