//! Splits a record batch by tag: a counting sort of its rows, stable, and one copy of them in that
//! order.

use std::fmt;
use std::ops::Range;

use arrow_array::{Array, RecordBatch};
use arrow_schema::ArrowError;

use super::Tags;
use super::buffers::{Buffers, Values};
use super::gather::gather;
use super::grouping::Groups;
use crate::item::TypeKey;

/// The most rows to split at once: five columns of them and their copies stay in the second level
/// cache.
pub const CHUNK_ROWS: usize = 65_536;

/// Rows next to each other, on average, from which on a copy would cost more than the pieces that
/// it saves.
const LONG_RUN: usize = 256;

/// Why a batch cannot be split.
#[derive(Debug)]
pub enum SplitError {
    /// The column has another type than those of tags.
    Column(String),
    /// The rows could not be read or put in order.
    Arrow(ArrowError),
}

impl SplitError {
    /// An index that is not one of its dictionary.
    pub(super) fn index(index: &impl fmt::Debug, values: &dyn Array) -> Self {
        let values = values.len();
        Self::Arrow(ArrowError::InvalidArgumentError(format!(
            "index {index:?} of a dictionary with {values} values"
        )))
    }
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Column(data_type) => {
                write!(
                    f,
                    "is of type {data_type}; give a column of strings, of integers, or of a dictionary of them"
                )
            }
            Self::Arrow(cause) => {
                write!(f, "could not be split: {cause}; check the data where it is made")
            }
        }
    }
}

impl std::error::Error for SplitError {}

/// Rows with the same tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The tag's key.
    pub key: TypeKey,
    /// The rows, in [`Pieces::batch`].
    pub rows: Range<usize>,
}

/// A batch in pieces: each tag's rows in the order that they had.
#[derive(Debug)]
pub struct Pieces {
    /// The batch itself if its rows stand next to each other by tag, else a copy in which they do.
    pub batch: RecordBatch,
    /// The pieces. Together they are all rows of the batch.
    pub pieces: Vec<Piece>,
}

/// Splits `batch` by the values of column number `column`.
///
/// Cost: one look at each tag, and one copy of each row, into `buffers`; no copy where runs of the
/// same tag are long.
///
/// # Errors
/// The column cannot be one of tags.
///
/// # Panics
/// There is no such column.
pub fn split(
    batch: &RecordBatch,
    column: usize,
    tags: &Tags,
    buffers: &Buffers,
) -> Result<Pieces, SplitError> {
    let groups = Groups::of(batch.column(column), tags, buffers)?;
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
    // Null rows of a dictionary may have any indices: of nothing, and of a null among its values.
    let with_one_tag =
        pieces.iter().filter(|piece| ![Tags::UNKNOWN, Tags::NULL].contains(&piece.key));
    let runs: Vec<_> = with_one_tag.map(|piece| piece.rows.clone()).collect();
    let batch =
        gather(batch, indices.as_slice(), column, &runs, buffers).map_err(SplitError::Arrow)?;
    Ok(Pieces { batch, pieces })
}

/// Counting sort: the rows of the first group, then those of the second.
fn in_order(groups: &Groups, buffers: &Buffers) -> (Values<u32>, Vec<Piece>) {
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
        let place = &mut next[group as usize];
        in_order[*place] = row;
        *place += 1;
    }
    (indices, pieces)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int32Type, UInt64Type};
    use arrow_array::{
        ArrayRef, DictionaryArray, Float64Array, Int32Array, StringArray, UInt64Array,
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

    /// Each key with the numbers of its rows.
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
            match rows.iter_mut().find(|(one, _)| *one == key) {
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
            let texts: Vec<Option<String>> = tags.iter().map(|tag| tag.map(|tag| tag.to_string())).collect();
            let wanted = expected(&texts, &known);
            let strings = StringArray::from(texts.clone());
            let integers: Int32Array = tags.iter().map(|tag| tag.map(i32::from)).collect();
            let dictionary: DictionaryArray<Int32Type> = texts.iter().map(|tag| tag.as_deref()).collect();
            // Nulls among the indices, with any index behind them, and among the values.
            let indices: Vec<i32> = (0..).zip(&tags).map(|(row, tag)| tag.map_or(row % 21, i32::from)).collect();
            let valid = tags.iter().zip(&indices).map(|(tag, &index)| tag.is_some() || index == 20).collect::<Vec<_>>();
            let indices = Int32Array::new(indices.into(), Some(valid.into()));
            let values: StringArray = (0..21).map(|tag| (tag < 20).then(|| tag.to_string())).collect();
            let with_null = DictionaryArray::<Int32Type>::try_new(indices, Arc::new(values)).unwrap();
            let columns: [ArrayRef; 4] =
                [Arc::new(strings), Arc::new(integers), Arc::new(dictionary), Arc::new(with_null)];
            for column in columns {
                let whole = batch(column);
                let pieces = split(&whole, 0, &known, &Buffers::default()).unwrap();
                prop_assert_eq!(rows_by_key(&pieces), wanted.clone());
                let tags_there = arrow_select::take::take(whole.column(0), pieces.batch.column(1), None).unwrap();
                prop_assert!(texts_of(pieces.batch.column(0)) == texts_of(&tags_there));
                let covered: usize = pieces.pieces.iter().map(|piece| piece.rows.len()).sum();
                prop_assert_eq!(covered, tags.len());
            }
        }
    }

    #[test]
    fn rows_that_stand_together_are_not_copied() {
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
    fn a_dictionary_with_more_values_than_rows_is_split_by_those_that_are_there() {
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
    fn a_column_of_numbers_with_a_point_is_refused() {
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
