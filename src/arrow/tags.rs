//! Tags: the values of the column that batches are split by, and the type key of each.

use std::collections::HashMap;
use std::fmt;

use arrow_array::Array;
use arrow_schema::ArrowError;

use crate::item::TypeKey;

/// The tags that a queue has handlers for. Integers are stored as decimal strings.
///
/// Tag keys are odd. Addresses of classes are even, so the two never collide. A key is never used
/// again: rows that are queued have only the key.
#[derive(Debug, Clone, Default)]
pub struct Tags {
    keys: HashMap<Box<str>, TypeKey>,
    /// The number of keys assigned so far.
    assigned: usize,
}

impl Tags {
    /// The key of all rows whose tag has no handler.
    pub const UNKNOWN: TypeKey = TypeKey(1);

    /// The key of all rows without a tag (null in the column).
    pub const NULL: TypeKey = TypeKey(3);

    /// Returns the key of a tag, assigning one on first use.
    pub fn add(&mut self, tag: &str) -> TypeKey {
        let Self { keys, assigned } = self;
        *keys.entry(tag.into()).or_insert_with(|| {
            *assigned += 1;
            TypeKey(2 * *assigned + 3)
        })
    }

    /// Removes a tag. If it is added again, it gets another key.
    pub fn remove(&mut self, tag: &str) {
        self.keys.remove(tag);
    }

    /// Returns the key of a tag, or [`UNKNOWN`](Self::UNKNOWN) if it has none.
    pub fn key(&self, tag: &str) -> TypeKey {
        self.keys.get(tag).copied().unwrap_or(Self::UNKNOWN)
    }

    /// Whether a key belongs to a tag, [`UNKNOWN`](Self::UNKNOWN) and [`NULL`](Self::NULL)
    /// included.
    pub fn is_tag(key: TypeKey) -> bool {
        key.0 % 2 == 1
    }
}

// Errors of splitting.

/// The reason a batch cannot be split.
#[derive(Debug)]
pub enum SplitError {
    /// The column's type cannot hold tags.
    Column(String),
    /// The rows could not be read or reordered.
    Arrow(ArrowError),
}

impl SplitError {
    /// Returns the error for an index outside its dictionary.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_has_a_unique_key() {
        let mut tags = Tags::default();
        let (a, b) = (tags.add("a"), tags.add("b"));
        assert_eq!((tags.add("a"), tags.key("a"), tags.key("b")), (a, a, b));
        tags.remove("a");
        assert_eq!((tags.key("a"), tags.key("c")), (Tags::UNKNOWN, Tags::UNKNOWN));
        assert_ne!(tags.add("c"), a);
        assert_ne!(tags.add("a"), a);
        let keys = [a, b, Tags::UNKNOWN, Tags::NULL];
        assert!(keys.iter().all(|key| Tags::is_tag(*key)));
        assert!((0..4).all(|first| (first + 1..4).all(|second| keys[first] != keys[second])));
        assert!(!Tags::is_tag(TypeKey(&raw const tags as usize)));
    }
}
