//! What the bindings ask of `batchqueue._callbacks`: log lines and tracebacks.
//!
//! All of it goes through the guarded call, because log handlers, `__str__` and `__repr__` are the
//! user's code.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::guarded_call::{guarded_call, release};

/// Logs a line to the logger `batchqueue` with `function`, `warn` or `inform`. What its handlers
/// raise is shown on stderr and not passed on.
pub(crate) fn log(function: &str, line: &str) {
    Python::try_attach(|py| {
        let result = py.import("batchqueue._callbacks").and_then(|module| {
            let args = PyTuple::new(py, [line])?;
            guarded_call(&module.getattr(function)?, &args).map(release)
        });
        if let Err(error) = result {
            error.write_unraisable(py, None);
        }
    });
}

/// The exception with its traceback, as Python would print it.
pub(crate) fn describe_error(py: Python<'_>, error: Bound<'_, PyAny>) -> String {
    let text = py.import("batchqueue._callbacks").and_then(|module| {
        let args = PyTuple::new(py, [&error])?;
        let text = guarded_call(&module.getattr("describe_error")?, &args)?;
        release(args.into_any());
        text.extract()
    });
    release(error);
    text.unwrap_or_else(|cause| format!("an exception that cannot be shown: {cause}"))
}
