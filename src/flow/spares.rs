//! Spare segments: emptied ones, kept for later takes and puts.
//!
//! A drain thread empties segments, takes and producers need new ones. Memory that goes back and forth through the allocator
//! goes back to the system in between, and comes again page by page.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `Spares.own` | its drain thread | the same |
//! | `SparePool` | drain threads that have enough | producers that seal a segment |

use crate::sync::{Arc, OnceLock, SegmentChannel};

/// Room that an emptied open segment keeps, so that the next puts need not allocate: 4 KiB for 16-byte items.
pub(crate) const KEPT_CAPACITY: usize = 256;

/// Emptied segments that one drain thread keeps: 512 KiB for 16-byte items.
const MOST_OWN: usize = 128;

/// Emptied segments that wait for producers, in the whole queue: 2 MiB for 16-byte items.
const MOST_POOLED: usize = 512;

/// Whole segments that drain threads do not need, for the producers of their queue.
#[derive(Debug)]
pub(crate) struct SparePool<T>(OnceLock<SegmentChannel<Vec<T>>>);

impl<T> SparePool<T> {
    pub(crate) fn new() -> Self {
        Self(OnceLock::new())
    }

    /// An empty segment with room for `size` items.
    pub(super) fn segment(&self, size: usize) -> Vec<T> {
        let pooled = if size == KEPT_CAPACITY { self.0.get().and_then(SegmentChannel::try_recv) } else { None };
        pooled.unwrap_or_else(|| Vec::with_capacity(size))
    }

    fn keep(&self, segment: Vec<T>) {
        if segment.capacity() == KEPT_CAPACITY {
            // One too many goes back to the allocator.
            drop(self.0.get_or_init(|| SegmentChannel::bounded(MOST_POOLED)).try_send(segment));
        }
    }
}

/// The emptied segments of one drain thread.
#[derive(Debug)]
pub(crate) struct Spares<T> {
    own: Vec<Vec<T>>,
    pool: Arc<SparePool<T>>,
}

impl<T> Spares<T> {
    pub(crate) fn new(pool: Arc<SparePool<T>>) -> Self {
        Self { own: Vec::new(), pool }
    }

    /// Keeps an emptied segment, if it is of the size that takes leave behind.
    pub(crate) fn keep(&mut self, segment: Vec<T>) {
        if !(1..=KEPT_CAPACITY).contains(&segment.capacity()) {
            return;
        }
        if self.own.len() < MOST_OWN {
            self.own.push(segment);
        } else {
            self.pool.keep(segment);
        }
    }

    /// An empty segment; a new one has room for `size` items.
    pub(crate) fn segment(&mut self, size: usize) -> Vec<T> {
        self.own.pop().unwrap_or_else(|| Vec::with_capacity(size))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn spares() -> Spares<u64> {
        Spares::new(Arc::new(SparePool::new()))
    }

    #[test]
    fn a_producer_gets_what_a_drain_thread_has_too_many_of() {
        let mut spares = spares();
        let segments: Vec<_> = (0..=MOST_OWN).map(|_| Vec::with_capacity(KEPT_CAPACITY)).collect();
        let last = segments[MOST_OWN].as_ptr();
        for segment in segments {
            spares.keep(segment);
        }
        let got = spares.pool.segment(KEPT_CAPACITY);
        assert_eq!(got.as_ptr(), last);
        assert_eq!(spares.own.len(), MOST_OWN);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut spares = spares();
        let most = MOST_OWN + MOST_POOLED;
        for _ in 0..most + 10 {
            spares.keep(Vec::with_capacity(KEPT_CAPACITY));
        }
        assert_eq!(spares.own.len(), MOST_OWN);
        let pooled = std::iter::from_fn(|| spares.pool.0.get().and_then(SegmentChannel::try_recv)).count();
        assert_eq!(pooled, MOST_POOLED);
    }

    #[test]
    fn nothing_without_room_or_too_large_is_kept() {
        let mut spares = spares();
        spares.keep(Vec::new());
        spares.keep(Vec::with_capacity(KEPT_CAPACITY + 1));
        assert!(spares.own.is_empty());
        assert_eq!(spares.segment(3).capacity(), 3);
    }
}
