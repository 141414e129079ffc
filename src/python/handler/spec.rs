//! A handler to register, as the facade describes it.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::python::aggregating::Aggregating;
use crate::python::aggregator::aggregating_of;
use crate::python::config::RetrySettings;

/// A handler's methods, in the order of the facade's `HandlerMethods`.
pub(crate) type HandlerMethods<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Py<PyAny>,
    Option<Py<PyAny>>,
    Option<Py<PyAny>>,
    Option<Py<PyAny>>,
    bool,
    Option<Py<PyAny>>,
);

/// A handler to register, with all that is read from its attributes.
pub(super) struct HandlerSpec<'py> {
    pub(super) methods: HandlerMethods<'py>,
    pub(super) name: String,
    pub(super) aggregating: Option<Arc<Aggregating>>,
}

impl<'py> HandlerSpec<'py> {
    pub(super) fn new(methods: HandlerMethods<'py>) -> PyResult<Self> {
        let (name, aggregating) = (name_of(&methods.0)?, aggregating_of(&methods.0)?);
        Ok(Self { methods, name, aggregating })
    }

    pub(super) fn address(&self) -> usize {
        self.methods.0.as_ptr() as usize
    }

    /// Called before the registry is locked: reading an attribute may run Python code.
    pub(super) fn all(methods: Vec<HandlerMethods<'py>>) -> PyResult<Vec<Self>> {
        methods.into_iter().map(Self::new).collect()
    }
}

/// The facade's `HandlerOptions`: the settings of one type.
#[derive(FromPyObject)]
pub(crate) struct HandlerOptions<'py> {
    pub(super) weight: f64,
    pub(super) max_batch_items: Option<usize>,
    pub(super) max_delay_ms: Option<f64>,
    pub(super) retry: Option<RetrySettings>,
    pub(super) dead_letter: Option<HandlerMethods<'py>>,
    pub(super) replace: bool,
    pub(super) subclasses: bool,
}

/// The name of a function, or of an object's class.
fn name_of(instance: &Bound<'_, PyAny>) -> PyResult<String> {
    let own = instance.getattr("__qualname__").and_then(|name| name.extract());
    own.or_else(|_| instance.get_type().qualname()?.extract())
}
