//! Ownership: which thread may drain a partition, and how that changes. `README.md` in this folder
//! describes the protocol and its states.

#[cfg(all(test, loom))]
pub(crate) mod loom_rules;
#[cfg(all(test, loom))]
mod loom_tests;

use crate::flow::route::owner::Owner;
use crate::flow::state::Flow;
use crate::item::Item;
use crate::sync::{Ordering, fence};
use crate::threads::agenda::Visits;
use crate::threads::park::Signal;

// A turn: a drain thread enters a partition, works in it, and leaves (rules 3 and 7 of
// `README.md`).
//
// A move does not wait for the partition's owner: it completes immediately if the owner is outside;
// otherwise the owner completes it on leaving.

/// Proof that a drain thread is inside a partition, which no other thread can enter meanwhile. The
/// thread leaves when this is dropped.
#[must_use = "the thread leaves the partition when this is dropped"]
pub(crate) struct Turn<'a, T: Item> {
    flow: &'a Flow<T>,
    thread: usize,
    partition: usize,
}

impl<T: Item> Flow<T> {
    /// Enters a partition. Returns `None` if `thread` does not own it.
    #[inline]
    pub(crate) fn enter(&self, thread: usize, partition: usize) -> Option<Turn<'_, T>> {
        self.threads[thread].go_inside(partition);
        // SeqCst: pairs with the fence of `hand_over`, between its revoke and its check of who is
        // inside: either this thread sees that it was revoked, or the other sees it inside.
        fence(Ordering::SeqCst);
        self.watch_turn();
        let turn = Turn { flow: self, thread, partition };
        self.owns(thread, partition).then_some(turn)
    }

    /// Whether `thread` may enter a partition.
    #[inline]
    pub(crate) fn owns(&self, thread: usize, partition: usize) -> bool {
        self.route.owner(partition).load() == Owner::Owned(thread)
    }

    /// Asks the supervisor to visit the queue. The caller is inside a partition and has fenced.
    #[inline]
    pub(crate) fn watch_turn(&self) {
        if !cfg!(loom) && !self.arming.has(Visits::Ticks) {
            self.arming.ask(Visits::Ticks, self.config.takeover_after);
        }
    }

    /// Completes the handoff of a partition if it was revoked from `thread`, which has just left
    /// it.
    fn complete_handoff(&self, thread: usize, partition: usize) {
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
                // The mover completed or redirected it.
                Err(now) => seen = now,
            }
        }
    }

    /// Wakes the thread that may take now, if items wait. Called after the owner word changes.
    pub(crate) fn announce_owner(&self, partition: usize, owner: usize) {
        // The new owner must learn when the jobs that back off here are due.
        if self.route.partition(partition).has_lanes() {
            self.route.partition(partition).set_ready();
        }
        // SeqCst: pairs with the fence in `Sleeper::prepare`: either the owner sees its partition,
        // or it is woken. Also pairs with the fence in `call_owner`.
        fence(Ordering::SeqCst);
        if self.route.partition(partition).is_ready() || self.ending.is_closing_after_fence() {
            self.threads[owner].waker.wake(Signal::Pressure);
        }
    }
}

impl<T: Item> Drop for Turn<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let Self { flow, thread, partition } = *self;
        flow.threads[thread].go_outside();
        // SeqCst: pairs with the fence of `hand_over`, as in `enter`: either the other sees that no
        // thread is inside and completes the move, or this thread finds the word revoked. Also
        // pairs with the fence of a flush, between its waiting mark and its read of `completed`.
        fence(Ordering::SeqCst);
        flow.flushes.notify();
        flow.complete_handoff(thread, partition);
    }
}
