//! Take: the drain thread's side of a partition.
//!
//! These functions are called by the thread inside only, under the lock of the lanes; after expiry,
//! by each thread that ends, under the same lock.

use crate::flow::partition::{Access, Partition};
use crate::flow::segments::{Segment, SegmentCache, TakenSegments, kept_capacity};
use crate::item::Item;
use crate::sync::{Ordering, SegmentChannel, fence};

/// The result of a take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TakenItems {
    /// The number of items, by weight.
    pub(crate) items: usize,
    /// Whether producers may be waiting for the room.
    pub(crate) may_be_awaited: bool,
    /// Whether the budget is used up, so that more may be queued.
    pub(crate) is_full: bool,
}

/// The result of an attempt to take the open segment.
enum Opened<T> {
    /// The open segment, possibly empty: no items are left.
    Last(Segment<T>),
    /// This many sealed segments come before it.
    After(u16),
}

impl<T: Item> Partition<T> {
    /// Begins a take: clears the ready bit, which later puts set again.
    #[inline]
    pub(crate) fn begin_take(&self) {
        self.ready.clear();
        // SeqCst: pairs with the fence after a put. A put that this take does not see finds the bit
        // cleared and sets it.
        fence(Ordering::SeqCst);
    }

    /// Takes queued items, up to `budget` rounded up to a segment. An emptied segment from
    /// `segment_cache` replaces the open one. Producers get the room when the thread calls
    /// [`make_room`](Self::make_room).
    pub(crate) fn take(
        &self,
        budget: usize,
        segments: &mut TakenSegments<T>,
        segment_cache: &mut SegmentCache<T>,
    ) -> TakenItems {
        let mut taken = TakenItems::default();
        while taken.items < budget {
            let sealed = match self.take_open(!segments.is_empty(), segment_cache) {
                Opened::Last(open) => {
                    taken.items += open.weight;
                    if open.items.is_empty() {
                        segment_cache.keep(open.items);
                        return taken;
                    }
                    taken.may_be_awaited |= self.has_weighted();
                    segments.push(open);
                    return taken;
                }
                Opened::After(sealed) => sealed,
            };
            for _ in 0..sealed {
                let Some(segment) = self.sealed.get().and_then(SegmentChannel::try_recv) else {
                    break;
                };
                // Relaxed: only the thread inside accesses it.
                self.drain_side
                    .received
                    .store(self.drain_side.received.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                self.store_oldest_sealed(segment.put_at);
                self.store_taken(segment.weight);
                taken.items += segment.weight;
                taken.may_be_awaited = true;
                segments.push(segment);
                if taken.items >= budget {
                    break;
                }
            }
        }
        // Unconditional: a read of `pushed` could miss a put that has already read `taken` and set
        // no bit.
        self.ready.set();
        taken.is_full = true;
        taken
    }

    /// Takes the open segment, which is the last, under the gate, unless sealed ones come before
    /// it. `was_full` is whether this take has already received sealed ones.
    fn take_open(&self, was_full: bool, segment_cache: &mut SegmentCache<T>) -> Opened<T> {
        let mut gate = self.gate.lock();
        gate.end_suppression();
        // Relaxed: only the thread inside accesses it.
        gate.sealed -= self.drain_side.received.load(Ordering::Relaxed);
        self.drain_side.received.store(0, Ordering::Relaxed);
        if gate.sealed > 0 {
            return Opened::After(gate.sealed);
        }
        if gate.open.is_empty() && gate.open.capacity() <= kept_capacity::<T>() {
            let put_at = gate.put_at;
            return Opened::Last(Segment { items: Vec::new(), weight: 0, put_at });
        }
        // In a busy partition, a small segment would grow to full size again, under the gate. Not
        // where items linger: the turn that takes the segment back would end the suppression of
        // notifications.
        let is_busy = was_full || gate.open.len() > kept_capacity::<T>();
        let full_size = if is_busy && !gate.lingers { segment_cache.full_size() } else { None };
        if full_size.is_some() {
            // The next turn takes it back if nothing arrives.
            self.ready.set();
        }
        // A small segment also replaces an empty large one: the partition may get no items for a
        // long time.
        let next = full_size.unwrap_or_else(|| segment_cache.segment(self.segment_size));
        let open = self.replace_open(&mut gate, next);
        gate.withdraw_plan();
        // Stored before the gate is released: a put that still saw the old `taken` would find the
        // partition not empty, and set no bit.
        self.store_taken(open.weight);
        Opened::Last(open)
    }

    fn store_taken(&self, items: usize) {
        // Relaxed load: only this thread writes it. Release: pairs with the Acquire in `taken`.
        self.drain_side
            .taken
            .store(self.drain_side.taken.load(Ordering::Relaxed) + items as u64, Ordering::Release);
    }

    /// Finishes the partition if it is closed and empty, decided under the gate. Returns true once.
    pub(crate) fn finish(&self) -> bool {
        // Relaxed: only threads inside write it, and the owner word orders one after the other.
        if self.drain_side.finished.load(Ordering::Relaxed) {
            return false;
        }
        let mut gate = self.gate.lock();
        let done = self.is_empty(&mut gate) && gate.access == Access::Closed;
        if done {
            self.drain_side.finished.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Whether [`finish`](Self::finish) has returned true.
    pub(crate) fn is_finished(&self) -> bool {
        // Relaxed: read by the thread inside, which wrote it or got the partition from the thread
        // that did.
        self.drain_side.finished.load(Ordering::Relaxed)
    }
}
