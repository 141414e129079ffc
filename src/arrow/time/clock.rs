//! Times without a zone: what a clock showed, as instants.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowTimestampType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait,
    PrimitiveArray, RecordBatch, RecordBatchOptions, StructArray,
};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema, TimeUnit};

use super::zone::Zone;

/// The clock of a zone, read in a unit of time.
///
/// A time that the clock showed twice is the earlier of the two instants; a time that it skipped is
/// as much later as it skipped. This is what Spark SQL does.
#[derive(Debug, Clone)]
pub struct Clock {
    zone: Zone,
    per_second: i64,
}

impl Clock {
    /// Creates the clock of a zone, with the units that a second has.
    pub fn new(zone: Zone, per_second: i64) -> Self {
        Self { zone, per_second }
    }

    /// What to subtract from a time, and the times around it for which that is the same.
    fn offset_of(&self, time: i64) -> (Range<i64>, i64) {
        let units = |seconds: i64| seconds.saturating_mul(self.per_second);
        let (span, from, until) = self.zone.span_on_clock(time.div_euclid(self.per_second));
        (from.map_or(i64::MIN, units)..until.map_or(i64::MAX, units), units(span.offset))
    }
}

/// Reads one time of a clock after the other.
#[derive(Debug)]
pub struct ClockReader<C> {
    clock: C,
    /// Times around the last one with the same offset.
    times: Range<i64>,
    offset: i64,
}

impl<C: Borrow<Clock>> ClockReader<C> {
    /// Creates a reader that has read nothing yet.
    pub fn new(clock: C) -> Self {
        Self { clock, times: 0..0, offset: 0 }
    }

    /// The instant at which the clock showed a time.
    #[inline]
    pub fn instant(&mut self, time: i64) -> i64 {
        if !self.times.contains(&time) {
            (self.times, self.offset) = self.clock.borrow().offset_of(time);
        }
        time.saturating_sub(self.offset)
    }
}

/// How many units a second has.
pub(in crate::arrow) fn units_per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Reads the timestamps of a batch that have no zone as times on the clock of a zone: columns, and
/// what is in lists, structs and maps. The new columns are instants with the zone's name.
///
/// # Errors
/// An array is malformed.
pub fn with_instants(
    batch: &RecordBatch,
    zone: &Zone,
    name: &str,
) -> Result<RecordBatch, ArrowError> {
    let reader = Reader { zone, name };
    let columns = batch.columns().iter().map(|column| reader.read(column));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let fields = batch.schema_ref().fields().iter().zip(&columns);
    let fields: Vec<_> = fields.map(|(field, column)| retyped(field, column)).collect();
    let schema = Schema::new_with_metadata(fields, batch.schema_ref().metadata().clone());
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.into(), columns, &rows)
}

fn retyped(field: &FieldRef, column: &ArrayRef) -> FieldRef {
    Arc::new(Field::clone(field).with_data_type(column.data_type().clone()))
}

struct Reader<'a> {
    zone: &'a Zone,
    name: &'a str,
}

impl Reader<'_> {
    fn read(&self, column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        Ok(match column.data_type() {
            DataType::Timestamp(unit, None) => match unit {
                TimeUnit::Second => self.read_times::<TimestampSecondType>(column),
                TimeUnit::Millisecond => self.read_times::<TimestampMillisecondType>(column),
                TimeUnit::Microsecond => self.read_times::<TimestampMicrosecondType>(column),
                TimeUnit::Nanosecond => self.read_times::<TimestampNanosecondType>(column),
            },
            DataType::Struct(_) => Arc::new(self.read_struct(column.as_struct())?),
            DataType::List(field) => Arc::new(self.read_list::<i32>(field, column)?),
            DataType::LargeList(field) => Arc::new(self.read_list::<i64>(field, column)?),
            DataType::FixedSizeList(field, size) => {
                let list = column.as_fixed_size_list();
                let values = self.read(list.values())?;
                let nulls = list.nulls().cloned();
                Arc::new(FixedSizeListArray::try_new(
                    retyped(field, &values),
                    *size,
                    values,
                    nulls,
                )?)
            }
            DataType::Map(field, ordered) => {
                let map = column.as_map();
                let entries = self.read_struct(map.entries())?;
                let field = Field::clone(field).with_data_type(entries.data_type().clone());
                let (offsets, nulls) = (map.offsets().clone(), map.nulls().cloned());
                Arc::new(MapArray::try_new(field.into(), offsets, entries, nulls, *ordered)?)
            }
            _ => column.clone(),
        })
    }

    fn read_times<T: ArrowTimestampType>(&self, column: &ArrayRef) -> ArrayRef {
        let times = column.as_primitive::<T>();
        let clock = Clock::new(self.zone.clone(), units_per_second(T::UNIT));
        // What is in the place of a null does not matter.
        let mut reader = ClockReader::new(&clock);
        let values = times.values().iter().map(|&time| reader.instant(time)).collect();
        let instants = PrimitiveArray::<T>::new(values, times.nulls().cloned());
        Arc::new(instants.with_timezone(self.name))
    }

    fn read_struct(&self, array: &StructArray) -> Result<StructArray, ArrowError> {
        let columns = array.columns().iter().map(|column| self.read(column));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let fields = array.fields().iter().zip(&columns);
        let fields = fields.map(|(field, column)| retyped(field, column)).collect();
        let nulls = array.nulls().cloned();
        StructArray::try_new_with_length(fields, columns, nulls, array.len())
    }

    fn read_list<O: OffsetSizeTrait>(
        &self,
        field: &FieldRef,
        column: &ArrayRef,
    ) -> Result<GenericListArray<O>, ArrowError> {
        let list = column.as_list::<O>();
        let values = self.read(list.values())?;
        let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
        GenericListArray::try_new(retyped(field, &values), offsets, values, nulls)
    }
}
