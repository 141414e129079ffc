//! The errors of the core as exceptions of Python.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use super::exceptions::{BatchQueueError, ConfigError, QueueClosedError, QueueForkedError};
use crate::FlushError;
use crate::arrow::aggregate::AggregateError;

impl From<crate::ConfigError> for PyErr {
    fn from(error: crate::ConfigError) -> Self {
        ConfigError::new_err(error.to_string())
    }
}

impl From<AggregateError> for PyErr {
    fn from(error: AggregateError) -> Self {
        let text = error.to_string();
        match error {
            AggregateError::Overflow { .. } => PyOverflowError::new_err(text),
            AggregateError::TooManyGroups { .. }
            | AggregateError::TooLarge
            | AggregateError::Arrow(_) => BatchQueueError::new_err(text),
            AggregateError::NoColumn { .. }
            | AggregateError::Type { .. }
            | AggregateError::Partials(_) => ConfigError::new_err(text),
        }
    }
}

pub(crate) fn forked() -> PyErr {
    QueueForkedError::new_err(
        "this queue was made before a fork and its drain threads stayed in the parent process; \
         make a new BatchQueue in the child",
    )
}

pub(crate) fn too_late(name: &str) -> PyErr {
    QueueClosedError::new_err(format!(
        "queue {name:?} cannot start while the interpreter exits: nothing would close it; make it \
         earlier"
    ))
}

pub(crate) fn flushed(result: Result<bool, FlushError<PyErr>>) -> PyResult<bool> {
    result.map_err(|error| match error {
        FlushError::Interrupted(interrupt) => interrupt,
        FlushError::FromDrainThread => BatchQueueError::new_err(
            "flush was called from a drain thread, which would wait for itself; call it from \
             another thread",
        ),
    })
}
