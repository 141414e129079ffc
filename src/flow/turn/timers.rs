//! The partitions of a drain thread that have something to do at a later time.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::sync::Deadline;

/// The deadline of each partition that the thread has seen. A partition that goes to another thread
/// keeps its entry here until it is due, which is of no consequence.
#[derive(Debug, Default)]
pub(super) struct Timers {
    by_deadline: BTreeSet<(Deadline, usize)>,
    by_partition: FxHashMap<usize, Deadline>,
}

impl Timers {
    pub(super) fn set(&mut self, partition: usize, deadline: Deadline) {
        if let Some(before) = self.by_partition.insert(partition, deadline) {
            self.by_deadline.remove(&(before, partition));
        }
        self.by_deadline.insert((deadline, partition));
    }

    /// When the next partition is due.
    pub(super) fn next(&self) -> Option<Deadline> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    pub(super) fn is_due(&self) -> bool {
        self.next().is_some_and(|deadline| deadline.time_left().is_none())
    }

    /// Takes a partition off that is due, or any.
    pub(super) fn pop(&mut self, any: bool) -> Option<usize> {
        if !any && !self.is_due() {
            return None;
        }
        let (_, partition) = self.by_deadline.pop_first()?;
        self.by_partition.remove(&partition);
        Some(partition)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Duration;

    #[test]
    fn a_partition_is_due_once_at_its_latest_setting() {
        let mut timers = Timers::default();
        let (past, later) =
            (Deadline::after(Duration::ZERO), Deadline::after(Duration::from_secs(3_600)));
        timers.set(1, past);
        timers.set(2, past);
        timers.set(2, later);
        timers.set(1, past);
        assert_eq!(timers.pop(false), Some(1));
        assert_eq!(timers.pop(false), None);
        assert_eq!(timers.next(), Some(later));
        assert_eq!(timers.pop(true), Some(2));
        assert_eq!(timers.pop(true), None);
    }
}
