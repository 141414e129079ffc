//! Splits a record batch by tag: a stable counting sort of its rows, then one copy in that order.

use std::ops::Range;

use arrow_array::RecordBatch;

use crate::arrow::gather::{Buffers, PooledValues, gather};
use crate::arrow::grouping::TagGroups;
use crate::arrow::tags::{SplitError, Tags};
use crate::item::TypeKey;

/// The most rows to split in one call: five columns of this many rows, and their copies, fit into
/// the second-level cache.
pub const CHUNK_ROWS: usize = 65_536;

/// The average run length from which copying costs more than handling the extra pieces.
const LONG_RUN: usize = 256;

/// A range of rows with the same tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The tag's key.
    pub key: TypeKey,
    /// The rows, as a range of [`Pieces::batch`].
    pub rows: Range<usize>,
}

/// A batch split into pieces. The rows of each tag keep their order.
#[derive(Debug)]
pub struct Pieces {
    /// The original batch if the rows of each tag are already adjacent, otherwise a reordered copy.
    pub batch: RecordBatch,
    /// The pieces. Together they cover all rows of the batch.
    pub pieces: Vec<Piece>,
}

/// Splits `batch` by the values of the column with index `column`.
///
/// Cost: one lookup per tag and one copy of each row into `buffers`; no copy where runs of the same
/// tag are long.
///
/// # Errors
/// The column's type cannot hold tags, or its data is malformed.
///
/// # Panics
/// The batch has no column with this index.
pub fn split(
    batch: &RecordBatch,
    column: usize,
    tags: &Tags,
    buffers: &Buffers,
) -> Result<Pieces, SplitError> {
    let groups = TagGroups::of(batch.column(column), tags, buffers)?;
    let of_row = groups.of_row();
    let changes =
        of_row.iter().zip(of_row.iter().skip(1)).filter(|(row, next)| row != next).count();
    if changes * LONG_RUN <= of_row.len() {
        let mut start = 0;
        let pieces = of_row.chunk_by(|row, next| row == next).map(|run| {
            let rows = start..start + run.len();
            start = rows.end;
            Piece { key: groups.keys[run[0] as usize], rows }
        });
        return Ok(Pieces { pieces: pieces.collect(), batch: batch.clone() });
    }
    let (indices, pieces) = in_order(&groups, buffers);
    // Null rows of a dictionary may carry any index, even one out of range or one that points to a
    // null value.
    let with_a_tag =
        pieces.iter().filter(|piece| ![Tags::UNKNOWN, Tags::NULL].contains(&piece.key));
    let runs: Vec<_> = with_a_tag.map(|piece| piece.rows.clone()).collect();
    let batch =
        gather(batch, indices.as_slice(), column, &runs, buffers).map_err(SplitError::Arrow)?;
    Ok(Pieces { batch, pieces })
}

/// Orders rows by a counting sort: the rows of the first group, then those of the second, and so
/// on.
fn in_order(groups: &TagGroups, buffers: &Buffers) -> (PooledValues<u32>, Vec<Piece>) {
    let mut counts = vec![0_usize; groups.keys.len()];
    for &group in groups.of_row() {
        counts[group as usize] += 1;
    }
    let mut start = 0;
    let pieces: Vec<Piece> = groups
        .keys
        .iter()
        .zip(&counts)
        .map(|(&key, &count)| {
            let rows = start..start + count;
            start = rows.end;
            Piece { key, rows }
        })
        .collect();
    let mut next: Vec<usize> = pieces.iter().map(|piece| piece.rows.start).collect();
    let mut indices = buffers.values::<u32>(groups.of_row().len());
    let in_order = indices.as_mut();
    for (row, &group) in (0_u32..).zip(groups.of_row()) {
        let next_row = &mut next[group as usize];
        in_order[*next_row] = row;
        *next_row += 1;
    }
    (indices, pieces)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int32Type, UInt64Type};
    use arrow_array::{
        Array, ArrayRef, DictionaryArray, Float64Array, Int32Array, StringArray, UInt64Array,
    };
    use proptest::prelude::*;

    use super::*;

    fn batch(tags: ArrayRef) -> RecordBatch {
        let numbers = UInt64Array::from_iter_values(0..tags.len() as u64);
        RecordBatch::try_from_iter_with_nullable([
            ("tag", tags, true),
            ("number", Arc::new(numbers) as ArrayRef, false),
        ])
        .unwrap()
    }

    /// Returns each key with the numbers of its rows.
    fn rows_by_key(pieces: &Pieces) -> Vec<(TypeKey, Vec<u64>)> {
        let numbers = pieces.batch.column(1).as_primitive::<UInt64Type>().values();
        let mut rows: Vec<(TypeKey, Vec<u64>)> = Vec::new();
        for piece in &pieces.pieces {
            let its = &numbers[piece.rows.clone()];
            match rows.iter_mut().find(|(key, _)| *key == piece.key) {
                Some((_, known)) => known.extend(its),
                None => rows.push((piece.key, its.to_vec())),
            }
        }
        rows
    }

    fn texts_of(column: &ArrayRef) -> Vec<Option<String>> {
        if let Some(numbers) = column.as_primitive_opt::<Int32Type>() {
            return numbers.iter().map(|number| number.map(|number| number.to_string())).collect();
        }
        let plain = match column.as_dictionary_opt::<Int32Type>() {
            Some(dictionary) => {
                arrow_select::take::take(dictionary.values(), dictionary.keys(), None).unwrap()
            }
            None => column.clone(),
        };
        plain.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect()
    }

    fn expected(tags: &[Option<String>], known: &Tags) -> Vec<(TypeKey, Vec<u64>)> {
        let mut rows: Vec<(TypeKey, Vec<u64>)> = Vec::new();
        for (number, tag) in (0..).zip(tags) {
            let key = tag.as_ref().map_or(Tags::NULL, |tag| known.key(tag));
            match rows.iter_mut().find(|(other, _)| *other == key) {
                Some((_, numbers)) => numbers.push(number),
                None => rows.push((key, vec![number])),
            }
        }
        rows
    }

    fn tags() -> impl Strategy<Value = Vec<Option<u8>>> {
        let short = prop::collection::vec(prop::option::weighted(0.9, 0..20_u8), 0..200);
        let long = prop::collection::vec((prop::option::of(0..4_u8), 1..900_usize), 0..5)
            .prop_map(|runs| runs.into_iter().flat_map(|(tag, run)| vec![tag; run]).collect());
        prop_oneof![short, long]
    }

    proptest! {
        #[test]
        fn every_row_is_in_the_piece_of_its_tag_in_order(tags in tags()) {
            let mut known = Tags::default();
            for tag in 0..15 {
                known.add(&tag.to_string());
            }
            let texts: Vec<Option<String>> =
                tags.iter().map(|tag| tag.map(|tag| tag.to_string())).collect();
            let wanted = expected(&texts, &known);
            let strings = StringArray::from(texts.clone());
            let integers: Int32Array = tags.iter().map(|tag| tag.map(i32::from)).collect();
            let dictionary: DictionaryArray<Int32Type> =
                texts.iter().map(|tag| tag.as_deref()).collect();
            // Nulls among the indices, with arbitrary indices behind them, and among the values.
            let indices: Vec<i32> =
                (0..).zip(&tags).map(|(row, tag)| tag.map_or(row % 21, i32::from)).collect();
            let valid = tags
                .iter()
                .zip(&indices)
                .map(|(tag, &index)| tag.is_some() || index == 20)
                .collect::<Vec<_>>();
            let indices = Int32Array::new(indices.into(), Some(valid.into()));
            let values: StringArray =
                (0..21).map(|tag| (tag < 20).then(|| tag.to_string())).collect();
            let with_null =
                DictionaryArray::<Int32Type>::try_new(indices, Arc::new(values)).unwrap();
            let columns: [ArrayRef; 4] =
                [Arc::new(strings), Arc::new(integers), Arc::new(dictionary), Arc::new(with_null)];
            for column in columns {
                let whole = batch(column);
                let pieces = split(&whole, 0, &known, &Buffers::default()).unwrap();
                prop_assert_eq!(rows_by_key(&pieces), wanted.clone());
                let tags_there =
                    arrow_select::take::take(whole.column(0), pieces.batch.column(1), None)
                        .unwrap();
                prop_assert!(texts_of(pieces.batch.column(0)) == texts_of(&tags_there));
                let covered: usize = pieces.pieces.iter().map(|piece| piece.rows.len()).sum();
                prop_assert_eq!(covered, tags.len());
            }
        }
    }

    #[test]
    fn adjacent_rows_are_not_copied() {
        let mut known = Tags::default();
        let key = known.add("a");
        let whole = batch(Arc::new(StringArray::from(vec!["a"; 1_000])));
        let pieces = split(&whole, 0, &known, &Buffers::default()).unwrap();
        assert_eq!(pieces.pieces, [Piece { key, rows: 0..1_000 }]);
        let address =
            |batch: &RecordBatch| batch.column(1).as_primitive::<UInt64Type>().values().as_ptr();
        assert_eq!(address(&pieces.batch), address(&whole));
    }

    #[test]
    fn a_dictionary_with_more_values_than_rows_is_split_by_the_used_values() {
        let mut known = Tags::default();
        let keys = (known.add("v7"), known.add("v900"));
        let values = StringArray::from_iter_values((0..1_000).map(|number| format!("v{number}")));
        let indices = Int32Array::from(vec![Some(900), Some(7), None, Some(900)]);
        let tags = DictionaryArray::<Int32Type>::try_new(indices, Arc::new(values)).unwrap();
        let pieces = split(&batch(Arc::new(tags)), 0, &known, &Buffers::default()).unwrap();
        assert_eq!(
            rows_by_key(&pieces),
            [(keys.1, vec![0, 3]), (keys.0, vec![1]), (Tags::NULL, vec![2])]
        );
    }

    #[test]
    fn a_column_of_floats_is_rejected() {
        let error = split(
            &batch(Arc::new(Float64Array::from(vec![1.5]))),
            0,
            &Tags::default(),
            &Buffers::default(),
        )
        .unwrap_err();
        assert!(error.to_string().contains("Float64"), "{error}");
    }
}
