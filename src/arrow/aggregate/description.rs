//! What to aggregate, and what can go wrong.

use std::fmt;

use arrow_schema::{ArrowError, DataType};

/// A description of grouped aggregation.
#[derive(Debug, Clone)]
pub struct Aggregation {
    /// Columns whose values make a group. Null is a value of its own, all NaN are one value, -0.0
    /// is 0.0.
    pub keys: Vec<String>,
    /// The time bucket, a key as well.
    pub window: Option<Window>,
    /// What is known about each group, by the name of its column in the result.
    pub measures: Vec<(String, Measure)>,
    /// Groups that may be kept at the same time.
    pub max_groups: usize,
    /// All of the above but the last, as text: partials of another description are refused.
    pub text: String,
}

impl Aggregation {
    /// The columns of the keys in what comes out; the window's is the last.
    pub(super) fn key_names(&self) -> impl Iterator<Item = &str> {
        let window = self.window.as_ref().map(|window| window.name.as_str());
        self.keys.iter().map(String::as_str).chain(window)
    }
}

/// Buckets of time: from each multiple of the width since the epoch to the next.
#[derive(Debug, Clone)]
pub struct Window {
    /// A timestamp, a date, or an integer of seconds since the epoch.
    pub column: String,
    /// The name of the column with each bucket's start, of the same type.
    pub name: String,
    /// The width in nanoseconds, above 0.
    pub width_ns: i64,
}

/// What is known about a group. Rows with null in `column` do not count, as in SQL.
#[derive(Debug, Clone)]
pub enum Measure {
    /// Rows, or those with a value in the column.
    Count {
        /// `None`: all rows.
        column: Option<String>,
    },
    /// The sum: of integers exact, of floating-point numbers with the rounding errors kept.
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
        /// Anything with an order.
        column: String,
    },
    /// The largest value.
    Max {
        /// Anything with an order.
        column: String,
    },
    /// The value of the row with the smallest `by`; of several the one that came first.
    First {
        /// The value.
        column: String,
        /// The order, mostly a time. Rows with null here do not count.
        by: String,
    },
    /// The value of the row with the largest `by`; of several the one that came first.
    Last {
        /// The value.
        column: String,
        /// The order.
        by: String,
    },
    /// Quantiles, each within 1 % of the value. NaN and infinities do not count.
    Quantiles {
        /// Numbers.
        column: String,
        /// From 0 to 1.
        quantiles: Vec<f64>,
    },
    /// The rows with the largest values.
    TopN {
        /// What is ranked.
        column: String,
        /// How many.
        n: usize,
        /// What to say of each row besides the value; of equal values the one with the smallest
        /// label is better.
        label: Option<String>,
    },
}

impl Measure {
    /// The column of its values, if it looks at one, and then the second one, if it looks at two.
    pub(super) fn columns(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::Count { column } => (column.as_deref(), None),
            Self::Sum { column }
            | Self::Mean { column }
            | Self::Min { column }
            | Self::Max { column }
            | Self::Quantiles { column, .. } => (Some(column), None),
            Self::First { column, by } | Self::Last { column, by } => (Some(column), Some(by)),
            Self::TopN { column, label, .. } => (Some(column), label.as_deref()),
        }
    }

    /// Whether it can do only with numbers.
    pub(super) fn wants_numbers(&self) -> bool {
        matches!(self, Self::Sum { .. } | Self::Mean { .. } | Self::Quantiles { .. })
    }
}

/// Why a batch was not taken. Nothing of it was.
#[derive(Debug)]
pub enum AggregateError {
    /// There is no such column.
    NoColumn {
        /// Its name.
        name: String,
        /// Those that are there.
        columns: Vec<String>,
    },
    /// A column has a type that its use cannot do with.
    Type {
        /// The column's name.
        name: String,
        /// Its type.
        data_type: DataType,
        /// What it should be.
        wanted: String,
    },
    /// There would be more groups than `max_groups`.
    TooManyGroups {
        /// The limit.
        max_groups: usize,
    },
    /// Partials of another description, or version.
    Partials(String),
    /// A sum of integers does not fit into 64 bits.
    Overflow {
        /// The measure.
        name: String,
        /// The sum.
        sum: i128,
    },
    /// The texts, sketches or ranked rows of one column take more than Arrow has room for.
    TooLarge,
    /// What Arrow found wrong with the data.
    Arrow(ArrowError),
}

impl fmt::Display for AggregateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoColumn { name, columns } => write!(f, "there is no column {name:?}; the data has {columns:?}"),
            Self::Type { name, data_type, wanted } => {
                write!(f, "column {name:?} is of type {data_type}; give {wanted}, or cast it before")
            }
            Self::TooManyGroups { max_groups } => write!(
                f,
                "there are more groups than max_groups, {max_groups}: raise it, or give a next worker, to which partials go early"
            ),
            Self::Partials(problem) => f.write_str(problem),
            Self::Overflow { name, sum } => write!(
                f,
                "{name:?} is {sum}, which does not fit into int64; the partials have it as a decimal, or sum a column of floats"
            ),
            Self::TooLarge => f.write_str(
                "the texts or sketches of all groups take more than 2 GiB in one column: hand partials on more often, or lower \
                 max_groups",
            ),
            Self::Arrow(cause) => write!(f, "{cause}; check the data where it is made"),
        }
    }
}

impl std::error::Error for AggregateError {}

impl From<ArrowError> for AggregateError {
    fn from(cause: ArrowError) -> Self {
        Self::Arrow(cause)
    }
}
