//! Put times: when items were put.
//!
//! A clock takes longer to read than an item to put, so only the first item of a segment gets the
//! time, and those behind it count as just as old. The time is in the gate while the segment is
//! open, travels with it, and is kept with the run of items in their lane. So no thread waits for
//! another one to learn it.
//!
//! Of what is in the channel, statistics only see when the oldest segment was put, or the one
//! before it:
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `gate.put_at` | producers, under the gate | producers, thread inside (gate); statistics |
//! | `oldest_sealed_ns` | thread inside; producers, where the channel is empty | statistics |

use crate::flow::partition::Partition;
use crate::flow::partition::gate::Gate;
use crate::flow::partition::segment::PutTime;
use crate::observe::measures;
use crate::sync::{Instant, Ordering};

impl<T> Gate<T> {
    /// Before a put: notes the time if it is the first of a segment.
    #[inline]
    pub(super) fn note_time(&mut self) {
        if self.open.is_empty() && (self.lingers || measures()) {
            self.put_at = PutTime::now();
        }
    }
}

impl<T> Partition<T> {
    /// Under the gate: a segment is about to enter the channel.
    pub(super) fn note_oldest_sealed(&self, gate: &Gate<T>, put_at: PutTime) {
        if !self.has_sealed(gate) {
            self.store_oldest_sealed(put_at);
        }
    }

    pub(super) fn store_oldest_sealed(&self, put_at: PutTime) {
        if measures() {
            // Relaxed: read under the lock of the lanes and under the gate.
            self.drain_side.oldest_sealed_ns.store(put_at.nanos(), Ordering::Relaxed);
        }
    }

    /// Whether segments are in the channel. A producer may count some that the thread inside has
    /// just received.
    fn has_sealed(&self, gate: &Gate<T>) -> bool {
        // Relaxed: a figure, but under the lock of the lanes, where it changes.
        gate.sealed > self.drain_side.received.load(Ordering::Relaxed)
    }

    /// When the oldest item was put that no call has had yet; `None` if no item waits. For an item
    /// in the channel, this may be too early by the time that one segment took to fill.
    pub(crate) fn oldest_put(&self) -> Option<Instant> {
        let lanes = self.lanes.lock();
        let gate = self.gate.lock();
        let queued = if self.has_sealed(&gate) {
            // Relaxed: as in `store_oldest_sealed`.
            Some(PutTime::of_nanos(self.drain_side.oldest_sealed_ns.load(Ordering::Relaxed)))
        } else {
            (!gate.open.is_empty()).then_some(gate.put_at)
        };
        drop(gate);
        queued.into_iter().chain(lanes.oldest_untried()).min().map(Instant::from)
    }
}
