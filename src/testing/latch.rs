//! A latch that opens once, with and without loom.

use crate::sync::{Condvar, Deadline, Duration, Mutex, wait_for};

/// The longest wait of a test. Only a failing test waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A latch that opens once.
pub(crate) struct Latch(Mutex<bool>, Condvar);

impl Default for Latch {
    fn default() -> Self {
        Self(Mutex::new(false), Condvar::new())
    }
}

impl Latch {
    pub(crate) fn open(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }

    #[cfg(not(loom))]
    pub(crate) fn is_open(&self) -> bool {
        *self.0.lock()
    }

    pub(crate) fn wait(&self) {
        let patience = Deadline::after(PATIENCE);
        let mut open = self.0.lock();
        while !*open {
            let left = patience.time_left().expect("the latch opens in time");
            open = wait_for(&self.1, open, Some(left));
        }
    }
}
