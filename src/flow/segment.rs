//! Segments: runs of items that travel from the producers to a handler as a whole.

use smallvec::SmallVec;

/// The segments of one take: mostly one.
pub(crate) type Segments<T> = SmallVec<[Vec<T>; 1]>;

/// Slots of the channel of the largest buffers, 24 bytes and a stamp each.
const MOST_SEGMENTS: usize = 8_192;

/// Items per sealed segment: small enough for the bound and the batch limit, large enough that even
/// a huge buffer has a channel of a few hundred slots.
pub(crate) fn segment_size(buffer_size: usize, max_batch_items: usize) -> usize {
    let for_buffer = (buffer_size / 128).next_power_of_two().clamp(256, 4096);
    // The floor wins over a small batch limit: the channel of a huge buffer stays at a few thousand
    // slots.
    for_buffer.min(buffer_size.div_ceil(4)).min(max_batch_items).max(buffer_size / MOST_SEGMENTS)
}
