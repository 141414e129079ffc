//! How long the oldest item has waited for its call, found without a time for each item: a visit
//! notes how many items were put into a partition so far, and when. If a later visit finds that one
//! of those still waits, it has waited since then, or longer.

use rustc_hash::FxHashMap;

use crate::sync::Instant;

/// What a visit found in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// At least so many items were put before the first that waits.
    pub(super) first: u64,
    /// The items put so far.
    pub(super) pushed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    pushed: u64,
    since: Instant,
}

/// The partitions where items wait.
#[derive(Debug, Default)]
pub(super) struct WaitingItems(FxHashMap<usize, Mark>);

impl WaitingItems {
    /// `found`: what is in the partition now, if items wait there.
    pub(super) fn note(&mut self, partition: usize, found: Option<Found>, now: Instant) {
        let Some(Found { first, pushed }) = found else {
            self.0.remove(&partition);
            return;
        };
        let mark = self.0.entry(partition).or_insert(Mark { pushed, since: now });
        if first >= mark.pushed {
            *mark = Mark { pushed, since: now };
        }
    }

    /// The partition of the oldest item, and since when it waits at least.
    pub(super) fn oldest(&self) -> Option<(usize, Instant)> {
        let oldest = self.0.iter().min_by_key(|(partition, mark)| (mark.since, **partition))?;
        Some((*oldest.0, oldest.1.since))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Duration;

    #[test]
    fn an_item_waits_since_the_visit_that_found_it_first() {
        let (start, mut waiting) = (Instant::now(), WaitingItems::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        waiting.note(3, Some(Found { first: 10, pushed: 12 }), at(1));
        assert_eq!(waiting.oldest(), Some((3, at(1))));
        // The last of the two still waits, behind nothing.
        waiting.note(3, Some(Found { first: 11, pushed: 500 }), at(2));
        assert_eq!(waiting.oldest(), Some((3, at(1))));
        // All that waited is called: the rest may be as old as this visit.
        waiting.note(3, Some(Found { first: 12, pushed: 600 }), at(3));
        assert_eq!(waiting.oldest(), Some((3, at(3))));
        waiting.note(4, Some(Found { first: 0, pushed: 1 }), at(4));
        assert_eq!(waiting.oldest(), Some((3, at(3))));
        waiting.note(3, None, at(5));
        assert_eq!(waiting.oldest(), Some((4, at(4))));
        waiting.note(4, None, at(6));
        assert_eq!(waiting.oldest(), None);
    }
}
