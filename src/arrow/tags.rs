//! Tags: the values of the column that batches are split by, and the type key of each.

use std::collections::HashMap;

use crate::item::TypeKey;

/// The tags that a queue has, or once had, handlers for. Integers are stored as decimal strings.
///
/// Tag keys are odd. Addresses of classes are even, so the two never collide.
#[derive(Debug, Clone, Default)]
pub struct Tags(HashMap<Box<str>, TypeKey>);

impl Tags {
    /// The key of all rows whose tag has no handler.
    pub const UNKNOWN: TypeKey = TypeKey(1);

    /// The key of all rows without a tag (null in the column).
    pub const NULL: TypeKey = TypeKey(3);

    /// Returns the key of a tag, assigning one on first use.
    pub fn add(&mut self, tag: &str) -> TypeKey {
        let next = TypeKey(2 * self.0.len() + 5);
        *self.0.entry(tag.into()).or_insert(next)
    }

    /// Returns the key of a tag, or [`UNKNOWN`](Self::UNKNOWN) if it has none.
    pub fn key(&self, tag: &str) -> TypeKey {
        self.0.get(tag).copied().unwrap_or(Self::UNKNOWN)
    }

    /// Whether a key belongs to a tag, [`UNKNOWN`](Self::UNKNOWN) and [`NULL`](Self::NULL)
    /// included.
    pub fn is_tag(key: TypeKey) -> bool {
        key.0 % 2 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_has_a_unique_key() {
        let mut tags = Tags::default();
        let (a, b) = (tags.add("a"), tags.add("b"));
        assert_eq!((tags.add("a"), tags.key("a"), tags.key("b")), (a, a, b));
        assert_eq!(tags.key("c"), Tags::UNKNOWN);
        let keys = [a, b, Tags::UNKNOWN, Tags::NULL];
        assert!(keys.iter().all(|key| Tags::is_tag(*key)));
        assert!((0..4).all(|first| (first + 1..4).all(|second| keys[first] != keys[second])));
        assert!(!Tags::is_tag(TypeKey(&raw const tags as usize)));
    }
}
