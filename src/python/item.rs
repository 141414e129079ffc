//! What the core's partitions hold: a Python object and its type.

use pyo3::prelude::*;

use crate::{Item, TypeKey};

/// A queued Python object. The type is read once, while attached, so that grouping needs no interpreter.
pub(crate) struct PyItem {
    pub(crate) object: Py<PyAny>,
    key: usize,
}

impl PyItem {
    pub(crate) fn new(object: Bound<'_, PyAny>) -> Self {
        let key = object.get_type_ptr() as usize;
        Self { object: object.unbind(), key }
    }
}

impl Item for PyItem {
    fn type_key(&self) -> TypeKey {
        TypeKey(self.key)
    }
}
