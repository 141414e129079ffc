//! How a Python caller waits: detached, in slices, checking for signals in between.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::timeout::Timeout;
use crate::Pause;
use crate::python::exceptions::{BatchQueueError, ConfigError};

/// The longest wait without a check for signals.
const SLICE: Duration = Duration::from_millis(100);

/// Waits detached, in slices, and checks for signals in between.
pub(crate) struct InterpreterPause<'py>(pub(crate) Python<'py>);

impl Pause for InterpreterPause<'_> {
    type Interrupt = PyErr;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> PyResult<()> {
        self.0.detach(|| wait(Some(SLICE)));
        self.0.check_signals()
    }
}

/// Waits detached, in slices, until a `threading.Event` is set.
pub(crate) struct StoppablePause<'a, 'py>(pub(crate) &'a Bound<'py, PyAny>);

impl Pause for StoppablePause<'_, '_> {
    type Interrupt = PyErr;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> PyResult<()> {
        self.0.py().detach(|| wait(Some(SLICE)));
        self.check()
    }
}

impl StoppablePause<'_, '_> {
    /// Raises an error if the event is set.
    pub(crate) fn check(&self) -> PyResult<()> {
        if self.0.call_method0("is_set")?.is_truthy()? {
            return Err(BatchQueueError::new_err("the wait was cancelled"));
        }
        Ok(())
    }
}

/// Does not wait.
pub(crate) struct NoPause;

impl Pause for NoPause {
    type Interrupt = ();

    fn pause(&mut self, _wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> Result<(), ()> {
        Err(())
    }
}

/// The moment `timeout` seconds from now; `None` for no deadline.
#[inline]
pub(crate) fn deadline_of(timeout: Option<Timeout>) -> PyResult<Option<Instant>> {
    timeout.map_or(Ok(None), |Timeout(seconds)| deadline_in(seconds))
}

#[cold]
fn deadline_in(seconds: f64) -> PyResult<Option<Instant>> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(ConfigError::new_err(format!(
            "timeout is {seconds}; give seconds from 0 up, or None to wait"
        )));
    }
    // A moment beyond the range of the clock means no deadline.
    Ok(Duration::try_from_secs_f64(seconds).ok().and_then(|time| Instant::now().checked_add(time)))
}
