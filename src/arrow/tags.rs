//! Tags: the values of the column by which batches are split, and the type keys that they stand
//! for.

use std::collections::HashMap;

use crate::item::TypeKey;

/// The tags that a queue has handlers for, or had. Integers are known by their decimal digits.
///
/// The keys are odd, so that they are never the address of a class.
#[derive(Debug, Clone, Default)]
pub struct Tags(HashMap<Box<str>, TypeKey>);

impl Tags {
    /// The key of all rows whose tag nobody has asked for.
    pub const UNKNOWN: TypeKey = TypeKey(1);

    /// The key of all rows without a tag: null in the column.
    pub const NULL: TypeKey = TypeKey(3);

    /// Gives a tag its key, or finds the one that it has.
    pub fn add(&mut self, tag: &str) -> TypeKey {
        let next = TypeKey(2 * self.0.len() + 5);
        *self.0.entry(tag.into()).or_insert(next)
    }

    /// The key of a tag; [`UNKNOWN`](Self::UNKNOWN) if it has none.
    pub fn key(&self, tag: &str) -> TypeKey {
        self.0.get(tag).copied().unwrap_or(Self::UNKNOWN)
    }

    /// Whether a key is that of a tag, of unknown tags, or of none.
    pub fn is_tag(key: TypeKey) -> bool {
        key.0 % 2 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_has_one_key_and_no_other_has_it() {
        let mut tags = Tags::default();
        let (one, two) = (tags.add("a"), tags.add("b"));
        assert_eq!((tags.add("a"), tags.key("a"), tags.key("b")), (one, one, two));
        assert_eq!(tags.key("c"), Tags::UNKNOWN);
        let keys = [one, two, Tags::UNKNOWN, Tags::NULL];
        assert!(keys.iter().all(|key| Tags::is_tag(*key)));
        assert!((0..4).all(|first| (first + 1..4).all(|second| keys[first] != keys[second])));
        assert!(!Tags::is_tag(TypeKey(&raw const tags as usize)));
    }
}
