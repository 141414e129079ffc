//! The exceptions of `batchqueue.exceptions`, which are defined in Python so that they inherit from
//! the built-in exceptions and pickle, and those of futures.

use pyo3::prelude::*;
use pyo3::{PyTypeInfo, import_exception};

import_exception!(batchqueue.exceptions, BatchFailed);
import_exception!(batchqueue.exceptions, BatchQueueError);
import_exception!(batchqueue.exceptions, ConfigError);
import_exception!(batchqueue.exceptions, ProduceTimeoutError);
import_exception!(batchqueue.exceptions, QueueClosedError);
import_exception!(batchqueue.exceptions, QueueForkedError);
import_exception!(batchqueue.exceptions, ReentrantProduceError);
import_exception!(concurrent.futures, CancelledError);
import_exception!(concurrent.futures, InvalidStateError);

/// Imports them all, which otherwise happens when each is raised for the first time.
pub(crate) fn import_all(py: Python<'_>) -> PyResult<()> {
    py.import("batchqueue.exceptions")?;
    py.import("concurrent.futures")?;
    BatchFailed::type_object(py);
    BatchQueueError::type_object(py);
    ConfigError::type_object(py);
    ProduceTimeoutError::type_object(py);
    QueueClosedError::type_object(py);
    QueueForkedError::type_object(py);
    ReentrantProduceError::type_object(py);
    CancelledError::type_object(py);
    InvalidStateError::type_object(py);
    Ok(())
}
