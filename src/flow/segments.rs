//! Segments: runs of items that travel as a unit from the producers to a handler.

use smallvec::SmallVec;

use crate::sync::{Arc, Duration, Instant, OnceLock, QuickMutex, now};

/// The origin of put times. Set when the bindings are loaded, otherwise when the first queue is
/// created: a child forked while another thread sets it would wait for that forever.
static START: OnceLock<Instant> = OnceLock::new();

/// A point in time in eight bytes: nanoseconds since the origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PutTime(u64);

impl PutTime {
    /// Sets the origin of put times unless it is already set.
    pub(crate) fn start() {
        START.get_or_init(now);
    }

    #[inline]
    pub(crate) fn now() -> Self {
        let passed = now().saturating_duration_since(*START.get_or_init(now));
        Self(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn of_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) fn nanos(self) -> u64 {
        self.0
    }
}

impl From<PutTime> for Instant {
    fn from(time: PutTime) -> Self {
        *START.get_or_init(now) + Duration::from_nanos(time.0)
    }
}

/// The segments of a batch, usually a single one.
pub(crate) type Segments<T> = SmallVec<[Vec<T>; 1]>;

/// A run of items on its way from the gate to the lanes.
#[derive(Debug)]
pub(crate) struct Segment<T> {
    pub(crate) items: Vec<T>,
    pub(crate) weight: usize,
    /// When the first item was put.
    pub(crate) put_at: PutTime,
}

/// The segments of one take.
pub(crate) type TakenSegments<T> = SmallVec<[Segment<T>; 1]>;

/// The channel slots of the largest buffers; a slot takes 40 bytes and a stamp.
const MOST_SEGMENTS: usize = 8_192;

/// Returns the number of items per sealed segment: small enough for the bound and the batch limit,
/// large enough that the channel of even a huge buffer has few slots.
pub(crate) fn segment_size(buffer_size: usize, max_batch_items: usize) -> usize {
    let for_buffer = (buffer_size / 128).next_power_of_two().clamp(256, 4096);
    // The lower bound takes precedence over a small batch limit: the channel of a huge buffer stays
    // at a few thousand slots.
    let largest = for_buffer.min(buffer_size.div_ceil(4)).min(max_batch_items);
    // A whole number of segments makes up a batch, so that few have to be split.
    let dividing = max_batch_items.div_ceil(max_batch_items.div_ceil(largest));
    dividing.max(buffer_size / MOST_SEGMENTS)
}

// The cache of emptied segments, kept for later takes and puts.
//
// Drain threads empty segments, while takes and producers need new ones. Memory that passes through
// the allocator would be returned to the system in between, and faulted in again page by page.
//
// The bytes kept are bounded: 4 KiB in a partition where the last take found nothing, 16 KiB in the
// others, 512 KiB per drain thread, 2 MiB in the pool of a queue. An idle queue gives back half of
// the last two each second.
//
// The segment emptied last is reused first, because it is still in a cache.
//
// | field | written by | read by |
// |---|---|---|
// | `SegmentCache.own`, `idle` | its drain thread | the same |
// | `SegmentPool` | drain threads with a surplus | sealing producers, drain threads |

/// The capacity of the open segment that a take leaves behind, so that the next puts need not
/// allocate, which would halve their rate.
pub(crate) const KEPT_CAPACITY: usize = 256;

/// The same limit in bytes, for larger items: each partition of a queue may have such a segment.
const KEPT_BYTES: usize = 4 << 10;

/// The largest full-size segment, in bytes, that a take may leave in a busy partition, until a turn
/// finds nothing there.
const MOST_LEFT_BYTES: usize = 16 << 10;

/// The most emptied segments that a drain thread keeps, 512 KiB.
const MAX_OWN: usize = 128;

/// The most emptied segments that wait for producers, in the whole queue.
const MAX_POOLED: usize = 512;

/// The same limit in bytes.
const MAX_POOLED_BYTES: usize = 2 << 20;

/// Returns the largest capacity that a take leaves behind and a drain thread keeps: a power of two,
/// so that the segment grows to full size by doubling.
pub(crate) const fn kept_capacity<T>() -> usize {
    match size_of::<T>() {
        0..=16 => KEPT_CAPACITY,
        size if size > KEPT_BYTES => 0,
        size => 1 << (KEPT_BYTES / size).ilog2(),
    }
}

/// Full-size segments that drain threads do not need, kept for the producers of their queue.
#[derive(Debug)]
pub(crate) struct SegmentPool<T> {
    segment_size: usize,
    waiting: QuickMutex<Vec<Vec<T>>>,
}

impl<T> SegmentPool<T> {
    pub(crate) fn new(segment_size: usize) -> Self {
        Self { segment_size, waiting: QuickMutex::default() }
    }

    /// Returns an empty segment to replace a sealed one.
    pub(super) fn segment(&self) -> Vec<T> {
        self.pooled().unwrap_or_else(|| Vec::with_capacity(self.segment_size))
    }

    /// Returns a pooled segment, or `None` if there is none or another thread uses the pool: a
    /// producer holds its gate meanwhile, and would wait for a thread that may have lost its core.
    fn pooled(&self) -> Option<Vec<T>> {
        self.waiting.try_lock()?.pop()
    }

    /// Returns the largest capacity that is kept. A segment that grew by doubling may exceed the
    /// capacity of a new one.
    fn largest(&self) -> usize {
        self.segment_size.next_power_of_two()
    }

    /// Whether a take may leave full-size segments behind: they must be larger than those that it
    /// leaves in any partition.
    fn may_be_left(&self) -> bool {
        let bytes = self.largest().saturating_mul(size_of::<T>());
        (1..self.segment_size).contains(&kept_capacity::<T>()) && bytes <= MOST_LEFT_BYTES
    }

    fn most(&self) -> usize {
        let bytes = self.largest().saturating_mul(size_of::<T>()).max(1);
        (MAX_POOLED_BYTES / bytes).min(MAX_POOLED)
    }

    fn keep(&self, segment: Vec<T>) {
        let (most, capacity) = (self.most(), segment.capacity());
        if !(self.segment_size..=self.largest()).contains(&capacity) {
            return;
        }
        // `try_lock` as in `pooled`. A segment that is not kept is freed outside the lock.
        if let Some(mut waiting) = self.waiting.try_lock()
            && waiting.len() < most
        {
            waiting.push(segment);
        }
    }

    /// Frees all but a `2^halvings`-th part.
    fn halve(&self, halvings: u32) {
        let mut waiting = self.waiting.lock();
        let kept = halved(waiting.len(), halvings);
        let freed = waiting.split_off(kept);
        waiting.shrink_to_fit();
        drop(waiting);
        drop(freed);
    }
}

fn halved(count: usize, halvings: u32) -> usize {
    count.checked_shr(halvings).unwrap_or(0)
}

/// The emptied segments of one drain thread.
#[derive(Debug)]
pub(crate) struct SegmentCache<T> {
    own: Vec<Vec<T>>,
    pool: Arc<SegmentPool<T>>,
    /// The start of the current idle period, and the number of times that the cache was halved in
    /// it.
    idle: Option<(Instant, u32)>,
}

impl<T> SegmentCache<T> {
    pub(crate) fn new(pool: Arc<SegmentPool<T>>) -> Self {
        Self { own: Vec::new(), pool, idle: None }
    }

    /// Keeps an emptied segment if its capacity is that of segments that takes leave behind or
    /// producers fill. A segment cut off another one is smaller, and would grow put by put.
    pub(crate) fn keep(&mut self, segment: Vec<T>) {
        let least = self.pool.segment_size.min(kept_capacity::<T>()).max(1);
        let kept = least..=kept_capacity::<T>();
        if kept.contains(&segment.capacity()) && self.own.len() < MAX_OWN {
            self.own.push(segment);
        } else {
            self.pool.keep(segment);
        }
    }

    /// Returns an empty segment of at most [`kept_capacity`]. A newly allocated one has room for
    /// `size` items if that is less.
    pub(crate) fn segment(&mut self, size: usize) -> Vec<T> {
        self.own.pop().unwrap_or_else(|| Vec::with_capacity(size.min(kept_capacity::<T>())))
    }

    /// Returns an empty full-size segment for a busy partition, if there is one and it may be left
    /// there. Allocates nothing, because the caller holds a gate.
    pub(crate) fn full_size(&self) -> Option<Vec<T>> {
        if self.pool.may_be_left() { self.pool.pooled() } else { None }
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn count(&self) -> usize {
        self.own.len()
    }

    /// Begins an idle period.
    pub(crate) fn begin_idle(&mut self) {
        self.idle = Some((Instant::now(), 0));
    }

    /// Frees half of the cache for each idle second, before a sleep for `limit`. The seconds of the
    /// sleep count too, because the thread does not wake up for this. One thread of the queue does
    /// the same `for_producers`.
    pub(crate) fn give_back(&mut self, limit: Duration, for_producers: bool) {
        let Some((since, before)) = self.idle else { return };
        let seconds = since.elapsed().saturating_add(limit).as_secs();
        let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
        if seconds > before {
            self.idle = Some((since, seconds));
            self.own.truncate(halved(self.own.len(), seconds - before));
            if for_producers {
                self.pool.halve(seconds - before);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod segment_pool_tests {
    use super::*;

    fn cache(segment_size: usize) -> SegmentCache<u64> {
        SegmentCache::new(Arc::new(SegmentPool::new(segment_size)))
    }

    fn pooled<T>(segment_cache: &SegmentCache<T>) -> usize {
        std::iter::from_fn(|| segment_cache.pool.pooled()).count()
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
        for (size, most) in [
            (1, 512),
            (KEPT_CAPACITY, 512),
            (16 * KEPT_CAPACITY, 64),
            (1_000 * KEPT_CAPACITY, 1),
            (10_000 * KEPT_CAPACITY, 0),
        ] {
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

    #[test]
    fn what_was_cut_off_a_segment_is_not_kept() {
        let mut segment_cache = cache(KEPT_CAPACITY);
        segment_cache.keep(Vec::with_capacity(KEPT_CAPACITY - 1));
        assert_eq!(segment_cache.segment(KEPT_CAPACITY).capacity(), KEPT_CAPACITY);
    }

    #[test]
    fn a_producer_gets_the_segment_that_was_emptied_last() {
        let segment_cache = cache(4 * KEPT_CAPACITY);
        let segments = [(); 3].map(|()| Vec::with_capacity(4 * KEPT_CAPACITY));
        let last = segments[2].as_ptr();
        for segment in segments {
            segment_cache.pool.keep(segment);
        }
        let got = segment_cache.pool.segment();
        assert_eq!(got.as_ptr(), last);
    }

    /// Returns whether a take may leave a segment of `segment_size` items of `T` behind.
    fn leaves<T>(segment_size: usize) -> bool {
        let mut segment_cache = SegmentCache::<T>::new(Arc::new(SegmentPool::new(segment_size)));
        let full_size = Vec::with_capacity(segment_size);
        segment_cache.own.resize_with(MAX_OWN, Vec::new);
        segment_cache.keep(full_size);
        segment_cache.full_size().is_some()
    }

    #[test]
    fn a_take_leaves_full_segments_of_up_to_16_kib_behind() {
        assert!(leaves::<[u8; 16]>(1_024));
        assert!(!leaves::<[u8; 16]>(1_025), "it may have grown to 2,048 items");
        assert!(leaves::<[u8; 32]>(500));
        assert!(!leaves::<[u8; 33]>(500));
        assert!(!leaves::<[u8; 16]>(KEPT_CAPACITY), "no larger than what is left anyway");
        assert!(!leaves::<[u8; 5_000]>(3), "a partition keeps none so large");
    }

    /// Returns the bytes that a thread and a queue keep in segments with this capacity for items of
    /// `T`.
    fn kept_bytes<T>(segment_size: usize, capacity: usize) -> (usize, usize) {
        let mut segment_cache = SegmentCache::<T>::new(Arc::new(SegmentPool::new(segment_size)));
        for _ in 0..2_000 {
            segment_cache.keep(Vec::with_capacity(capacity));
        }
        let bytes = |count| count * capacity * size_of::<T>();
        (bytes(segment_cache.own.len()), bytes(pooled(&segment_cache)))
    }

    #[test]
    fn kept_segments_of_large_items_are_bounded_in_bytes() {
        for capacity in [1, 2, 4, 8, 250, 256, 4_096] {
            for segment_size in [250, 256, 4_096] {
                let (own, pooled) = kept_bytes::<[u8; 1_024]>(segment_size, capacity);
                assert!(own <= 1 << 20, "{own} bytes for a thread");
                assert!(pooled <= 2 << 20, "{pooled} bytes for a queue");
            }
        }
        assert_eq!(kept_bytes::<[u8; 1_024]>(256, 256), (0, 2 << 20));
        assert_eq!(kept_bytes::<[u8; 1_024]>(250, 256), (0, 2 << 20), "one that has grown");
        assert_eq!(kept_bytes::<[u8; 1_024]>(256, 4), (512 << 10, 0));
        assert_eq!(kept_bytes::<[u8; 5_000]>(1_000, 1_000), (0, 0));
        assert_eq!(kept_bytes::<()>(256, 256), (0, 0));
    }

    #[test]
    fn a_segment_that_is_left_behind_grows_to_a_full_one() {
        assert_eq!(kept_capacity::<[u8; 16]>(), 256);
        assert_eq!(kept_capacity::<[u8; 24]>(), 128);
        assert_eq!(kept_capacity::<[u8; 1_024]>(), 4);
        assert_eq!(kept_capacity::<[u8; 4_097]>(), 0);
        assert_eq!(kept_capacity::<()>(), 256);
    }

    /// Returns the cache of a thread that has been idle for this many milliseconds.
    fn idle(millis: u64) -> SegmentCache<u64> {
        let mut segment_cache = cache(2 * KEPT_CAPACITY);
        for _ in 0..100 {
            segment_cache.keep(Vec::with_capacity(KEPT_CAPACITY));
            segment_cache.keep(Vec::with_capacity(2 * KEPT_CAPACITY));
        }
        segment_cache.begin_idle();
        let since = Instant::now().checked_sub(Duration::from_millis(millis));
        segment_cache.idle = since.map(|since| (since, 0));
        segment_cache
    }

    #[test]
    fn an_idle_thread_gives_back_half_each_second() {
        let none = Duration::ZERO;
        for (millis, left) in [(500, 100), (1_500, 50), (3_500, 12), (60_500, 0)] {
            let mut segment_cache = idle(millis);
            segment_cache.give_back(none, true);
            segment_cache.give_back(none, true);
            assert_eq!((segment_cache.own.len(), pooled(&segment_cache)), (left, left));
        }
    }

    #[test]
    fn a_long_sleep_is_paid_for_in_advance() {
        let mut segment_cache = idle(500);
        segment_cache.give_back(Duration::from_millis(600), true);
        assert_eq!(segment_cache.own.len(), 50);
        segment_cache.give_back(Duration::MAX, true);
        assert_eq!((segment_cache.own.len(), pooled(&segment_cache)), (0, 0));
    }

    #[test]
    fn one_thread_gives_back_what_producers_would_get() {
        let mut segment_cache = idle(1_500);
        segment_cache.give_back(Duration::ZERO, false);
        assert_eq!((segment_cache.own.len(), pooled(&segment_cache)), (50, 100));
    }
}
