//! How the partition of an item is found: by the core, or by a Python function.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::key::partition_of;
use crate::python::exceptions::ConfigError;
use crate::python::item::PyItem;
use crate::{BatchQueue, Selector};

/// How the partition of an item is found.
pub(crate) enum PySelector {
    ByType,
    RoundRobin,
    ByKey(Py<PyAny>),
    Custom(Py<PyAny>),
}

impl PySelector {
    /// Translates the facade's `PartitionSelector`.
    pub(crate) fn new(kind: &str, function: Option<Py<PyAny>>) -> Self {
        match (kind, function) {
            ("by_key", Some(key)) => Self::ByKey(key),
            ("custom", Some(select)) => Self::Custom(select),
            ("round_robin", _) => Self::RoundRobin,
            _ => Self::ByType,
        }
    }

    /// The selector as the core sees it.
    pub(crate) fn core(&self) -> Selector {
        match self {
            Self::ByType => Selector::ByType,
            Self::RoundRobin => Selector::RoundRobin,
            Self::ByKey(_) | Self::Custom(_) => Selector::Given,
        }
    }

    /// Whether a Python function chooses the partition of each item.
    pub(crate) fn is_by_caller(&self) -> bool {
        self.core() == Selector::Given
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::ByKey(function) | Self::Custom(function) => visit.call(function),
            Self::ByType | Self::RoundRobin => Ok(()),
        }
    }

    /// The partition that a Python function chooses, or `None` if the core selects it.
    #[inline]
    pub(crate) fn given(
        &self,
        queue: &BatchQueue<PyItem>,
        item: &Bound<'_, PyAny>,
    ) -> PyResult<Option<usize>> {
        match self {
            Self::ByType | Self::RoundRobin => Ok(None),
            Self::ByKey(_) | Self::Custom(_) => self.call(queue, item),
        }
    }

    #[inline(never)]
    fn call(&self, queue: &BatchQueue<PyItem>, item: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        match self {
            Self::ByType | Self::RoundRobin => Ok(None),
            Self::ByKey(key) => {
                partition_of(&key.bind(item.py()).call1((item,))?, queue.partition_count())
                    .map(Some)
            }
            Self::Custom(select) => {
                let count = queue.partition_count();
                let chosen = select.bind(item.py()).call1((item, count))?;
                match chosen.extract::<usize>() {
                    Ok(index) if index < count => Ok(Some(index)),
                    _ => Err(ConfigError::new_err(format!(
                        "the custom selector chose partition {}; it must be an int from 0 to {}",
                        chosen.repr()?,
                        count - 1
                    ))),
                }
            }
        }
    }
}
