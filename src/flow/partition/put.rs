//! Put: one item, or many under one lock.

use crate::flow::partition::{Attempt, Gate, Partition, Stop};
use crate::flow::segments::Segment;
use crate::item::{Item, TypeKey};
use crate::sync::{Ordering, QuickGuard};
use crate::threads::park::Signal;

impl<T: Item> Partition<T> {
    /// Puts one item, or returns it if it does not fit. `inside_pool`, whether this is a drain
    /// thread, is called lazily, because most puts need not know.
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

    /// Puts an item again that found no room before.
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

// A run: consecutive puts into one partition while its gate is held.

impl<T> Partition<T> {
    /// Locks the gate for several consecutive puts.
    #[inline]
    pub(crate) fn run(&self, inside_pool: bool) -> Run<'_, T> {
        self.run_behind(self.gate.lock(), inside_pool)
    }

    /// Like [`run`](Self::run), but returns `None` if the gate is locked.
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
    pub(crate) partition: &'a Partition<T>,
    gate: QuickGuard<'a, Gate<T>>,
    inside_pool: bool,
    was_empty: bool,
    pushed_before: u64,
    /// While the open segment is shorter than this, a put certainly finds room in the partition and
    /// in the segment.
    plain_until: usize,
}

impl<T> Run<'_, T> {
    /// Checks that the next put will succeed, or returns why not.
    #[inline]
    pub(crate) fn check(&mut self, key: impl FnOnce() -> TypeKey) -> Result<(), Stop> {
        if self.gate.open.len() < self.plain_until { Ok(()) } else { self.check_slowly(key) }
    }

    #[inline(never)]
    fn check_slowly(&mut self, key: impl FnOnce() -> TypeKey) -> Result<(), Stop> {
        self.partition.seal_full(&mut self.gate);
        self.partition.check(&mut self.gate, key, self.inside_pool)?;
        self.gate.note_time();
        if self.gate.has_stalled {
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

// Puts by weight, in pieces where only a piece fits; and the weight of a segment.
//
// The gate counts items by weight, so the weight of the open segment is the difference between the
// items put until now and those put before the segment. `weighed` is the latter, kept from the
// first weighted put on. So the thread inside need not call user code to read the weight of an item
// again.

/// The value of `weighed` while no item of the partition weighs more than 1.
pub(crate) const NONE: u64 = u64::MAX;

impl<T> Partition<T> {
    /// Whether an item has ever been put by weight. Relaxed: set under the gate before that item
    /// was put, and the gate or the channel delivered the item.
    pub(crate) fn has_weighted(&self) -> bool {
        self.weighed.load(Ordering::Relaxed) != NONE
    }

    /// Replaces the open segment and returns it.
    pub(crate) fn replace_open(&self, gate: &mut Gate<T>, next: Vec<T>) -> Segment<T> {
        let items = std::mem::replace(&mut gate.open, next);
        let (mut weight, put_at) = (items.len(), gate.put_at);
        gate.before_open += weight as u64;
        // Relaxed, both: under the gate.
        let before = self.weighed.load(Ordering::Relaxed);
        if before != NONE {
            self.weighed.store(gate.before_open, Ordering::Relaxed);
            weight = usize::try_from(gate.before_open - before).unwrap_or(usize::MAX);
        }
        Segment { items, weight, put_at }
    }
}

impl<T: Item> Partition<T> {
    /// Puts an item by its weight. Returns what does not fit: the whole item, unless a piece of at
    /// least `least` fits.
    pub(crate) fn put_weighted(
        &self,
        item: T,
        least: usize,
        attempt: Attempt,
        inside_pool: bool,
    ) -> (Signal, Option<(T, Stop)>) {
        let mut gate = self.gate.lock();
        let checked = self.check(&mut gate, || item.type_key(), inside_pool);
        if let Err(stop @ (Stop::Closed | Stop::Stalled)) = checked {
            self.count_slow(attempt, item.weight(), 0);
            return (Signal::Nothing, Some((item, stop)));
        }
        let was_empty = self.is_empty(&mut gate);
        let (room, weight) = (self.buffer_size.saturating_sub(gate.queued()), item.weight());
        let (put, rest) = if weight <= room {
            (Some(item), None)
        } else if room >= least.max(1) {
            let (put, rest) = item.cut(room);
            (Some(put), Some(rest))
        } else {
            if gate.lingers {
                self.want_room(&mut gate);
            }
            (None, Some(item))
        };
        let weight = put.as_ref().map_or(0, Item::weight);
        if let Some(put) = put {
            if !self.has_weighted() {
                // Relaxed: under the gate.
                self.weighed.store(gate.before_open, Ordering::Relaxed);
            }
            if gate.lingers && (1..weight).contains(&gate.lacks()) && !gate.open.is_empty() {
                // The rest of the item belongs to another batch.
                self.seal(&mut gate);
            }
            // The segment's length counts the item as 1.
            gate.before_open += weight as u64 - 1;
            self.append(&mut gate, put);
        }
        match attempt {
            Attempt::New => self.count_slow(attempt, rest.as_ref().map_or(0, Item::weight), 0),
            Attempt::Again => self.count_slow(attempt, 0, weight),
        }
        (self.announce(&mut gate, was_empty, weight), rest.map(|rest| (rest, Stop::Full)))
    }
}
