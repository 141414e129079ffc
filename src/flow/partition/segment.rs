//! Segments: runs of items that travel as a unit from the producers to a handler.

use smallvec::SmallVec;

/// The segments of a batch, usually a single one.
pub(crate) type Segments<T> = SmallVec<[Vec<T>; 1]>;

/// The segments of one take, each with the weight of its items.
pub(crate) type TakenSegments<T> = SmallVec<[(Vec<T>, usize); 1]>;

/// The channel slots of the largest buffers; a slot is 24 bytes and a stamp.
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
