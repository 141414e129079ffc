//! The description of an aggregation, and its errors.

use std::fmt;

use arrow_schema::{ArrowError, DataType};

use crate::arrow::time::Zone;

/// A description of grouped aggregation.
#[derive(Debug, Clone)]
pub struct Aggregation {
    /// The columns whose values form a group. Null is a separate value, all NaNs are equal, and
    /// -0.0 equals 0.0.
    pub keys: Vec<String>,
    /// The time window, which is a key too.
    pub window: Option<Window>,
    /// The measures of each group, with the names of their columns in the result.
    pub measures: Vec<(String, Measure)>,
    /// The most groups that may exist at the same time.
    pub max_groups: usize,
    /// Everything above except `max_groups`, as text. Partials with another text are rejected.
    pub text: String,
}

impl Aggregation {
    /// Returns the names of the key columns in partials and results, the window's last.
    pub(super) fn key_names(&self) -> impl Iterator<Item = &str> {
        let window = self.window.as_ref().map(|window| window.name.as_str());
        self.keys.iter().map(String::as_str).chain(window)
    }
}

/// Time buckets of equal width, aligned to the epoch.
#[derive(Debug, Clone)]
pub struct Window {
    /// A timestamp, a date, or an integer of seconds since the epoch.
    pub column: String,
    /// The name of the result column, which holds the start of each bucket.
    pub name: String,
    /// The width in nanoseconds, above 0.
    pub width_ns: i64,
    /// The start of a bucket in nanoseconds after the epoch, at least 0 and below the width.
    pub offset_ns: i64,
    /// The zone whose clock the buckets follow, and its name; `None` for UTC. A timestamp without a
    /// zone is a time on that clock. Dates are not affected.
    pub zone: Option<(String, Zone)>,
}

/// A measure of a group. Rows with null in `column` are ignored, as in SQL.
#[derive(Debug, Clone)]
pub enum Measure {
    /// The number of rows, or of rows with a value in the column.
    Count {
        /// `None` counts all rows.
        column: Option<String>,
    },
    /// The sum: exact for integers and decimals, with compensated rounding errors for
    /// floating-point numbers.
    Sum {
        /// Numbers.
        column: String,
    },
    /// The mean of all values.
    Mean {
        /// Numbers.
        column: String,
    },
    /// The smallest value. NaN is larger than any number.
    Min {
        /// Any type with an order.
        column: String,
    },
    /// The largest value.
    Max {
        /// Any type with an order.
        column: String,
    },
    /// The value of the row with the smallest `by`; among ties, the row that came first.
    First {
        /// The value.
        column: String,
        /// The order, usually a time. Rows with null here are ignored.
        by: String,
    },
    /// The value of the row with the largest `by`; among ties, the row that came first.
    Last {
        /// The value.
        column: String,
        /// The order, as for `First`.
        by: String,
    },
    /// Quantiles, each within 1 % of the exact value. NaN and infinities are ignored.
    Quantiles {
        /// Numbers.
        column: String,
        /// From 0 to 1.
        quantiles: Vec<f64>,
    },
    /// The number of values in each bucket of a sketch, from which a quantile can be read. NaN and
    /// infinities are ignored.
    QuantileBuckets {
        /// Numbers.
        column: String,
        /// The relative error of a quantile, above 0 and below 1.
        accuracy: f64,
    },
    /// The estimated number of distinct values, or the sketch behind the estimate.
    Distinct {
        /// Integers, booleans, dates, times, strings or bytes.
        column: String,
        /// The binary logarithm of the most registers of a sketch: 4 to 21.
        lg_registers: u8,
        /// Whether the results are sketches instead of estimates.
        gives_sketches: bool,
    },
    /// The rows with the largest values.
    TopN {
        /// The column to rank by.
        column: String,
        /// The number of rows.
        n: usize,
        /// A column to report beside each value. Among equal values, the smallest label ranks
        /// first.
        label: Option<String>,
    },
}

impl Measure {
    /// Returns the columns that the measure reads: the values, and the order or label.
    pub(super) fn columns(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::Count { column } => (column.as_deref(), None),
            Self::Sum { column }
            | Self::Mean { column }
            | Self::Min { column }
            | Self::Distinct { column, .. }
            | Self::Max { column }
            | Self::Quantiles { column, .. }
            | Self::QuantileBuckets { column, .. } => (Some(column), None),
            Self::First { column, by } | Self::Last { column, by } => (Some(column), Some(by)),
            Self::TopN { column, label, .. } => (Some(column), label.as_deref()),
        }
    }

    /// Whether the measure accepts only numbers.
    pub(super) fn wants_numbers(&self) -> bool {
        matches!(
            self,
            Self::Sum { .. }
                | Self::Mean { .. }
                | Self::Quantiles { .. }
                | Self::QuantileBuckets { .. }
        )
    }
}

/// The reason a batch was rejected. No part of it was applied.
#[derive(Debug)]
pub enum AggregateError {
    /// A column is missing.
    NoColumn {
        /// The column's name.
        name: String,
        /// The columns that exist.
        columns: Vec<String>,
    },
    /// A column has a type that is unsuitable for its use.
    Type {
        /// The column's name.
        name: String,
        /// Its type.
        data_type: DataType,
        /// The expected type.
        wanted: String,
    },
    /// There would be more groups than `max_groups`.
    TooManyGroups {
        /// The limit.
        max_groups: usize,
    },
    /// The partials have another description or layout version.
    Partials(String),
    /// An exact sum does not fit into the type of the result.
    Overflow {
        /// The measure.
        name: String,
        /// The sum.
        sum: String,
        /// The type of the result.
        data_type: DataType,
    },
    /// The strings, sketches or ranked rows of one column exceed what an Arrow array can hold.
    TooLarge,
    /// Arrow found the data malformed.
    Arrow(ArrowError),
}

impl fmt::Display for AggregateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoColumn { name, columns } => {
                write!(f, "column {name:?} is missing; the data has {columns:?}")
            }
            Self::Type { name, data_type, wanted } => {
                write!(f, "column {name:?} is of type {data_type}; give {wanted}, or cast it first")
            }
            Self::TooManyGroups { max_groups } => write!(
                f,
                "there are more groups than max_groups, {max_groups}: raise it, or give a next \
                 worker, which then receives partials early"
            ),
            Self::Partials(problem) => f.write_str(problem),
            Self::Overflow { name, sum, data_type } => write!(
                f,
                "{name:?} is {sum}, which does not fit into {}; read it from the partials, which \
                 hold a wider decimal, or sum a column of floats",
                data_type.to_string().to_lowercase()
            ),
            Self::TooLarge => f.write_str(
                "the strings or sketches of all groups take more than 2 GiB in one column: emit \
                 partials more often, or lower max_groups",
            ),
            Self::Arrow(cause) => write!(f, "{cause}; check the data at its source"),
        }
    }
}

impl std::error::Error for AggregateError {}

impl From<ArrowError> for AggregateError {
    fn from(cause: ArrowError) -> Self {
        Self::Arrow(cause)
    }
}
