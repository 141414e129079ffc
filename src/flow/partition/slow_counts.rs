//! The counts of puts that do not succeed immediately.

use crate::sync::{AtomicU64, Ordering};

/// Whether a put counts as a new attempt, or continues one that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    New,
    Again,
}

/// The counts of puts that do not succeed immediately. Accessed under the partition's gate.
#[derive(Debug, Default)]
pub(super) struct SlowCounts {
    refused: AtomicU64,
    /// Puts that did not succeed immediately.
    delayed: AtomicU64,
    /// Those of them that succeeded in the end.
    delayed_pushed: AtomicU64,
}

impl SlowCounts {
    /// Counts `delayed` items of a new put that does not succeed immediately, or `put` items of a
    /// delayed put that have now succeeded.
    pub(super) fn count(&self, attempt: Attempt, delayed: usize, put: usize) {
        match attempt {
            Attempt::New => add(&self.delayed, delayed),
            Attempt::Again => add(&self.delayed_pushed, put),
        }
    }

    pub(super) fn refuse(&self, items: usize) {
        add(&self.refused, items);
    }

    pub(super) fn refused(&self) -> u64 {
        // Relaxed: under the gate.
        self.refused.load(Ordering::Relaxed)
    }

    /// Attempts so far, given the number of items put.
    pub(super) fn attempts(&self, pushed: u64) -> u64 {
        // Relaxed: under the gate.
        pushed - self.delayed_pushed.load(Ordering::Relaxed) + self.delayed.load(Ordering::Relaxed)
    }
}

/// Adds under the gate, which makes a read-modify-write unnecessary.
fn add(count: &AtomicU64, items: usize) {
    // Relaxed: written and read under the gate.
    count.store(count.load(Ordering::Relaxed) + items as u64, Ordering::Relaxed);
}
