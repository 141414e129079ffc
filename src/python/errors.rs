//! The errors of the core as exceptions of Python.

use std::fmt::Display;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use super::exceptions::{
    BatchQueueError, ConfigError, ProduceTimeoutError, QueueClosedError, QueueForkedError,
    ReentrantProduceError,
};
use crate::arrow::aggregate::AggregateError;
use crate::{FlushError, ProduceError};

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

/// A refusal as an exception, or `None` if the return value of the call reports it.
pub(crate) fn refused<T, E: Into<PyErr> + Display>(
    py: Python<'_>,
    refusal: ProduceError<T, E>,
    accepted: usize,
) -> Option<PyErr> {
    let text = match &refusal {
        ProduceError::Full(_) | ProduceError::Closed(_) => return None,
        other => other.to_string(),
    };
    Some(match refusal {
        ProduceError::TimedOut { .. } => ProduceTimeoutError::new_err((text, accepted)),
        ProduceError::Interrupted(_, interrupt) => {
            let interrupt = interrupt.into();
            // An exception that refuses attributes is still the one to raise.
            let _ = interrupt.value(py).setattr("accepted", accepted);
            interrupt
        }
        _ => {
            let reentrant = ReentrantProduceError::new_err(text);
            let _ = reentrant.value(py).setattr("accepted", accepted);
            reentrant
        }
    })
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
