//! A run: consecutive puts into one partition while its gate is held.

use crate::control::scheduler::Signal;
use crate::flow::partition::gate::Gate;
use crate::flow::partition::slow_counts::Attempt;
use crate::flow::partition::{Partition, Stop};
use crate::item::TypeKey;
use crate::sync::QuickGuard;

impl<T> Partition<T> {
    /// Locks the gate for several consecutive puts.
    #[inline]
    pub(crate) fn run(&self, inside_pool: bool) -> Run<'_, T> {
        self.run_behind(self.gate.lock(), inside_pool)
    }

    /// Like [`run`](Self::run). Returns `None` if the gate is locked.
    #[inline]
    pub(crate) fn try_run(&self, inside_pool: bool) -> Option<Run<'_, T>> {
        self.gate.try_lock().map(|gate| self.run_behind(gate, inside_pool))
    }

    fn run_behind<'a>(
        &'a self,
        mut gate: QuickGuard<'a, Gate<T>>,
        inside_pool: bool,
    ) -> Run<'a, T> {
        let was_empty = self.is_empty(&mut gate);
        Run {
            partition: self,
            pushed_before: gate.pushed(),
            gate,
            inside_pool,
            was_empty,
            plain_until: 0,
        }
    }
}

/// Consecutive puts while the gate is held. They are announced at its [`end`](Self::end).
pub(crate) struct Run<'a, T> {
    pub(in crate::flow) partition: &'a Partition<T>,
    gate: QuickGuard<'a, Gate<T>>,
    inside_pool: bool,
    was_empty: bool,
    pushed_before: u64,
    /// While the open segment is shorter than this, a put is certain to find room, and space in the
    /// segment.
    plain_until: usize,
}

impl<T> Run<'_, T> {
    /// Checks whether the next put will succeed, and if not, why.
    #[inline]
    pub(crate) fn check(&mut self, key: impl FnOnce() -> TypeKey) -> Result<(), Stop> {
        if self.gate.open.len() < self.plain_until { Ok(()) } else { self.check_slowly(key) }
    }

    #[inline(never)]
    fn check_slowly(&mut self, key: impl FnOnce() -> TypeKey) -> Result<(), Stop> {
        self.partition.seal_full(&mut self.gate);
        self.partition.check(&mut self.gate, key, self.inside_pool)?;
        self.gate.note_time();
        if self.gate.has_choked {
            // The next item may be of another type.
            return Ok(());
        }
        let (partition, gate) = (self.partition, &self.gate);
        let mut room = partition.buffer_size.saturating_sub(gate.queued());
        if gate.lingers {
            let lacks = gate.lacks();
            room = if lacks > 0 { room.min(lacks) } else { room };
        }
        self.plain_until = gate.open.len().saturating_add(room).min(partition.segment_size);
        Ok(())
    }

    /// Puts an item, after a successful [`check`](Self::check).
    #[inline]
    pub(crate) fn put(&mut self, item: T) {
        self.gate.open.push(item);
    }

    /// Counts an attempt that finds no room and is therefore delayed.
    pub(crate) fn count_delayed(&mut self) {
        self.partition.count_slow(Attempt::New, 1, 0);
    }

    /// Releases the gate. Returns the signal for the drain thread.
    pub(crate) fn end(mut self) -> Signal {
        self.partition.seal_full(&mut self.gate);
        let put = usize::try_from(self.gate.pushed() - self.pushed_before).unwrap_or(usize::MAX);
        self.partition.announce(&mut self.gate, self.was_empty, put)
    }
}
