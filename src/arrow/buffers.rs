//! Buffers of columns that come back when the last slice of the column is dropped.
//!
//! A copy of a column takes some hundred KiB, which one thread fills and another drops. The allocator gives such memory back to the
//! system and gets it again page by page, which costs as much as the copy.

use std::fmt;

use arrow_buffer::{ArrowNativeType, Buffer, MutableBuffer, ScalarBuffer};

use crate::sync::{Arc, SegmentChannel};

/// Buffers of one size that wait for their next use.
const MOST: usize = 8;

/// Sizes are powers of two, and these are their logarithms. The allocator does as well for smaller ones. All that are kept
/// together are below 16 MiB.
const SIZES: std::ops::RangeInclusive<u32> = 14..=20;

/// The buffers of one user, by size; clones share them.
#[derive(Clone)]
pub struct Buffers(Arc<[SegmentChannel<MutableBuffer>]>);

impl Default for Buffers {
    fn default() -> Self {
        Self(SIZES.map(|_| SegmentChannel::bounded(MOST)).collect())
    }
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
        let memory = match self.of_size(size) {
            Some(kept) => kept.try_recv().unwrap_or_else(|| MutableBuffer::from_len_zeroed(size)),
            None => MutableBuffer::from_len_zeroed(bytes),
        };
        Values { buffer: Lent { memory, bytes, home: self.clone() }, native: std::marker::PhantomData }
    }

    /// Where buffers of this size are kept, if they are.
    fn of_size(&self, bytes: usize) -> Option<&SegmentChannel<MutableBuffer>> {
        let size = bytes.is_power_of_two().then(|| bytes.trailing_zeros())?;
        self.0.get(size.checked_sub(*SIZES.start())? as usize)
    }

    fn keep(&self, memory: MutableBuffer) {
        if let Some(kept) = self.of_size(memory.len()) {
            // One too many goes back to the allocator.
            drop(kept.try_send(memory));
        }
    }
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
        let all = buffers.0.iter().map(|size| std::iter::from_fn(|| size.try_recv()).count());
        all.sum()
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
        drop((0..MOST + 5).map(|_| buffers.values::<u8>(SMALLEST)).collect::<Vec<_>>());
        drop(buffers.values::<u8>(LARGEST));
        assert_eq!(kept(&buffers), MOST + 1);
        for size in [0, 1, SMALLEST / 2, LARGEST + 1] {
            let values = buffers.values::<u8>(size);
            assert_eq!(values.as_slice().len(), size);
            drop(values);
            assert_eq!(kept(&buffers), 0);
        }
    }
}
