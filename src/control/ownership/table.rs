//! The owner word of one partition.

use crate::sync::{AtomicUsize, Ordering};

/// Which drain thread may take from a partition: `Owned(thread)`.
///
/// Written when the partition is made, read by producers (whom to wake) and by drain threads (may I take). The word is
/// the drain thread's index.
#[derive(Debug)]
pub(crate) struct OwnerWord(AtomicUsize);

impl OwnerWord {
    pub(crate) fn owned(thread: usize) -> Self {
        Self(AtomicUsize::new(thread))
    }

    /// The one drain thread that may be inside the partition and its handlers.
    pub(crate) fn inside(&self) -> usize {
        // Acquire: the owner continues from what the thread before it left (`completed`); with owners for life there
        // is no thread before, and the partition is published with its route.
        self.0.load(Ordering::Acquire)
    }
}
