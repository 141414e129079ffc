//! Put: one item. Many items under one lock are in `run.rs`.

use crate::control::scheduler::Signal;
use crate::flow::partition::gate::Gate;
use crate::flow::partition::slow_counts::Attempt;
use crate::flow::partition::{Partition, Stop};
use crate::item::Item;
use crate::sync::QuickGuard;

impl<T: Item> Partition<T> {
    /// Puts one item, or returns it if it does not fit. Most puts need not know whether this is a
    /// drain thread.
    #[allow(clippy::inline_always)] // measured: each call less saves 3 % of a put from Python
    #[inline(always)]
    pub(crate) fn put(
        &self,
        item: T,
        inside_pool: impl FnOnce() -> bool,
    ) -> Result<Signal, (T, Stop)> {
        let mut gate = self.gate.lock();
        // Fast path: only the item and one length are stored.
        if gate.open.len() < usize::from(gate.plain_until) {
            gate.open.push(item);
            return Ok(Signal::Nothing);
        }
        self.put_slowly(gate, item, Attempt::New, inside_pool())
    }

    /// Puts an item that has waited.
    pub(crate) fn put_again(&self, item: T, inside_pool: bool) -> Result<Signal, (T, Stop)> {
        self.put_slowly(self.gate.lock(), item, Attempt::Again, inside_pool)
    }

    #[inline(never)]
    fn put_slowly(
        &self,
        mut gate: QuickGuard<'_, Gate<T>>,
        item: T,
        attempt: Attempt,
        inside_pool: bool,
    ) -> Result<Signal, (T, Stop)> {
        if let Err(stop) = self.check(&mut gate, || item.type_key(), inside_pool) {
            self.count_slow(attempt, 1, 0);
            return Err((item, stop));
        }
        let was_empty = gate.open.is_empty() && self.is_empty(&mut gate);
        self.append(&mut gate, item);
        if attempt == Attempt::Again {
            self.count_slow(attempt, 0, 1);
        }
        Ok(self.announce(&mut gate, was_empty, 1))
    }
}
