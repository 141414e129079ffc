//! The ready set: one bit per partition, set if it may have items.
//!
//! Written by producers (set, on the step from empty to non-empty, under the partition's gate) and
//! by the thread inside the partition (clear before a take, set again when a take stops at its
//! budget). Read by drain threads in search of work. 64 partitions share one word; growth adds
//! words and never moves one.

use crossbeam_utils::CachePadded;

use crate::sync::{Arc, AtomicU64, Ordering};

pub(crate) const BITS: usize = u64::BITS as usize;

/// One word of the ready set, for 64 consecutive partitions.
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
        // Release: pairs with the Acquire of the scan in `ready_after`. Items are published by the
        // gate, not by this store.
        self.word.fetch_or(self.mask, Ordering::Release);
    }

    /// Whether the bit is set. The caller has fenced.
    pub(crate) fn is_set(&self) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.word.load(Ordering::Relaxed) & self.mask != 0
    }

    /// Clears the bit. For the thread inside only; the caller fences before it takes.
    pub(crate) fn clear(&self) {
        // AcqRel: as a read-modify-write it continues the release sequence of a `set` on another
        // bit of the word.
        self.word.fetch_and(!self.mask, Ordering::AcqRel);
    }
}

/// The partitions whose bit is set, in one round that starts after `after` and ends with it.
///
/// Words are read lazily: a scan that stops early costs only the words that it read.
pub(crate) fn ready_after<'a>(
    word: impl Fn(usize) -> Option<&'a ReadyWord>,
    words: usize,
    after: usize,
) -> impl Iterator<Item = usize> {
    let (first, bit) = (after / BITS % words.max(1), after % BITS);
    // The first word is visited twice: its upper bits at the beginning, its lower bits at the end.
    let upper = if bit + 1 == BITS { 0 } else { u64::MAX << (bit + 1) };
    let visits = (0..=words).map(move |step| {
        let mask = if step == 0 {
            upper
        } else if step == words {
            !upper
        } else {
            u64::MAX
        };
        ((first + step) % words.max(1), mask)
    });
    visits.flat_map(move |(index, mask)| {
        // Acquire: pairs with the Release of `ReadyBit::set`.
        let mut bits = word(index).map_or(0, |word| word.load(Ordering::Acquire)) & mask;
        std::iter::from_fn(move || {
            if bits == 0 {
                return None;
            }
            let bit = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            Some(index * BITS + bit)
        })
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_scan_visits_each_ready_partition_once() {
        let words: Vec<ReadyWord> = (0..3).map(|_| new_word()).collect();
        for partition in [0, 5, 63, 64, 70, 130, 191] {
            ReadyBit::new(words[partition / BITS].clone(), partition).set();
        }
        let scan =
            |after| ready_after(|index| words.get(index), words.len(), after).collect::<Vec<_>>();
        assert_eq!(scan(5), [63, 64, 70, 130, 191, 0, 5]);
        assert_eq!(scan(63), [64, 70, 130, 191, 0, 5, 63]);
        assert_eq!(scan(191), [0, 5, 63, 64, 70, 130, 191]);
        assert_eq!(scan(131), [191, 0, 5, 63, 64, 70, 130]);
        assert_eq!(ready_after(|_| None, 0, 7).count(), 0);
    }
}
