//! Emptied segments, kept for later takes and puts.
//!
//! Drain threads empty segments, and takes and producers need new ones. Memory that passes through
//! the allocator is returned to the system in between, and faulted in again page by page.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `SegmentCache.own` | its drain thread | the same |
//! | `SegmentPool` | drain threads with a surplus | producers that seal a segment |

use crate::sync::{Arc, OnceLock, SegmentChannel};

/// The capacity that a new open segment gets, so that the next puts need not allocate: 4 KiB for
/// 16-byte items.
pub(crate) const KEPT_CAPACITY: usize = 256;

/// The most emptied segments that a drain thread keeps: 512 KiB for 16-byte items.
const MAX_OWN: usize = 128;

/// The most emptied segments that wait for producers, in the whole queue: 2 MiB for 16-byte items.
/// There are fewer of larger segments, with the same total capacity.
const MAX_POOLED: usize = 512;

/// Full-size segments that drain threads do not need, for the producers of their queue.
#[derive(Debug)]
pub(crate) struct SegmentPool<T> {
    segment_size: usize,
    waiting: OnceLock<SegmentChannel<Vec<T>>>,
}

impl<T> SegmentPool<T> {
    pub(crate) fn new(segment_size: usize) -> Self {
        Self { segment_size, waiting: OnceLock::new() }
    }

    /// An empty segment to replace a sealed one.
    pub(super) fn segment(&self) -> Vec<T> {
        let pooled = self.waiting.get().and_then(SegmentChannel::try_recv);
        pooled.unwrap_or_else(|| Vec::with_capacity(self.segment_size))
    }

    fn most(&self) -> usize {
        (MAX_POOLED * KEPT_CAPACITY / self.segment_size).clamp(1, MAX_POOLED)
    }

    fn keep(&self, segment: Vec<T>) {
        if segment.capacity() == self.segment_size {
            let most = self.most();
            // A surplus segment is freed.
            drop(self.waiting.get_or_init(|| SegmentChannel::bounded(most)).try_send(segment));
        }
    }
}

/// The emptied segments of one drain thread.
#[derive(Debug)]
pub(crate) struct SegmentCache<T> {
    own: Vec<Vec<T>>,
    pool: Arc<SegmentPool<T>>,
}

impl<T> SegmentCache<T> {
    pub(crate) fn new(pool: Arc<SegmentPool<T>>) -> Self {
        Self { own: Vec::new(), pool }
    }

    /// Keeps an emptied segment if its capacity is that of the segments that takes leave behind, or
    /// that producers fill.
    pub(crate) fn keep(&mut self, segment: Vec<T>) {
        if (1..=KEPT_CAPACITY).contains(&segment.capacity()) && self.own.len() < MAX_OWN {
            self.own.push(segment);
        } else {
            self.pool.keep(segment);
        }
    }

    /// An empty segment. If it is newly allocated, it has room for `size` items.
    pub(crate) fn segment(&mut self, size: usize) -> Vec<T> {
        self.own.pop().unwrap_or_else(|| Vec::with_capacity(size))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn cache(segment_size: usize) -> SegmentCache<u64> {
        SegmentCache::new(Arc::new(SegmentPool::new(segment_size)))
    }

    fn pooled(segment_cache: &SegmentCache<u64>) -> usize {
        std::iter::from_fn(|| segment_cache.pool.waiting.get().and_then(SegmentChannel::try_recv))
            .count()
    }

    #[test]
    fn a_producer_gets_a_segment_that_a_drain_thread_cannot_keep() {
        let mut segment_cache = cache(KEPT_CAPACITY);
        let segments: Vec<_> = (0..=MAX_OWN).map(|_| Vec::with_capacity(KEPT_CAPACITY)).collect();
        let last = segments[MAX_OWN].as_ptr();
        for segment in segments {
            segment_cache.keep(segment);
        }
        let got = segment_cache.pool.segment();
        assert_eq!(got.as_ptr(), last);
        assert_eq!(segment_cache.own.len(), MAX_OWN);
    }

    #[test]
    fn a_producer_gets_the_large_segments_of_a_large_buffer() {
        let mut segment_cache = cache(4 * KEPT_CAPACITY);
        let large = Vec::with_capacity(4 * KEPT_CAPACITY);
        let address = large.as_ptr();
        segment_cache.keep(large);
        assert!(segment_cache.own.is_empty());
        let got = segment_cache.pool.segment();
        assert_eq!(got.as_ptr(), address);
    }

    #[test]
    fn kept_segments_are_bounded() {
        for (size, most) in
            [(1, 512), (KEPT_CAPACITY, 512), (16 * KEPT_CAPACITY, 32), (1_000 * KEPT_CAPACITY, 1)]
        {
            let mut segment_cache = cache(size);
            for _ in 0..MAX_OWN + most + 10 {
                segment_cache.keep(Vec::with_capacity(size));
            }
            assert_eq!(segment_cache.own.len(), if size <= KEPT_CAPACITY { MAX_OWN } else { 0 });
            assert_eq!(pooled(&segment_cache), most);
        }
    }

    #[test]
    fn empty_and_odd_sized_segments_are_not_kept() {
        let mut segment_cache = cache(2 * KEPT_CAPACITY);
        segment_cache.keep(Vec::new());
        segment_cache.keep(Vec::with_capacity(KEPT_CAPACITY + 1));
        assert!(segment_cache.own.is_empty());
        assert_eq!(pooled(&segment_cache), 0);
        assert_eq!(segment_cache.segment(3).capacity(), 3);
    }
}
