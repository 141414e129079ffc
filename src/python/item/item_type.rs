//! What a handler is registered for: a class, or a tag of rows.

use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::TypeKey;
use crate::arrow::Tags;
use crate::python::exceptions::ConfigError;

/// What a handler is registered for.
pub(crate) enum ItemType<'py> {
    Class(Bound<'py, PyType>),
    /// The value of a type column in Arrow data.
    Tag(String, Bound<'py, PyAny>),
}

impl<'py> ItemType<'py> {
    pub(crate) fn object(&self) -> &Bound<'py, PyAny> {
        match self {
            Self::Class(class) => class,
            Self::Tag(_, object) => object,
        }
    }

    pub(crate) fn tag(&self) -> Option<&str> {
        match self {
            Self::Class(_) => None,
            Self::Tag(tag, _) => Some(tag),
        }
    }

    pub(crate) fn name(&self) -> PyResult<String> {
        match self {
            Self::Class(class) => Ok(class.qualname()?.to_string()),
            Self::Tag(tag, _) => Ok(format!("{tag:?}")),
        }
    }

    /// The key, or [`Tags::UNKNOWN`] for a tag that is not registered.
    pub(crate) fn known_to(&self, tags: &Tags) -> TypeKey {
        match self {
            Self::Class(class) => TypeKey(class.as_ptr() as usize),
            Self::Tag(tag, _) => tags.key(tag),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for ItemType<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(class) = object.cast::<PyType>() {
            return Ok(Self::Class(class.to_owned()));
        }
        match object.extract() {
            Ok(tag) => Ok(Self::Tag(tag, object.to_owned())),
            Err(_) => Err(ConfigError::new_err(format!(
                "item_type is {}; give a class, or a str for the rows of Arrow batches with that \
                 tag",
                object.repr()?
            ))),
        }
    }
}
