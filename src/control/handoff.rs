//! Handoff: moves a partition from one drain thread to another (rules 8 and 9
//! of `flow/ownership/README.md`).
//!
//! ```text
//!                                   assign: the mover, if a is not inside,
//!               revoke (control)    else a when it leaves
//!   Owned(a) ───────────────────▶ Revoked(a, b) ────────────────────────────▶ Owned(b)
//!                                   │      ▲
//!                                   └──────┘ aim elsewhere (control)
//! ```
//!
//! No thread waits for another. A move takes no longer than a turn: microseconds.

use crate::control::state::{Control, ControlState};
use crate::flow::partition::Access;
use crate::flow::route::owner::Owner;
use crate::item::Item;
use crate::sync::{Instant, Ordering, fence};

impl<T: Item> Control<T> {
    /// Moves a partition for a balancer. Returns `false` if `to` already has it or the queue is
    /// closing.
    pub(crate) fn hand_over(&self, state: &mut ControlState, partition: usize, to: usize) -> bool {
        state.access == Access::Open && self.move_to(state, partition, to)
    }

    /// Moves a partition to the drain thread `to`. If the owner is inside, it completes the move
    /// when it leaves. Returns `false` if `to` already has the partition.
    ///
    /// Called under the control lock, as `state` proves, and not after expiry.
    pub(crate) fn move_to(&self, state: &mut ControlState, partition: usize, to: usize) -> bool {
        let word = self.flow.route.owner(partition);
        let now = Instant::now();
        let mut seen = word.load();
        let revoked = loop {
            let next = match seen {
                _ if seen.wanted() == to => return false,
                // Already under way: cancel the move, or redirect it.
                Owner::Revoked { from, .. } if from == to => Owner::Owned(to),
                Owner::Revoked { from, .. } | Owner::Owned(from) => Owner::Revoked { from, to },
            };
            if matches!(seen, Owner::Owned(_)) {
                // A redirected partition has been under way since it was first revoked.
                self.flow
                    .route
                    .partition(partition)
                    .note_revoked(now.saturating_duration_since(self.flow.started));
            }
            match word.exchange(seen, next) {
                Ok(()) => break next,
                Err(now) => seen = now,
            }
        };
        match revoked {
            Owner::Owned(stays) => self.flow.announce_owner(partition, stays),
            Owner::Revoked { from, .. } => {
                // SeqCst: pairs with the fences of a turn, in `enter` and when it ends: either the
                // owner is seen inside, or it sees that it was revoked.
                fence(Ordering::SeqCst);
                let is_inside = self.flow.threads[from].is_inside(partition);
                if !is_inside && word.exchange(revoked, Owner::Owned(to)).is_ok() {
                    state.longest_handoff = state.longest_handoff.max(now.elapsed());
                    self.flow.announce_owner(partition, to);
                }
                // If the exchange fails, the owner has entered and left in between, and completed
                // the move.
            }
        }
        true
    }
}
