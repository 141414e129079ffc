//! Gathers the rows of a batch in a given order. Columns of numbers and strings are copied into
//! pooled buffers; every other type goes through arrow-select.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowDictionaryKeyType, ArrowPrimitiveType, ByteArrayType, GenericBinaryType, GenericStringType,
};
use arrow_array::{
    Array, ArrayRef, DictionaryArray, GenericByteArray, PrimitiveArray, RecordBatch,
    RecordBatchOptions, UInt32Array, downcast_dictionary_array, downcast_primitive_array,
};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer,
};
use arrow_schema::{ArrowError, DataType};
use arrow_select::take::take;

use crate::sync::Mutex;

/// Returns the rows of `batch` listed in `indices`, in that order.
///
/// In the column with index `repeated`, all rows of a range in `runs` (row ranges of the result)
/// hold the same value.
pub(super) fn gather(
    batch: &RecordBatch,
    indices: &[u32],
    repeated: usize,
    runs: &[Range<usize>],
    buffers: &Buffers,
) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().enumerate().map(|(place, column)| {
        let runs = if place == repeated { runs } else { &[] };
        Gatherer { indices, runs, buffers }.column(column)
    });
    let rows = RecordBatchOptions::new().with_row_count(Some(indices.len()));
    RecordBatch::try_new_with_options(batch.schema(), columns.collect::<Result<_, _>>()?, &rows)
}

/// Strings up to this many bytes are copied as one fixed-size block.
const SHORT: usize = 16;

#[derive(Clone, Copy)]
struct Gatherer<'a> {
    indices: &'a [u32],
    /// Row ranges of the result that hold a single value each, in order. Other rows may hold any.
    runs: &'a [Range<usize>],
    buffers: &'a Buffers,
}

impl Gatherer<'_> {
    fn column(self, column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        downcast_primitive_array! {
            column => Ok(Arc::new(self.numbers(column))),
            DataType::Utf8 => self.texts::<GenericStringType<i32>>(column),
            DataType::LargeUtf8 => self.texts::<GenericStringType<i64>>(column),
            DataType::Binary => self.texts::<GenericBinaryType<i32>>(column),
            DataType::LargeBinary => self.texts::<GenericBinaryType<i64>>(column),
            DataType::Dictionary(_, _) => downcast_dictionary_array! {
                column => self.dictionary(column),
                _ => self.other(column)
            },
            _ => self.other(column)
        }
    }

    fn other(self, column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        take(column, &UInt32Array::from(self.indices.to_vec()), None)
    }

    /// Yields ranges that cover the result in order: each run with the row that its value comes
    /// from, and the rows between runs with `None`.
    fn pieces(self) -> impl Iterator<Item = (Range<usize>, Option<u32>)> {
        let mut end = 0;
        let rest = self.runs.last().map_or(0, |last| last.end)..self.indices.len();
        let runs = self.runs.iter().flat_map(move |run| {
            let between = std::mem::replace(&mut end, run.end)..run.start;
            [(between, None), (run.clone(), self.indices.get(run.start).copied())]
        });
        runs.chain([(rest, None)])
    }

    fn numbers<T: ArrowPrimitiveType>(self, column: &PrimitiveArray<T>) -> PrimitiveArray<T> {
        let (from, mut to) =
            (column.values(), self.buffers.values::<T::Native>(self.indices.len()));
        for (rows, same) in self.pieces() {
            let to = &mut to.as_mut()[rows.clone()];
            match same {
                Some(row) => to.fill(from[row as usize]),
                None => to
                    .iter_mut()
                    .zip(&self.indices[rows])
                    .for_each(|(to, &row)| *to = from[row as usize]),
            }
        }
        PrimitiveArray::new(to.freeze(), self.nulls(column))
            .with_data_type(column.data_type().clone())
    }

    fn dictionary<K: ArrowDictionaryKeyType>(
        self,
        column: &DictionaryArray<K>,
    ) -> Result<ArrayRef, ArrowError> {
        let indices = self.numbers(column.keys());
        Ok(Arc::new(DictionaryArray::<K>::try_new(indices, column.values().clone())?))
    }

    fn texts<T: ByteArrayType>(self, column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        let column: &GenericByteArray<T> = column.as_bytes();
        let (starts, data) = (column.value_offsets(), column.value_data());
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
        let of_row = |row: u32| match nulls {
            // The bytes behind a null are not a string.
            Some(nulls) if nulls.is_null(row as usize) => 0..0,
            _ => starts[row as usize].as_usize()..starts[row as usize + 1].as_usize(),
        };
        let mut offsets = self.buffers.values::<T::Offset>(self.indices.len() + 1);
        let mut end = 0;
        offsets.as_mut()[0] = T::Offset::default();
        for (rows, same) in self.pieces() {
            let offsets = &mut offsets.as_mut()[1..][rows.clone()];
            let of_same = same.map(|row| of_row(row).len());
            for (offset, &row) in offsets.iter_mut().zip(&self.indices[rows]) {
                end += of_same.unwrap_or_else(|| of_row(row).len());
                *offset = T::Offset::from_usize(end)
                    .ok_or_else(|| ArrowError::OffsetOverflowError(end))?;
            }
        }
        let mut bytes = self.buffers.values::<u8>(end);
        let mut end = 0;
        for (rows, same) in self.pieces() {
            if let Some(row) = same {
                let text = &data[of_row(row)];
                repeat(text, &mut bytes.as_mut()[end..end + text.len() * rows.len()]);
                end += text.len() * rows.len();
                continue;
            }
            let to = bytes.as_mut();
            for &row in &self.indices[rows] {
                let from = of_row(row);
                let len = from.len();
                // A short string is copied as a fixed-size block, including the bytes that follow
                // it; the next string overwrites the excess.
                match (
                    data[from.start..].first_chunk::<SHORT>(),
                    to[end..].first_chunk_mut::<SHORT>(),
                ) {
                    (Some(from), Some(to)) if len <= SHORT => *to = *from,
                    _ => to[end..end + len].copy_from_slice(&data[from]),
                }
                end += len;
            }
        }
        let offsets = OffsetBuffer::new(offsets.freeze());
        Ok(Arc::new(GenericByteArray::<T>::try_new(
            offsets,
            bytes.freeze().into_inner(),
            self.nulls(column),
        )?))
    }

    fn nulls(self, column: &dyn Array) -> Option<NullBuffer> {
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0)?;
        let valid = |place: usize| nulls.is_valid(self.indices[place] as usize);
        Some(BooleanBuffer::collect_bool(self.indices.len(), valid).into())
    }
}

/// Fills `to` with copies of `text`, doubling the copied length at each step.
fn repeat(text: &[u8], to: &mut [u8]) {
    let mut done = text.len().min(to.len());
    to[..done].copy_from_slice(&text[..done]);
    while (1..to.len()).contains(&done) {
        let next = done.min(to.len() - done);
        to.copy_within(..next, done);
        done += next;
    }
}

// A pool of column buffers. A buffer returns to it when the last slice of its column is dropped.
//
// A copied column takes a few hundred KiB, allocated by one thread and freed by another. The
// allocator returns memory of that size to the system and faults it in again page by page, which
// costs as much as the copy.

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
    /// Returns a buffer of `len` values with unspecified contents.
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

    /// Takes a buffer from the other class that holds the most bytes, perhaps left over from
    /// batches long gone.
    fn take_other(&mut self, class: usize) -> Option<MutableBuffer> {
        let bytes =
            |&other: &usize| self.by_size[other].len() << (*SIZE_CLASSES.start() as usize + other);
        let fullest = (0..self.by_size.len()).filter(|&other| other != class).max_by_key(bytes)?;
        self.take(fullest)
    }
}

/// Returns the size class of a buffer, or `None` if buffers of this size are not kept.
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
    /// The number of bytes in use, from the start.
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
    use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampMicrosecondType};
    use arrow_array::{
        BooleanArray, LargeStringArray, ListArray, StringArray, TimestampMicrosecondArray,
    };
    use proptest::prelude::*;

    use super::*;

    /// Returns a column of every type that is gathered here, and of some that go through
    /// arrow-select.
    fn columns(rows: &[Option<u16>]) -> Vec<ArrayRef> {
        let texts: Vec<Option<String>> = rows
            .iter()
            .map(|row| row.map(|row| "ä€x".repeat(usize::from(row % 7)) + &row.to_string()))
            .collect();
        let times: TimestampMicrosecondArray = rows.iter().map(|row| row.map(i64::from)).collect();
        vec![
            Arc::new(
                rows.iter().map(|row| row.map(f64::from)).collect::<PrimitiveArray<Float64Type>>(),
            ),
            Arc::new(
                rows.iter().map(|row| row.map(i64::from)).collect::<PrimitiveArray<Int64Type>>(),
            ),
            Arc::new(PrimitiveArray::<TimestampMicrosecondType>::with_timezone(
                times,
                "Europe/Berlin",
            )),
            Arc::new(StringArray::from(texts.clone())),
            Arc::new(LargeStringArray::from(texts.clone())),
            Arc::new(
                StringArray::from(texts.clone())
                    .into_iter()
                    .collect::<DictionaryArray<Int32Type>>(),
            ),
            Arc::new(rows.iter().map(|row| row.map(|row| row % 2 == 0)).collect::<BooleanArray>()),
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
                rows.iter()
                    .map(|row| row.map(|row| vec![Some(i32::from(row)); usize::from(row % 3)])),
            )),
        ]
    }

    proptest! {
        #[test]
        fn gathering_equals_take(
            rows in prop::collection::vec(prop::option::of(0..1_000_u16), 1..200),
            places in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
            from in any::<prop::sample::Index>(),
        ) {
            // A slice, so that no offset starts at 0.
            let start = from.index(rows.len());
            let columns =
                columns(&rows).into_iter().map(|column| column.slice(start, rows.len() - start));
            let batch = RecordBatch::try_from_iter(
                columns.enumerate().map(|(index, column)| (index.to_string(), column)),
            )
            .unwrap();
            let indices: Vec<u32> = places
                .iter()
                .map(|place| u32::try_from(place.index(batch.num_rows())).unwrap())
                .collect();
            let taken =
                arrow_select::take::take_record_batch(&batch, &UInt32Array::from(indices.clone()))
                    .unwrap();
            let gathered = gather(&batch, &indices, 0, &[], &Buffers::default()).unwrap();
            prop_assert_eq!(gathered, taken);
        }

        #[test]
        fn gathering_runs_equals_take(
            rows in prop::collection::vec(prop::option::of(0..1_000_u16), 1..200),
            pieces in prop::collection::vec(
                (any::<prop::sample::Index>(), 0..40_usize, any::<bool>()),
                0..20,
            ),
        ) {
            let (mut indices, mut runs) = (Vec::new(), Vec::new());
            for (place, count, is_run) in pieces {
                let (start, row) = (indices.len(), place.index(rows.len()));
                let any_row = |step| if is_run { row } else { (row + step) % rows.len() };
                indices.extend((0..count).map(|step| u32::try_from(any_row(step)).unwrap()));
                if is_run {
                    runs.push(start..indices.len());
                }
            }
            for column in columns(&rows) {
                let batch = RecordBatch::try_from_iter([("column", column)]).unwrap();
                let gathered = gather(&batch, &indices, 0, &runs, &Buffers::default()).unwrap();
                let taken = arrow_select::take::take_record_batch(
                    &batch,
                    &UInt32Array::from(indices.clone()),
                )
                .unwrap();
                prop_assert_eq!(gathered, taken);
            }
        }
    }

    #[test]
    fn a_batch_without_columns_keeps_its_rows() {
        let rows = RecordBatchOptions::new().with_row_count(Some(3));
        let batch = RecordBatch::try_new_with_options(
            Arc::new(arrow_schema::Schema::empty()),
            Vec::new(),
            &rows,
        )
        .unwrap();
        assert_eq!(gather(&batch, &[2, 0], 0, &[], &Buffers::default()).unwrap().num_rows(), 2);
    }
}

#[cfg(test)]
mod buffers_tests {
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
