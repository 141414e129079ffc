//! The owner word of one partition.

use crate::sync::{AtomicU64, Ordering};

const REVOKED: u64 = 1 << 63;

const TO_SHIFT: u32 = 32;

/// The thread that may take from a partition, and the one that will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This drain thread may take.
    Owned(usize),
    /// `from` takes nothing more. If it is inside, it assigns the partition to `to` when it leaves;
    /// otherwise the mover does so immediately.
    Revoked {
        /// The thread that may be inside.
        from: usize,
        /// The next owner.
        to: usize,
    },
}

impl Owner {
    /// Returns the one drain thread that may be inside the partition.
    pub(crate) fn inside(self) -> usize {
        match self {
            Self::Owned(thread) | Self::Revoked { from: thread, .. } => thread,
        }
    }

    /// Returns the drain thread that owns the partition once any handoff under way has completed.
    pub(crate) fn wanted(self) -> usize {
        match self {
            Self::Owned(thread) | Self::Revoked { to: thread, .. } => thread,
        }
    }

    fn bits(self) -> u64 {
        match self {
            Self::Owned(thread) => thread as u64,
            Self::Revoked { from, to } => REVOKED | (to as u64) << TO_SHIFT | from as u64,
        }
    }

    #[allow(clippy::cast_possible_truncation)] // 31 bits each
    fn of(bits: u64) -> Self {
        let from = (bits & ((1 << TO_SHIFT) - 1)) as usize;
        if bits & REVOKED == 0 {
            Self::Owned(from)
        } else {
            Self::Revoked { from, to: ((bits & !REVOKED) >> TO_SHIFT) as usize }
        }
    }
}

/// The owner of a partition, in one word: bits 0 to 31 hold the thread inside; if bit 63 is set,
/// that thread is revoked, and bits 32 to 62 hold the next owner.
///
/// Written by the control side (revoke, assign) and by the thread that leaves the partition
/// (assign), always by a compare-exchange from the exact value read. Read by producers (which
/// thread to wake) and drain threads (whether to take).
#[derive(Debug)]
pub(crate) struct OwnerWord(AtomicU64);

impl OwnerWord {
    pub(crate) fn owned(thread: usize) -> Self {
        Self(AtomicU64::new(Owner::Owned(thread).bits()))
    }

    pub(crate) fn load(&self) -> Owner {
        // Acquire: pairs with the AcqRel in `exchange`. A thread that reads `Owned(me)` continues
        // from what the previous owner left: `taken` and the lanes.
        Owner::of(self.0.load(Ordering::Acquire))
    }

    /// Changes `seen` into `next`. Returns the current word as an error if another thread changed
    /// it first.
    pub(crate) fn exchange(&self, seen: Owner, next: Owner) -> Result<(), Owner> {
        // AcqRel: Release publishes what the thread inside did; Acquire lets a redirected handoff
        // build on the one before. Acquire on failure: the caller acts on what it reads.
        self.0
            .compare_exchange(seen.bits(), next.bits(), Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
            .map_err(Owner::of)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_owner_word_reads_back_what_was_written() {
        for owner in [
            Owner::Owned(0),
            Owner::Owned(1023),
            Owner::Revoked { from: 1023, to: 0 },
            Owner::Revoked { from: 0, to: 7 },
        ] {
            assert_eq!(Owner::of(owner.bits()), owner);
        }
        let word = OwnerWord::owned(3);
        let revoked = Owner::Revoked { from: 3, to: 5 };
        assert_eq!(word.exchange(Owner::Owned(2), revoked), Err(Owner::Owned(3)));
        assert_eq!(word.exchange(Owner::Owned(3), revoked), Ok(()));
        assert_eq!((word.load().inside(), word.load().wanted()), (3, 5));
    }
}
