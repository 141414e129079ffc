//! Handoff: moves a partition from one drain thread to another (rules 8 and 9 of `README.md`).
//!
//! ```text
//!                                   assign: the mover, if a is not inside,
//!               revoke (control)    else a when it leaves
//!   Owned(a) ───────────────────▶ Revoked(a, b) ────────────────────────────▶ Owned(b)
//!                                   │      ▲
//!                                   └──────┘ aim elsewhere (control)
//! ```
//!
//! No thread waits for another. A turn takes microseconds, so a move does, too.

use crate::control::ownership::Owner;
use crate::control::scheduler::Signal;
use crate::flow::partition::gate::Access;
use crate::item::Item;
use crate::shared::{Control, Shared};
use crate::sync::{Instant, Ordering, fence};

impl<T: Item> Shared<T> {
    /// Moves a partition as a balancer plans it. Returns `false` if `to` has it already, or if the
    /// queue is closing.
    pub(crate) fn hand_over(&self, control: &mut Control, partition: usize, to: usize) -> bool {
        control.access == Access::Open && self.move_to(control, partition, to)
    }

    /// Moves a partition to the drain thread `to`: immediately, unless its owner is inside, which
    /// then completes the move when it leaves. Returns `false` if `to` has it already.
    ///
    /// Called under the control lock, as `control` proves, and not after expiry.
    pub(crate) fn move_to(&self, control: &mut Control, partition: usize, to: usize) -> bool {
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
            }
            match word.exchange(seen, next) {
                Ok(()) => break next,
                Err(now) => seen = now,
            }
        };
        match revoked {
            Owner::Owned(stays) => self.announce_owner(partition, stays),
            Owner::Revoked { from, .. } => {
                // SeqCst: pairs with the fences of a turn, in `enter` and when it ends: either the
                // owner is seen inside, or it sees that it was revoked.
                fence(Ordering::SeqCst);
                let is_inside = self.threads[from].is_inside(partition);
                if !is_inside && word.exchange(revoked, Owner::Owned(to)).is_ok() {
                    control.longest_handoff = control.longest_handoff.max(now.elapsed());
                    self.announce_owner(partition, to);
                }
                // If the exchange fails, the owner came and left meanwhile, and completed the move.
            }
        }
        true
    }

    /// Hands a partition over if it was revoked from `thread`, which has just left it.
    pub(super) fn complete_handoff(&self, thread: usize, partition: usize) {
        let word = self.route.owner(partition);
        let mut seen = word.load();
        while let Owner::Revoked { from, to } = seen
            && from == thread
            // After expiry each thread discards the partitions it owns, and ends.
            && !self.ending.is_expired()
        {
            match word.exchange(seen, Owner::Owned(to)) {
                Ok(()) => {
                    let revoked = self.route.partition(partition).revoked_at();
                    self.threads[thread]
                        .note_handoff(self.started.elapsed().saturating_sub(revoked));
                    self.announce_owner(partition, to);
                    break;
                }
                // Completed by the mover, or redirected.
                Err(now) => seen = now,
            }
        }
    }

    /// After a change of the owner word: wakes the thread that may take now, if items wait there.
    fn announce_owner(&self, partition: usize, owner: usize) {
        // The owner sees when jobs that back off here are due.
        if self.route.partition(partition).has_lanes() {
            self.route.partition(partition).set_ready();
        }
        // SeqCst: pairs with the fence in `Sleeper::prepare`: either the owner sees its partition,
        // or it is woken. It pairs also with the fence in `call_owner`.
        fence(Ordering::SeqCst);
        if self.route.partition(partition).is_ready() || self.ending.is_closing_after_fence() {
            self.threads[owner].waker.wake(Signal::Pressure);
        }
    }
}
