//! A pool of column buffers. A buffer returns to it when the last slice of its column is dropped.
//!
//! A copied column takes a few hundred KiB, allocated by one thread and freed by another. The
//! allocator returns memory of that size to the system and faults it in again page by page, which
//! costs as much as the copy.

use std::fmt;

use arrow_buffer::{ArrowNativeType, Buffer, MutableBuffer, ScalarBuffer};

use std::sync::Arc;

use crate::sync::Mutex;

/// The most bytes kept for reuse: enough for six batches of five columns, each of a full chunk of
/// rows.
const MAX_BYTES: usize = 16 << 20;

/// The size classes, as binary logarithms: every size is a power of two. The allocator handles
/// smaller buffers just as well.
const SIZE_CLASSES: std::ops::RangeInclusive<u32> = 14..=20;

/// A pool of buffers. Clones share the pool.
#[derive(Clone, Default)]
pub struct Buffers(Arc<Mutex<FreeLists>>);

#[derive(Default)]
struct FreeLists {
    /// The buffer that returned last is used first: part of it may still be in a cache.
    by_size: [Vec<MutableBuffer>; (*SIZE_CLASSES.end() - *SIZE_CLASSES.start() + 1) as usize],
    /// The total of all kept buffers.
    bytes: usize,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

impl Buffers {
    /// A buffer of `len` values with unspecified contents.
    pub(super) fn values<N: ArrowNativeType>(&self, len: usize) -> PooledValues<N> {
        let bytes = len * size_of::<N>();
        let size = bytes.next_power_of_two();
        let memory = match class_of(size) {
            Some(class) => {
                self.0.lock().take(class).unwrap_or_else(|| MutableBuffer::from_len_zeroed(size))
            }
            None => MutableBuffer::from_len_zeroed(bytes),
        };
        PooledValues {
            buffer: PooledBuffer { memory, bytes, pool: self.clone() },
            native: std::marker::PhantomData,
        }
    }

    fn keep(&self, memory: MutableBuffer) {
        let Some(class) = class_of(memory.len()) else { return };
        // Freed after the lock is released.
        let mut too_many = Vec::new();
        let mut kept = self.0.lock();
        while kept.bytes + memory.len() > MAX_BYTES {
            let Some(other) = kept.take_other(class) else { return };
            too_many.push(other);
        }
        kept.bytes += memory.len();
        kept.by_size[class].push(memory);
    }
}

impl FreeLists {
    fn take(&mut self, class: usize) -> Option<MutableBuffer> {
        let memory = self.by_size[class].pop()?;
        self.bytes -= memory.len();
        Some(memory)
    }

    /// Takes a buffer from the other class that holds the most bytes: it may belong to batches long
    /// gone.
    fn take_other(&mut self, class: usize) -> Option<MutableBuffer> {
        let bytes =
            |&other: &usize| self.by_size[other].len() << (*SIZE_CLASSES.start() as usize + other);
        let fullest = (0..self.by_size.len()).filter(|&other| other != class).max_by_key(bytes)?;
        self.take(fullest)
    }
}

/// The size class of a buffer. Returns `None` if buffers of this size are not kept.
fn class_of(bytes: usize) -> Option<usize> {
    let size = bytes
        .is_power_of_two()
        .then(|| bytes.trailing_zeros())
        .filter(|size| SIZE_CLASSES.contains(size))?;
    Some((size - SIZE_CLASSES.start()) as usize)
}

/// A buffer in use. Dropping it returns the memory to the pool.
struct PooledBuffer {
    memory: MutableBuffer,
    /// How many bytes are in use, from the start.
    bytes: usize,
    pool: Buffers,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.bytes]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.pool.keep(std::mem::replace(&mut self.memory, MutableBuffer::new(0)));
    }
}

/// Values that are written once, then frozen and shared.
pub(super) struct PooledValues<N> {
    buffer: PooledBuffer,
    native: std::marker::PhantomData<N>,
}

impl<N: ArrowNativeType> PooledValues<N> {
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

    const SMALLEST: usize = 1 << *SIZE_CLASSES.start();
    const LARGEST: usize = 1 << *SIZE_CLASSES.end();

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
        assert_eq!(kept(&buffers), 0, "the buffer is still in use");
        assert_eq!(*part, [7; 5]);
        let address = part.as_ptr();
        drop(part);
        let again = buffers.values::<u32>(2 * SMALLEST - 1);
        assert_eq!(again.as_slice().len(), 2 * SMALLEST - 1);
        assert_eq!(again.as_slice().as_ptr().wrapping_add(6).cast(), address);
    }

    #[test]
    fn the_pool_is_bounded() {
        let buffers = Buffers::default();
        let many = |count: usize, bytes: usize| {
            (0..count).map(|_| buffers.values::<u8>(bytes)).collect::<Vec<_>>()
        };
        drop(many(3, SMALLEST));
        assert_eq!((kept(&buffers), buffers.0.lock().bytes), (3, 3 * SMALLEST));
        // Buffers of another size class make room.
        drop(many(MAX_BYTES / LARGEST + 2, LARGEST));
        assert_eq!((kept(&buffers), buffers.0.lock().bytes), (MAX_BYTES / LARGEST, MAX_BYTES));
        drop(many(1, SMALLEST));
        assert_eq!(kept(&buffers), MAX_BYTES / LARGEST);
        assert_eq!(buffers.0.lock().bytes, MAX_BYTES - LARGEST + SMALLEST);
        *buffers.0.lock() = FreeLists::default();
        for size in [0, 1, SMALLEST / 2, LARGEST + 1] {
            let values = buffers.values::<u8>(size);
            assert_eq!(values.as_slice().len(), size);
            drop(values);
            assert_eq!(kept(&buffers), 0);
        }
    }
}
