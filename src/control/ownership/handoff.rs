//! Handoff: moves a partition from one drain thread to another (rules 8 and 9 of `README.md`).
//!
//! ```text
//!               revoke (control)              assign (a, at its quiescent point)
//!   Owned(a) ───────────────────▶ Revoked(a, b) ─────────────────────────────────▶ Owned(b)
//!      ▲                            │      │ ▲
//!      └──── take back (control) ───┘      └─┘ aim elsewhere (control)
//! ```
//!
//! No thread waits for another. The fence between the two owners is the program order of the first:
//! it hands the partition over when it has nothing in hand, and not before.

use crate::control::ownership::Owner;
use crate::flow::gate::Access;
use crate::flow::partition::Signal;
use crate::item::Item;
use crate::rules::{Rule, rule_off};
use crate::shared::{Control, Shared};
use crate::sync::{Instant, Ordering, fence};

/// Proof that a drain thread has nothing in flight: only `drain` creates it, after it has stored
/// `completed`.
#[derive(Debug)]
pub(crate) struct QuiescentPoint {
    thread: usize,
}

impl QuiescentPoint {
    pub(crate) fn of(thread: usize) -> Self {
        Self { thread }
    }
}

impl<T: Item> Shared<T> {
    /// Revokes a partition so that `to` gets it. Returns `false` if `to` has it already, or if the
    /// queue is closing.
    ///
    /// Called under the control lock, as `control` proves.
    pub(crate) fn hand_over(&self, control: &mut Control, partition: usize, to: usize) -> bool {
        if control.access != Access::Open {
            return false;
        }
        let word = self.route.owner(partition);
        let now = Instant::now();
        let mut seen = word.load();
        let revoked = loop {
            let next = match seen {
                _ if seen.wanted() == to => return false,
                // Already on its way: let it stay, or aim it elsewhere.
                Owner::Revoked { from, .. } if from == to => Owner::Owned(to),
                Owner::Revoked { from, .. } | Owner::Owned(from) => Owner::Revoked { from, to },
            };
            if matches!(seen, Owner::Owned(_)) {
                // A partition that is aimed elsewhere has been under way since it was first
                // revoked.
                self.route
                    .partition(partition)
                    .note_revoked(now.saturating_duration_since(self.started));
                control.handoffs.begin(partition, now);
            }
            match word.exchange(seen, next) {
                Ok(()) => break next,
                Err(now) => seen = now,
            }
        };
        match revoked {
            Owner::Owned(stays) => self.announce_owner(partition, stays),
            Owner::Revoked { from, .. } => {
                let slot = &self.threads[from];
                slot.request_handoff();
                if !rule_off(Rule::RevokeWake) {
                    // SeqCst: pairs with the fence in `Sleeper::prepare`: either the owner sees the
                    // mark, or it is woken.
                    fence(Ordering::SeqCst);
                    slot.waker.wake(Signal::Pressure);
                }
            }
        }
        true
    }

    /// Hands over the partitions that were revoked from this thread.
    pub(crate) fn complete_handoffs(&self, here: &QuiescentPoint) {
        let slot = &self.threads[here.thread];
        // Spares most cycles the swap. A mark that is missed here is seen before sleep.
        if !slot.is_handoff_requested() {
            return;
        }
        // After expiry each thread discards the partitions it is inside of, and leaves.
        if self.ending.is_expired() {
            return;
        }
        slot.take_handoff_request();
        for partition in 0..self.route.partition_count() {
            let word = self.route.owner(partition);
            let mut seen = word.load();
            while let Owner::Revoked { from, to } = seen
                && from == here.thread
            {
                match word.exchange(seen, Owner::Owned(to)) {
                    Ok(()) => {
                        let revoked = self.route.partition(partition).revoked_at();
                        slot.note_handoff(self.started.elapsed().saturating_sub(revoked));
                        self.announce_owner(partition, to);
                        break;
                    }
                    // Taken back, or redirected.
                    Err(now) => seen = now,
                }
            }
        }
    }

    /// Gives back what a thread did not hand over in time: that thread is inside, so no other can
    /// be. Returns a line to log for each such thread.
    pub(crate) fn take_back(&self, control: &mut Control, now: Instant) -> Vec<String> {
        let mut overdue = Vec::new();
        control.handoffs.retain(now, |partition, is_overdue| {
            let word = self.route.owner(partition);
            let seen @ Owner::Revoked { from, .. } = word.load() else { return false };
            if !is_overdue || rule_off(Rule::TakeBack) {
                return true;
            }
            // If this fails, it was handed over just now, or a new handoff has its own time.
            if word.exchange(seen, Owner::Owned(from)).is_ok() {
                self.announce_owner(partition, from);
                overdue.push(from);
            }
            false
        });
        overdue.sort_unstable();
        let is_due = |thread: usize| {
            let log = self.balancing.as_ref().map(|balancing| &balancing.overdue_log);
            log.is_none_or(|log| log.note(thread, 1, now).is_some())
        };
        overdue
            .chunk_by(PartialEq::eq)
            .filter(|partitions| is_due(partitions[0]))
            .map(|partitions| {
                let (queue, thread, count) = (&self.name, partitions[0], partitions.len());
                let inside = self.threads[thread].tally.counts().calling;
                let inside = inside.map_or_else(
                    || "busy".to_owned(),
                    |(calling, _)| format!("inside {}", self.name_of(&calling)),
                );
                format!(
                    "queue {queue}: drain thread {thread} has been {inside} for over a second and \
                     keeps {count} partitions that were to move"
                )
            })
            .collect()
    }

    /// After a change of the owner word: wakes the thread that may take now, if items wait there.
    fn announce_owner(&self, partition: usize, owner: usize) {
        if rule_off(Rule::AssignWake) {
            return;
        }
        // SeqCst: pairs with the fence in `Sleeper::prepare`: either the owner sees its partition,
        // or it is woken.
        fence(Ordering::SeqCst);
        if self.route.partition(partition).is_ready() || self.ending.is_closing_after_fence() {
            self.threads[owner].waker.wake(Signal::Pressure);
        }
    }
}
