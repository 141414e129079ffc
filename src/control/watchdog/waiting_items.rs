//! Since when the oldest item waits for its call, also one that a call has had and that waits for
//! its next try. For those the partition knows no time, so a visit notes how many items were put so
//! far. If a later visit finds that one of them still waits, it waits since then at least.

use rustc_hash::FxHashMap;

use crate::flow::partition::counts::Waiting;
use crate::sync::Instant;

#[derive(Debug, Clone, Copy)]
struct Mark {
    pushed: u64,
    since: Instant,
}

/// The partitions where items wait.
#[derive(Debug, Default)]
pub(super) struct WaitingItems(FxHashMap<usize, Mark>);

impl WaitingItems {
    /// `found`: what waits in the partition now.
    pub(super) fn note(&mut self, partition: usize, found: Option<Waiting>, now: Instant) {
        let Some(Waiting { first, pushed, put }) = found else {
            self.0.remove(&partition);
            return;
        };
        let new = Mark { pushed, since: put.map_or(now, |put| put.min(now)) };
        let mark = self.0.entry(partition).or_insert(new);
        if first >= mark.pushed {
            *mark = new;
        }
    }

    /// The partition of the oldest item, and since when it waits.
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
    fn an_item_waits_since_it_was_put_or_else_since_the_first_visit_that_found_it() {
        let (start, mut waiting) = (Instant::now(), WaitingItems::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let found = |first, pushed, put| Some(Waiting { first, pushed, put });
        waiting.note(3, found(10, 12, None), at(1));
        assert_eq!(waiting.oldest(), Some((3, at(1))));
        // The last of the two still waits, behind nothing.
        waiting.note(3, found(11, 500, None), at(2));
        assert_eq!(waiting.oldest(), Some((3, at(1))));
        // All that waited is called: the rest may be as old as this visit, or as its put.
        waiting.note(3, found(500, 600, None), at(3));
        assert_eq!(waiting.oldest(), Some((3, at(3))));
        waiting.note(3, found(600, 700, Some(at(4))), at(5));
        assert_eq!(waiting.oldest(), Some((3, at(4))));
        waiting.note(4, found(0, 1, Some(at(2))), at(5));
        assert_eq!(waiting.oldest(), Some((4, at(2))));
        waiting.note(4, None, at(6));
        assert_eq!(waiting.oldest(), Some((3, at(4))));
        waiting.note(3, None, at(6));
        assert_eq!(waiting.oldest(), None);
    }
}
