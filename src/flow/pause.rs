//! How a caller waits: in slices, between which it can give up.

use std::convert::Infallible;

use crate::sync::{Duration, Instant};

/// What a caller does while it waits. In Rust it just waits; in Python it releases the interpreter
/// meanwhile and checks for signals between slices.
pub trait Pause {
    /// Why a pause may end the wait for good.
    type Interrupt;

    /// Calls `wait` with the length of one slice; `None` means no limit.
    ///
    /// # Errors
    /// The caller gives up waiting.
    fn pause(
        &mut self,
        wait: &mut (dyn FnMut(Option<Duration>) + Send),
    ) -> Result<(), Self::Interrupt>;
}

/// Waits without slices or interrupts.
#[derive(Debug, Default, Clone, Copy)]
pub struct Wait;

impl Pause for Wait {
    type Interrupt = Infallible;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> Result<(), Infallible> {
        wait(None);
        Ok(())
    }
}

/// The shorter of a pause's slice and the time until `deadline`.
pub(crate) fn slice(limit: Option<Duration>, deadline: Option<Instant>) -> Option<Duration> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    shorter(limit, left)
}

/// The shorter of two limits; `None` means no limit.
pub(crate) fn shorter(first: Option<Duration>, second: Option<Duration>) -> Option<Duration> {
    match (first, second) {
        (Some(first), Some(second)) => Some(first.min(second)),
        (first, second) => first.or(second),
    }
}
