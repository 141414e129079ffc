//! A run: puts into one partition that follow each other under one hold of its gate.

use crate::faults::{self, Fault};
use crate::flow::gate::Gate;
use crate::flow::partition::{Attempt, Partition, Signal, Stop};
use crate::sync::QuickGuard;

impl<T> Partition<T> {
    /// Holds the gate for several puts, one after the other.
    #[inline]
    pub(crate) fn run(&self, inside_pool: bool) -> Run<'_, T> {
        self.run_behind(self.gate.lock(), inside_pool)
    }

    /// The same, unless somebody holds the gate.
    #[inline]
    pub(crate) fn try_run(&self, inside_pool: bool) -> Option<Run<'_, T>> {
        self.gate.try_lock().map(|gate| self.run_behind(gate, inside_pool))
    }

    fn run_behind<'a>(&'a self, mut gate: QuickGuard<'a, Gate<T>>, inside_pool: bool) -> Run<'a, T> {
        let was_empty = self.is_empty(&mut gate);
        Run { partition: self, pushed_before: gate.pushed(), gate, inside_pool, was_empty, room: 0 }
    }
}

/// Puts that follow each other under one hold of the gate. Nobody knows of them before its [`end`](Self::end).
pub(crate) struct Run<'a, T> {
    pub(super) partition: &'a Partition<T>,
    gate: QuickGuard<'a, Gate<T>>,
    inside_pool: bool,
    was_empty: bool,
    pushed_before: u64,
    /// Items that certainly fit.
    room: usize,
}

impl<T> Run<'_, T> {
    /// Whether the next put succeeds, and else why not.
    #[inline]
    pub(crate) fn look(&mut self) -> Result<(), Stop> {
        if self.room > 0 { Ok(()) } else { self.look_again() }
    }

    fn look_again(&mut self) -> Result<(), Stop> {
        self.partition.check(&mut self.gate, self.inside_pool)?;
        let room = (self.gate.buffer_size as usize).saturating_sub(self.gate.queued());
        self.room = if faults::off(Fault::Bound) { usize::MAX } else { room };
        Ok(())
    }

    /// Puts an item in, after a [`look`](Self::look) that said yes.
    #[inline]
    pub(crate) fn put(&mut self, item: T) {
        self.partition.append(&mut self.gate, item);
        self.room -= 1;
    }

    /// The next item finds no room: an attempt begins that will be late.
    pub(crate) fn count_late(&mut self) {
        self.partition.count_slow(Attempt::New, 1, 0);
    }

    /// An attempt that was late has succeeded.
    pub(crate) fn count_late_put(&mut self) {
        self.partition.count_slow(Attempt::Again, 0, 1);
    }

    /// Lets the gate go. What is to be told to the drain thread.
    pub(crate) fn end(mut self) -> Signal {
        let put = usize::try_from(self.gate.pushed() - self.pushed_before).unwrap_or(usize::MAX);
        self.partition.announce(&mut self.gate, self.was_empty, put)
    }
}
