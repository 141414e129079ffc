//! Segments: runs of items that travel as a unit from the producers to a handler.

use smallvec::SmallVec;

use crate::sync::{Duration, Instant, OnceLock, now};

/// What the times are counted from. Set when the first queue is made: a child that was forked while
/// a producer sets it would wait for that forever.
static START: OnceLock<Instant> = OnceLock::new();

/// A point in time, in eight bytes: nanoseconds since the first one of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PutTime(u64);

impl PutTime {
    /// Sets what the times are counted from, unless it is set.
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
    /// When the first of them was put.
    pub(crate) put_at: PutTime,
}

/// The segments of one take.
pub(crate) type TakenSegments<T> = SmallVec<[Segment<T>; 1]>;

/// The channel slots of the largest buffers; a slot is 40 bytes and a stamp.
const MOST_SEGMENTS: usize = 8_192;

/// The number of items per sealed segment: small enough for the bound and the batch limit, large
/// enough that the channel of even a huge buffer has few slots.
pub(crate) fn segment_size(buffer_size: usize, max_batch_items: usize) -> usize {
    let for_buffer = (buffer_size / 128).next_power_of_two().clamp(256, 4096);
    // The lower bound takes precedence over a small batch limit: the channel of a huge buffer stays
    // at a few thousand slots.
    let largest = for_buffer.min(buffer_size.div_ceil(4)).min(max_batch_items);
    // A whole number of them makes up a batch, so that few have to be split.
    let dividing = max_batch_items.div_ceil(max_batch_items.div_ceil(largest));
    dividing.max(buffer_size / MOST_SEGMENTS)
}
