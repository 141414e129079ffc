//! Calls into Python code that survive the end of the interpreter.
//!
//! A handler that still runs when the interpreter finalizes loses its thread: before Python 3.14,
//! the next step that needs the interpreter ends the thread by a forced unwind. Rust frames abort
//! the process on that. Here the unwind meets a guard, which parks the thread forever, as Python
//! 3.14 does itself; the process then ends normally. So on a drain thread everything that may run
//! the user's Python code goes through this file: calls, and the release of objects whose
//! `__del__` may be the user's.

use std::ops::Deref;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

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

        /// As above.
        pub(super) fn Py_DecRef(object: *mut ffi::PyObject);
    }
}

/// Read as volatile before each call: where the compiler knows which function it calls, it trusts
/// the other declaration, that nothing unwinds, and drops the guard.
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

/// Calls `callable(*args)`.
pub(crate) fn guarded_call<'py>(
    callable: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let guard = HangThread;
    // SAFETY: `CALL` is a static function pointer. `callable` and `args` are live objects of this
    // interpreter and `args` is a tuple, for as long as the borrows last; the thread is attached,
    // as the `Bound`s prove. Null `kwargs` are allowed.
    let result = unsafe {
        let call = std::ptr::read_volatile(&raw const CALL);
        call(callable.as_ptr(), args.as_ptr(), std::ptr::null_mut())
    };
    // Before anything that may panic: the guard is for a forced unwind out of the call only.
    std::mem::forget(guard);
    // SAFETY: the result is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), result) }
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
