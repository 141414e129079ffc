//! How a caller waits, in slices that it can end.

use std::convert::Infallible;

use crate::sync::{Duration, Instant};

/// What a caller does while it must wait. In Rust it just waits; in Python it lets the interpreter
/// go meanwhile and looks for signals between slices.
pub trait Pause {
    /// Why a pause can end the wait for good.
    type Interrupt;

    /// Calls `wait` with the longest time to wait in one piece; `None` is no limit.
    ///
    /// # Errors
    /// The caller does not want to wait any longer.
    fn pause(
        &mut self,
        wait: &mut (dyn FnMut(Option<Duration>) + Send),
    ) -> Result<(), Self::Interrupt>;
}

/// Just waits.
#[derive(Debug, Default, Clone, Copy)]
pub struct Wait;

impl Pause for Wait {
    type Interrupt = Infallible;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> Result<(), Infallible> {
        wait(None);
        Ok(())
    }
}

/// The shorter of a pause's own slice and the time until `deadline`.
pub(crate) fn slice(limit: Option<Duration>, deadline: Option<Instant>) -> Option<Duration> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    match (limit, left) {
        (Some(limit), Some(left)) => Some(limit.min(left)),
        (limit, left) => limit.or(left),
    }
}
