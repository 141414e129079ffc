//! A turn: a drain thread enters a partition, works in it, and leaves (rules 3 and 7 of
//! `README.md`).
//!
//! A move does not wait for the partition's owner: if the owner is not inside, the move is complete
//! immediately, and otherwise the owner completes it when it leaves.

use crate::control::ownership::Owner;
use crate::item::Item;
use crate::shared::Shared;
use crate::sync::{Ordering, fence};

/// Proof that a drain thread is inside a partition, which no other thread enters meanwhile. The
/// thread leaves when this is dropped.
#[must_use = "the thread leaves the partition when this is dropped"]
pub(crate) struct Turn<'a, T: Item> {
    shared: &'a Shared<T>,
    thread: usize,
    partition: usize,
}

impl<T: Item> Shared<T> {
    /// Enters a partition. Returns `None` if `thread` does not own it, or no longer.
    #[inline]
    pub(crate) fn enter(&self, thread: usize, partition: usize) -> Option<Turn<'_, T>> {
        self.threads[thread].go_inside(partition);
        // SeqCst: pairs with the fence of `hand_over`, between its revoke and its check of who is
        // inside: either this thread sees that it was revoked, or the other sees it inside.
        fence(Ordering::SeqCst);
        self.watch_turn();
        let turn = Turn { shared: self, thread, partition };
        self.owns(thread, partition).then_some(turn)
    }

    /// Whether `thread` may enter a partition.
    #[inline]
    pub(crate) fn owns(&self, thread: usize, partition: usize) -> bool {
        self.route.owner(partition).load() == Owner::Owned(thread)
    }
}

impl<T: Item> Drop for Turn<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let Self { shared, thread, partition } = *self;
        shared.threads[thread].go_outside();
        // SeqCst: pairs with the fence of `hand_over`, as in `enter`: either the other sees that no
        // thread is inside and completes the move, or this thread finds the word revoked. It pairs
        // also with the fence of a flush, between its waiting mark and its read of `completed`.
        fence(Ordering::SeqCst);
        shared.flushes.notify();
        shared.complete_handoff(thread, partition);
    }
}
