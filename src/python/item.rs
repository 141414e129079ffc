//! What the core's partitions hold: a Python object and its type.

use pyo3::prelude::*;

use super::call::release;
use crate::{Item, TypeKey};

/// A queued Python object. The type is read once, while attached, so that grouping needs no interpreter.
pub(crate) struct PyItem {
    /// `None` only once it was handed over.
    object: Option<Py<PyAny>>,
    key: usize,
}

impl PyItem {
    pub(crate) fn new(object: Bound<'_, PyAny>) -> Self {
        let key = object.get_type_ptr() as usize;
        Self { object: Some(object.unbind()), key }
    }

    pub(crate) fn get(&self) -> Option<&Py<PyAny>> {
        self.object.as_ref()
    }

    /// Hands the object over, to the list of a batch.
    pub(crate) fn into_object(mut self) -> Option<Py<PyAny>> {
        let object = self.object.take();
        std::mem::forget(self); // There is nothing left to drop, and this is the path of every item.
        object
    }
}

impl Drop for PyItem {
    /// For what never reached a handler: its `__del__` is the user's code.
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            release_unhandled(object);
        }
    }
}

#[cold]
fn release_unhandled(object: Py<PyAny>) {
    Python::try_attach(|py| release(object.into_bound(py)));
}

impl Item for PyItem {
    fn type_key(&self) -> TypeKey {
        TypeKey(self.key)
    }
}
