//! How many values are in each bucket of a `DDSketch`: what a store keeps of a distribution, since
//! the counts of any two can be added. See [`quantiles`](super::quantiles) for the source.

use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, ListArray, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields};
use rustc_hash::FxHashMap;
use sketches_ddsketch::Config;

use super::description::AggregateError;
use super::quantiles::each_number;
use super::state::{Input, State};

/// The fields of a bucket: its number, and how many values it has.
pub(super) static FIELDS: LazyLock<Fields> = LazyLock::new(|| {
    [Field::new("bucket", DataType::Int64, false), Field::new("count", DataType::Int64, false)]
        .into_iter()
        .collect()
});

/// Values closer to 0 than this are in bucket 0.
const LEAST: f64 = 1e-9;

/// The buckets of each group.
pub(super) struct QuantileBuckets {
    mapping: Config,
    groups: Vec<FxHashMap<i64, i64>>,
}

impl QuantileBuckets {
    pub(super) fn new(accuracy: f64) -> Self {
        Self { mapping: Config::new(accuracy, 0, LEAST), groups: Vec::new() }
    }
}

/// Buckets are numbered in the order of their values: from 1 for positive values, 0, from -1 down.
fn bucket_of(mapping: &Config, value: f64) -> i64 {
    let distance = value.abs();
    if distance < LEAST {
        return 0;
    }
    let number = i64::from(mapping.key(distance)) + i64::from(mapping.offset);
    if value < 0.0 { -number } else { number }
}

impl State for QuantileBuckets {
    fn grow(&mut self, groups: usize) {
        self.groups.resize_with(groups, FxHashMap::default);
    }

    fn update(&mut self, groups: &[u32], input: &Input) {
        let Some(column) = &input.array else { return };
        let Self { mapping, groups: kept } = self;
        each_number(groups, column, |group, value| {
            *kept[group].entry(bucket_of(mapping, value)).or_default() += 1;
        });
    }

    fn merge(&mut self, groups: &[u32], partials: &StructArray) {
        let lists = partials.column(0).as_list::<i32>();
        for (&group, buckets) in groups.iter().zip(lists.iter()) {
            let Some(buckets) = buckets else { continue };
            let column =
                |place: usize| buckets.as_struct().column(place).as_primitive::<Int64Type>();
            for (&bucket, &count) in column(0).values().iter().zip(column(1).values()) {
                *self.groups[group as usize].entry(bucket).or_default() += count;
            }
        }
    }

    fn partials(&self) -> Result<Vec<ArrayRef>, AggregateError> {
        Ok(vec![self.result()?])
    }

    fn result(&self) -> Result<ArrayRef, AggregateError> {
        let total: usize = self.groups.iter().map(FxHashMap::len).sum();
        if i32::try_from(total).is_err() {
            return Err(AggregateError::TooLarge);
        }
        let (mut buckets, mut counts) = (Vec::with_capacity(total), Vec::with_capacity(total));
        for group in &self.groups {
            let mut sorted: Vec<_> =
                group.iter().map(|(&bucket, &count)| (bucket, count)).collect();
            sorted.sort_unstable();
            for (bucket, count) in sorted {
                buckets.push(bucket);
                counts.push(count);
            }
        }
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(buckets)), Arc::new(Int64Array::from(counts))];
        let values: ArrayRef = Arc::new(StructArray::try_new(FIELDS.clone(), columns, None)?);
        let offsets = OffsetBuffer::from_lengths(self.groups.iter().map(FxHashMap::len));
        let field = Field::new_list_field(DataType::Struct(FIELDS.clone()), true).into();
        Ok(Arc::new(ListArray::try_new(field, offsets, values, None)?))
    }

    fn clear(&mut self) {
        self.groups.clear();
    }
}
