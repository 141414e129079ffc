//! Timeouts as callers give them: seconds, or a `timedelta`.

use pyo3::inspect::PyStaticExpr;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat};
use pyo3::{type_hint_identifier, type_hint_union};

use crate::python::errors::type_with_article;
use crate::python::exceptions::ConfigError;

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
    // Of a timedelta.
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
