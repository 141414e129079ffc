//! The ready set: one bit per partition says that it may have items.
//!
//! Written by producers (set, on the step from empty to non-empty, under the partition's gate) and by the thread inside
//! the partition (clear before a take, set again when a take stops at its budget). Read by drain threads that look for
//! work. 64 partitions share one word; growth adds words and never moves one.

use crossbeam_utils::CachePadded;

use crate::sync::{Arc, AtomicU64, Ordering};

pub(crate) const BITS: usize = u64::BITS as usize;

/// One word of the ready set, for 64 partitions in a row.
pub(crate) type ReadyWord = Arc<CachePadded<AtomicU64>>;

pub(crate) fn new_word() -> ReadyWord {
    Arc::new(CachePadded::new(AtomicU64::new(0)))
}

/// The bit of one partition.
#[derive(Debug)]
pub(crate) struct ReadyBit {
    word: ReadyWord,
    mask: u64,
}

impl ReadyBit {
    pub(crate) fn new(word: ReadyWord, partition: usize) -> Self {
        Self { word, mask: 1 << (partition % BITS) }
    }

    pub(crate) fn set(&self) {
        // Release: pairs with the Acquire of the scan in `ready_in`; publishes nothing by itself, the gate does.
        self.word.fetch_or(self.mask, Ordering::Release);
    }

    /// Only for the thread inside. The caller fences before it takes.
    pub(crate) fn clear(&self) {
        // AcqRel: as a read-modify-write it continues the release sequence of a `set` on another bit of the word.
        self.word.fetch_and(!self.mask, Ordering::AcqRel);
    }
}

/// The partitions whose bit is set in word number `word`, lowest first.
pub(crate) fn ready_in(words: &[ReadyWord], word: usize) -> impl Iterator<Item = usize> + use<> {
    // Acquire: pairs with the Release of `ReadyBit::set`.
    let mut bits = words[word].load(Ordering::Acquire);
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let bit = bits.trailing_zeros() as usize;
        bits &= bits - 1;
        Some(word * BITS + bit)
    })
}
