//! What the bindings ask of `batchqueue.queues.callbacks` and `batchqueue.base.threads`: log lines,
//! tracebacks and stacks.
//!
//! All of it goes through the guarded call, because log handlers, `__str__` and `__repr__` are the
//! user's code.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::guarded_call::{guarded_call, release};

/// Logs a line to the logger `batchqueue` with `function`, `warn` or `inform`. What its handlers
/// raise is shown on stderr and not passed on.
pub(crate) fn log(function: &str, line: &str) {
    Python::try_attach(|py| {
        let result = py.import("batchqueue.queues.callbacks").and_then(|module| {
            let args = PyTuple::new(py, [line])?;
            guarded_call(&module.getattr(function)?, &args).map(release)
        });
        match result {
            // Ctrl-C came while the line was written. It is for the caller, who checks for signals.
            Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => {
                // SAFETY: any thread may call it, and this one is attached.
                unsafe { pyo3::ffi::PyErr_SetInterrupt() }
            }
            Err(error) => error.write_unraisable(py, None),
            Ok(()) => {}
        }
    });
}

/// The exception with its traceback, as Python would print it.
pub(crate) fn describe_error(py: Python<'_>, error: Bound<'_, PyAny>) -> String {
    let text = py.import("batchqueue.queues.callbacks").and_then(|module| {
        let args = PyTuple::new(py, [&error])?;
        let text = guarded_call(&module.getattr("describe_error")?, &args)?;
        release(args.into_any());
        text.extract()
    });
    release(error);
    text.unwrap_or_else(|cause| format!("an exception that cannot be shown: {cause}"))
}

/// The number by which Python knows the calling thread; 0 if the interpreter finalizes.
pub(crate) fn thread_number() -> u64 {
    let number = |py: Python<'_>| py.import("threading")?.call_method0("get_ident")?.extract();
    Python::try_attach(|py| number(py).unwrap_or(0)).unwrap_or(0)
}

/// What `function` of `batchqueue.base.threads`, `name_of` or `stack_of`, returns about the thread
/// that Python knows by this number. What it raises is shown on stderr.
pub(crate) fn ask_of_thread(function: &str, number: u64) -> Option<String> {
    let ask = |py: Python<'_>| {
        let args = PyTuple::new(py, [number])?;
        let function = py.import("batchqueue.base.threads")?.getattr(function)?;
        guarded_call(&function, &args)?.extract::<Option<String>>()
    };
    Python::try_attach(|py| {
        ask(py).unwrap_or_else(|error| {
            error.write_unraisable(py, None);
            None
        })
    })?
}
