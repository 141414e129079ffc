//! Whether calls and waits are measured. Always, but for the bench that shows what that costs, and
//! in loom, which has no clock.

#[cfg(not(loom))]
use crate::sync::{AtomicBool, Ordering};

#[cfg(not(loom))]
static IS_ON: AtomicBool = AtomicBool::new(true);

#[cfg(not(loom))]
#[inline]
pub(crate) fn measures() -> bool {
    // Relaxed: nothing depends on when it is seen.
    IS_ON.load(Ordering::Relaxed)
}

#[cfg(loom)]
pub(crate) fn measures() -> bool {
    false
}

/// Switches the histograms and ages of all queues of the process off, or on again.
#[doc(hidden)]
#[cfg(not(loom))]
pub fn measure(on: bool) {
    // Relaxed: as in `measures`.
    IS_ON.store(on, Ordering::Relaxed);
}
