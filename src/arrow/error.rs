//! Why a record batch cannot be split.

use std::fmt;

use arrow_array::Array;
use arrow_schema::ArrowError;

/// Why a batch cannot be split.
#[derive(Debug)]
pub enum SplitError {
    /// The column's type cannot hold tags.
    Column(String),
    /// The rows could not be read or reordered.
    Arrow(ArrowError),
}

impl SplitError {
    /// An index outside its dictionary.
    pub(super) fn index(index: &impl fmt::Debug, values: &dyn Array) -> Self {
        let values = values.len();
        Self::Arrow(ArrowError::InvalidArgumentError(format!(
            "index {index:?} is outside a dictionary of {values} values"
        )))
    }
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Column(data_type) => {
                write!(
                    f,
                    "is of type {data_type}; give a column of strings, of integers, or of a \
                     dictionary of them"
                )
            }
            Self::Arrow(cause) => {
                write!(f, "could not be split: {cause}; check the data at its source")
            }
        }
    }
}

impl std::error::Error for SplitError {}
