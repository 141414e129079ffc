//! Buffers of columns that come back when the last slice of the column is dropped.
//!
//! A copy of a column takes some hundred KiB, which one thread fills and another drops. The
//! allocator gives such memory back to the system and gets it again page by page, which costs as
//! much as the copy.

use std::fmt;

use arrow_buffer::{ArrowNativeType, Buffer, MutableBuffer, ScalarBuffer};

use crate::sync::{Arc, Mutex};

/// Bytes that wait for their next use: what six batches need of five columns with as many rows as
/// are split at once.
const MOST_BYTES: usize = 16 << 20;

/// Sizes are powers of two, and these are their logarithms. The allocator does as well for smaller
/// ones.
const SIZES: std::ops::RangeInclusive<u32> = 14..=20;

/// The buffers of one user; clones share them.
#[derive(Clone, Default)]
pub struct Buffers(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    /// The one that came last is used next: some of it may still be in a cache.
    by_size: [Vec<MutableBuffer>; (*SIZES.end() - *SIZES.start() + 1) as usize],
    /// Of all that are kept.
    bytes: usize,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

impl Buffers {
    /// A buffer with `len` values; what they are is whatever was there.
    pub(super) fn values<N: ArrowNativeType>(&self, len: usize) -> Values<N> {
        let bytes = len * size_of::<N>();
        let size = bytes.next_power_of_two();
        let memory = match place_of(size) {
            Some(place) => {
                self.0.lock().take(place).unwrap_or_else(|| MutableBuffer::from_len_zeroed(size))
            }
            None => MutableBuffer::from_len_zeroed(bytes),
        };
        Values {
            buffer: Lent { memory, bytes, home: self.clone() },
            native: std::marker::PhantomData,
        }
    }

    fn keep(&self, memory: MutableBuffer) {
        let Some(place) = place_of(memory.len()) else { return };
        // They go back to the allocator behind the lock.
        let mut too_many = Vec::new();
        let mut kept = self.0.lock();
        while kept.bytes + memory.len() > MOST_BYTES {
            let Some(other) = kept.take_other(place) else { return };
            too_many.push(other);
        }
        kept.bytes += memory.len();
        kept.by_size[place].push(memory);
    }
}

impl Kept {
    fn take(&mut self, place: usize) -> Option<MutableBuffer> {
        let memory = self.by_size[place].pop()?;
        self.bytes -= memory.len();
        Some(memory)
    }

    /// One of the size that most of the others have: it may be that of batches long ago.
    fn take_other(&mut self, place: usize) -> Option<MutableBuffer> {
        let bytes = |&other: &usize| self.by_size[other].len() << (*SIZES.start() as usize + other);
        let fullest = (0..self.by_size.len()).filter(|&other| other != place).max_by_key(bytes)?;
        self.take(fullest)
    }
}

/// Where buffers of this size are kept, if they are.
fn place_of(bytes: usize) -> Option<usize> {
    let size = bytes
        .is_power_of_two()
        .then(|| bytes.trailing_zeros())
        .filter(|size| SIZES.contains(size))?;
    Some((size - SIZES.start()) as usize)
}

/// A buffer, until it goes home.
struct Lent {
    memory: MutableBuffer,
    /// Those in use, from its beginning.
    bytes: usize,
    home: Buffers,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.bytes]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.keep(std::mem::replace(&mut self.memory, MutableBuffer::new(0)));
    }
}

/// Values to be written, and then to be read by many.
pub(super) struct Values<N> {
    buffer: Lent,
    native: std::marker::PhantomData<N>,
}

impl<N: ArrowNativeType> Values<N> {
    pub(super) fn as_mut(&mut self) -> &mut [N] {
        let len = self.buffer.bytes / size_of::<N>();
        &mut self.buffer.memory.typed_data_mut()[..len]
    }

    pub(super) fn as_slice(&self) -> &[N] {
        &self.buffer.memory.typed_data()[..self.buffer.bytes / size_of::<N>()]
    }

    pub(super) fn freeze(self) -> ScalarBuffer<N> {
        Buffer::from(bytes::Bytes::from_owner(self.buffer)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: usize = 1 << *SIZES.start();
    const LARGEST: usize = 1 << *SIZES.end();

    fn kept(buffers: &Buffers) -> usize {
        buffers.0.lock().by_size.iter().map(Vec::len).sum()
    }

    #[test]
    fn a_buffer_comes_back_when_the_last_slice_is_dropped() {
        let buffers = Buffers::default();
        let mut values = buffers.values::<u64>(SMALLEST - 3);
        values.as_mut().fill(7);
        let column = values.freeze();
        let part = column.slice(3, 5);
        drop(column);
        assert_eq!(kept(&buffers), 0, "it is in use");
        assert_eq!(*part, [7; 5]);
        let address = part.as_ptr();
        drop(part);
        let again = buffers.values::<u32>(2 * SMALLEST - 1);
        assert_eq!(again.as_slice().len(), 2 * SMALLEST - 1);
        assert_eq!(again.as_slice().as_ptr().wrapping_add(6).cast(), address);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let buffers = Buffers::default();
        let many = |count: usize, bytes: usize| {
            (0..count).map(|_| buffers.values::<u8>(bytes)).collect::<Vec<_>>()
        };
        drop(many(3, SMALLEST));
        assert_eq!((kept(&buffers), buffers.0.lock().bytes), (3, 3 * SMALLEST));
        // Those of another size make room.
        drop(many(MOST_BYTES / LARGEST + 2, LARGEST));
        assert_eq!((kept(&buffers), buffers.0.lock().bytes), (MOST_BYTES / LARGEST, MOST_BYTES));
        drop(many(1, SMALLEST));
        assert_eq!(kept(&buffers), MOST_BYTES / LARGEST);
        assert_eq!(buffers.0.lock().bytes, MOST_BYTES - LARGEST + SMALLEST);
        *buffers.0.lock() = Kept::default();
        for size in [0, 1, SMALLEST / 2, LARGEST + 1] {
            let values = buffers.values::<u8>(size);
            assert_eq!(values.as_slice().len(), size);
            drop(values);
            assert_eq!(kept(&buffers), 0);
        }
    }
}
