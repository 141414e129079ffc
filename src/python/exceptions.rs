//! The exceptions of `batchqueue.exceptions`. They are defined in Python, so that they inherit from
//! the built-in exceptions and pickle.

use pyo3::import_exception;

import_exception!(batchqueue.exceptions, BatchQueueError);
import_exception!(batchqueue.exceptions, ConfigError);
import_exception!(batchqueue.exceptions, ProduceTimeoutError);
import_exception!(batchqueue.exceptions, QueueClosedError);
import_exception!(batchqueue.exceptions, QueueForkedError);
import_exception!(batchqueue.exceptions, ReentrantProduceError);
