//! Items, and the types that handlers are registered for.

use crate::config::RetryPolicy;
use crate::error::ConfigError;
use crate::sync::Duration;

/// The type of an item: items with the same key go to the same handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeKey(pub usize);

impl TypeKey {
    /// The key that stands for all types of a queue with a consumer.
    pub const CONSUMER: Self = Self(0);

    /// Returns the place of the key in a table of 2^`bits` places, 1 to 63 bits.
    ///
    /// Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4): the top bits of the product
    /// spread numbers and addresses evenly.
    #[inline]
    pub(crate) fn place(self, bits: u32) -> usize {
        let hash = (self.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        #[allow(clippy::cast_possible_truncation)] // below the number of places
        let place = (hash >> (u64::BITS - bits)) as usize;
        place
    }
}

/// Formats a count for log lines: `"1 item"`, `"2 items"`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A type that a handler is registered for.
#[derive(Debug, Clone, PartialEq)]
pub struct HandledType {
    /// The type's key.
    pub key: TypeKey,
    /// Its name in logs and statistics.
    pub name: String,
    /// Its share of a partition under
    /// [`PartitionPolicy::Adaptive`](crate::config::PartitionPolicy::Adaptive).
    pub weight: f64,
    /// The most items that one call of its handler gets. `None`: the queue's,
    /// [`Config::max_batch_items`](crate::config::Config::max_batch_items).
    pub max_batch_items: Option<usize>,
    /// How long an item may wait for its batch to become full; zero: not at all. `None`: the
    /// queue's, [`Config::max_delay`](crate::config::Config::max_delay).
    pub max_delay: Option<Duration>,
    /// How a failed batch is retried. `None`: the queue's policy,
    /// [`Config::retry`](crate::config::Config::retry).
    pub retry: Option<RetryPolicy>,
}

/// The most partitions that one type may have or ask for.
pub(crate) const MOST_PARTITIONS_OF_TYPE: usize = 1_024;

/// The largest weight of a handler. As many would be a typing error.
const MOST_WEIGHT: f64 = 1_000.0;

impl HandledType {
    /// Checks the weight of a type, and its number of handlers.
    #[allow(clippy::cast_precision_loss)] // small numbers
    pub(crate) fn validate(&self, handlers: usize) -> Result<(), ConfigError> {
        let Self { name, weight, .. } = self;
        if !(1..=MOST_PARTITIONS_OF_TYPE).contains(&handlers) {
            return Err(ConfigError(format!(
                "{name} has {handlers} handlers; give 1 to {MOST_PARTITIONS_OF_TYPE}, one per \
                 partition"
            )));
        }
        if !(*weight > 0.0 && *weight <= MOST_WEIGHT) {
            return Err(ConfigError(format!(
                "{name}: weight is {weight}; give a number above 0, at most {MOST_WEIGHT}"
            )));
        }
        let (total, most) = (weight * handlers as f64, MOST_PARTITIONS_OF_TYPE as f64);
        if total > most {
            return Err(ConfigError(format!(
                "{name}: {handlers} handlers of weight {weight} ask for {total} partitions; one \
                 type may ask for {most}: give a weight of at most {}",
                most / handlers as f64
            )));
        }
        Ok(())
    }
}

impl From<TypeKey> for HandledType {
    /// Returns a type named after its key, with weight 1 and the queue's settings.
    fn from(key: TypeKey) -> Self {
        Self {
            key,
            name: format!("type {}", key.0),
            weight: 1.0,
            max_batch_items: None,
            max_delay: None,
            retry: None,
        }
    }
}

/// An item of a queue.
///
/// An item may stand for several, like a block of rows: their number is its weight, and
/// [`produce_weighted`](crate::queue::BatchQueue::produce_weighted) puts it in. The bound, the
/// limit of a batch and all counts are by weight; an item that exceeds a batch is
/// [`cut`](Self::cut).
pub trait Item: Send + Sized + 'static {
    /// Returns the item's type, which must not change while the item is queued.
    fn type_key(&self) -> TypeKey;

    /// Returns how many items this one stands for, at least 1. Must not change while the item is
    /// queued. An item of a weight above 1 must support [`cut`](Self::cut).
    fn weight(&self) -> usize {
        1
    }

    /// Cuts the item in two. The first part has the given weight: at least 1, and less than the
    /// whole.
    #[must_use]
    fn cut(self, weight: usize) -> (Self, Self) {
        unreachable!("an item of weight 1 was cut at {weight}")
    }
}

/// Returns the total weight of `items`.
pub(crate) fn weight_of<T: Item>(items: &[T]) -> usize {
    items.iter().map(Item::weight).sum()
}
