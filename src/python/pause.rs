//! How Python callers wait: detached, in slices, with an ear for signals.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::ConfigError;
use crate::Pause;
use crate::faults::{self, Fault};

/// The longest piece of a wait without a look at signals.
const SLICE: Duration = Duration::from_millis(100);

/// Waits detached, in slices, and looks for signals in between.
pub(crate) struct InterpreterPause<'py>(pub(crate) Python<'py>);

impl Pause for InterpreterPause<'_> {
    type Interrupt = PyErr;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> PyResult<()> {
        self.0.detach(|| wait(Some(SLICE)));
        if faults::off(Fault::CheckSignals) {
            return Ok(());
        }
        self.0.check_signals()
    }
}

/// The moment at which `timeout` seconds from now have passed; `None`: never.
#[inline]
pub(crate) fn deadline_of(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    timeout.map_or(Ok(None), deadline_in)
}

#[cold]
fn deadline_in(seconds: f64) -> PyResult<Option<Instant>> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(ConfigError::new_err(format!("timeout is {seconds}; give seconds from 0 up, or None to wait")));
    }
    // Too far away for the clock is never.
    Ok(Duration::try_from_secs_f64(seconds).ok().and_then(|time| Instant::now().checked_add(time)))
}
