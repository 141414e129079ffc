//! The ready set: one bit per partition, set if it may have items.
//!
//! Written by producers (set on the transition from empty to non-empty, under the partition's gate)
//! and by the thread inside the partition (cleared before a take, set again when a take stops at
//! its budget or leaves a segment behind that the next turn takes back). Read by drain threads in
//! search of work, several times per item of a quiet queue.
//!
//! 64 partitions share a word. Words never move: they come in chunks, in which neighbouring words
//! lie in different cache lines. So producers of a few hundred partitions do not share a line,
//! while a scan of thousands reads few lines.

use crossbeam_utils::CachePadded;

use crate::sync::{AppendOnly, Arc, AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// The cache lines of a chunk. A loom model has so few partitions that one word is enough.
const LINES: usize = if cfg!(loom) { 1 } else { 8 };

const WORDS_PER_LINE: usize = if cfg!(loom) { 1 } else { size_of::<CachePadded<u8>>() / 8 };

const WORDS_PER_CHUNK: usize = LINES * WORDS_PER_LINE;

#[derive(Debug)]
struct Chunk([CachePadded<[AtomicU64; WORDS_PER_LINE]>; LINES]);

impl Chunk {
    fn new() -> Self {
        let line = || std::array::from_fn(|_| AtomicU64::new(0));
        Self(std::array::from_fn(|_| CachePadded::new(line())))
    }

    /// Returns a word of this chunk by its index in the set.
    #[inline]
    #[cfg_attr(loom, allow(clippy::modulo_one))] // one word
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index % LINES][index / LINES % WORDS_PER_LINE]
    }
}

/// The ready bits of all partitions of a queue.
pub(crate) struct ReadySet {
    chunks: AppendOnly<Arc<Chunk>>,
}

impl ReadySet {
    pub(crate) fn new() -> Self {
        Self { chunks: AppendOnly::new() }
    }

    /// Returns the bit of a partition. Called for partitions in ascending order, by one thread at a
    /// time, and before others can count them.
    pub(crate) fn add(&self, partition: usize) -> ReadyBit {
        let (word, mask) = (partition / BITS, 1 << (partition % BITS));
        let number = word / WORDS_PER_CHUNK;
        if number == self.chunks.len() {
            self.chunks.push(Arc::new(Chunk::new()));
        }
        let Some(chunk) = self.chunks.get(number).cloned() else {
            unreachable!("partition {partition} comes before those of earlier chunks")
        };
        ReadyBit { chunk, word, mask }
    }

    /// Returns those of the first `count` partitions whose bit is set, in one round that starts
    /// after `after` and ends with it.
    ///
    /// Words are read lazily: a scan that stops early costs only the words that it read.
    pub(crate) fn scan(&self, count: usize, after: usize) -> Scan<'_> {
        let words = count.div_ceil(BITS);
        let bit = after % BITS;
        // The first word is visited twice: its upper bits at the beginning, its lower bits at the
        // end.
        let upper = if bit + 1 == BITS { 0 } else { u64::MAX << (bit + 1) };
        let word = after / BITS % words.max(1);
        let left = if words == 0 { 0 } else { words + 1 };
        Scan { set: self, chunk: None, words, word, left, mask: upper, lower: !upper, bits: 0 }
    }
}

/// See [`ReadySet::scan`].
pub(crate) struct Scan<'a> {
    set: &'a ReadySet,
    /// The number and the chunk of the last word.
    chunk: Option<(usize, &'a Chunk)>,
    words: usize,
    /// The word that `bits` came from while any are left; otherwise the next to read.
    word: usize,
    /// Visits left; the last one is for the lower bits of the first word.
    left: usize,
    /// The bits that count in the next word.
    mask: u64,
    lower: u64,
    /// Bits that were read but not yet visited.
    bits: u64,
}

impl Scan<'_> {
    /// Reads words until one has bits. Returns `false` after the last word.
    fn advance(&mut self) -> bool {
        while self.left > 0 {
            let (number, mask) = (self.word / WORDS_PER_CHUNK, self.mask);
            if self.chunk.is_none_or(|(known, _)| known != number) {
                self.chunk = self.set.chunks.get(number).map(|chunk| (number, &**chunk));
            }
            // Acquire: pairs with the Release of `ReadyBit::set`.
            let word =
                self.chunk.map_or(0, |(_, chunk)| chunk.word(self.word).load(Ordering::Acquire));
            self.left -= 1;
            self.mask = if self.left == 1 { self.lower } else { u64::MAX };
            self.bits = word & mask;
            if self.bits != 0 {
                return true;
            }
            self.step();
        }
        false
    }

    fn step(&mut self) {
        self.word = if self.word + 1 == self.words { 0 } else { self.word + 1 };
    }
}

impl Iterator for Scan<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.bits == 0 && !self.advance() {
            return None;
        }
        let partition = self.word * BITS + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        if self.bits == 0 {
            self.step();
        }
        Some(partition)
    }
}

/// The ready bit of one partition.
#[derive(Debug)]
pub(crate) struct ReadyBit {
    chunk: Arc<Chunk>,
    word: usize,
    mask: u64,
}

impl ReadyBit {
    fn word(&self) -> &AtomicU64 {
        self.chunk.word(self.word)
    }

    pub(crate) fn set(&self) {
        // Release: pairs with the Acquire of a scan. Items are published by the gate, not by this
        // store.
        self.word().fetch_or(self.mask, Ordering::Release);
    }

    /// Whether the bit is set. The caller has fenced.
    pub(crate) fn is_set(&self) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.word().load(Ordering::Relaxed) & self.mask != 0
    }

    /// Clears the bit. Called by the thread inside only, which fences before it takes.
    pub(crate) fn clear(&self) {
        // AcqRel: as a read-modify-write it continues the release sequence of a `set` on another
        // bit of the word.
        self.word().fetch_and(!self.mask, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const CHUNK: usize = WORDS_PER_CHUNK * BITS;

    proptest! {
        #[test]
        fn a_scan_visits_each_ready_partition_once(
            count in prop_oneof![0..200_usize, CHUNK - 70..CHUNK + 70, 0..3 * CHUNK],
            ready in prop::collection::btree_set(0..3 * CHUNK, 0..60),
            cleared in prop::collection::btree_set(0..3 * CHUNK, 0..60),
            near in prop::collection::btree_set(0..130_usize, 0..60),
            after in 0..3 * CHUNK,
        ) {
            let set = ReadySet::new();
            let bits: Vec<_> = (0..count).map(|partition| set.add(partition)).collect();
            let of = |some: &BTreeSet<usize>| {
                some.iter().copied().filter(|&partition| partition < count).collect::<BTreeSet<_>>()
            };
            let mut expected = of(&ready);
            expected.extend(of(&near));
            for &partition in &expected {
                bits[partition].set();
            }
            for partition in of(&cleared) {
                bits[partition].clear();
                expected.remove(&partition);
            }
            let after = after % count.max(1);
            let behind = expected.range(after + 1..).copied();
            let round: Vec<_> = behind.chain(expected.range(..=after).copied()).collect();
            prop_assert_eq!(set.scan(count, after).collect::<Vec<_>>(), round);
            let set_bits = bits.iter().enumerate().filter(|(_, bit)| bit.is_set());
            let set_bits: BTreeSet<_> = set_bits.map(|(partition, _)| partition).collect();
            prop_assert_eq!(set_bits, expected);
        }
    }

    #[test]
    fn neighbouring_words_are_in_different_lines() {
        let set = ReadySet::new();
        let bits: Vec<_> = (0..LINES * BITS).map(|partition| set.add(partition)).collect();
        let lines: BTreeSet<_> = bits
            .iter()
            .map(|bit| std::ptr::from_ref(bit.word()) as usize / size_of::<CachePadded<u8>>())
            .collect();
        assert_eq!(lines.len(), LINES);
    }
}
