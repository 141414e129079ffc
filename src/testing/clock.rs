//! A clock that stands still until the test moves it, for what its thread does.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::flow::segments::PutTime;

thread_local! {
    static STOPPED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time on this thread.
pub(crate) fn now() -> Instant {
    STOPPED.get().unwrap_or_else(Instant::now)
}

/// The clock of this thread stands still while this lives.
pub(crate) struct StoppedClock(());

impl StoppedClock {
    pub(crate) fn stop() -> Self {
        // Put times are counted from this, which must not be later than the stopped clock.
        PutTime::start();
        STOPPED.set(Some(Instant::now()));
        Self(())
    }

    #[allow(clippy::unused_self)] // Only a clock that was stopped may be moved.
    pub(crate) fn advance(&self, time: Duration) {
        advance(time);
    }
}

/// For code that the test calls, and that does not have its clock.
pub(crate) fn advance(time: Duration) {
    STOPPED.set(Some(now() + time));
}

impl Drop for StoppedClock {
    fn drop(&mut self) {
        STOPPED.set(None);
    }
}
