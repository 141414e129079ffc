//! Partitions in the order of their loads, and what no plan can beat.

/// The partitions that have load, lightest first; equal loads by falling index, so that from the heavy end the lower
/// index comes first. A partition's place in this order is its *rank*.
///
/// Ranks instead of partitions, because a list of ranks in order is a list of loads in order.
#[derive(Debug)]
pub(super) struct Ranked {
    /// Load by rank: finite and above 0.
    pub(super) load: Vec<f64>,
    /// Partition by rank.
    pub(super) partition: Vec<u32>,
}

impl Ranked {
    /// Loads that are zero, negative or not finite have no rank.
    pub(super) fn new(load: &[f64]) -> Self {
        // The bits of positive floats are in the order of their values. One integer per partition sorts faster than a
        // pair; the complement puts the lower index on the heavy side.
        let mut keys: Vec<u128> = Vec::with_capacity(load.len());
        for (partition, &load) in load.iter().enumerate() {
            if load > 0.0 && load.is_finite() {
                keys.push(u128::from(load.to_bits()) << 32 | u128::from(!narrow(partition)));
            }
        }
        keys.sort_unstable();
        // The cuts keep exactly the half of the key that is meant.
        #[allow(clippy::cast_possible_truncation)]
        Self {
            load: keys.iter().map(|&key| f64::from_bits((key >> 32) as u64)).collect(),
            partition: keys.iter().map(|&key| !(key as u32)).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.load.len()
    }
}

/// An index in half the memory. Lists of them are shifted and searched; a queue has far fewer than 2³² partitions.
pub(super) fn narrow(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 partitions and threads")
}

/// What no plan can beat.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    /// The largest thread load is at least this.
    pub(super) largest: f64,
    /// The smallest thread load is at most this.
    pub(super) smallest: f64,
}

impl Bounds {
    /// Largest: some thread has the heaviest partition, and some thread has the mean or more. Smallest: the `k`
    /// heaviest partitions are on at most `k` threads, so the other threads share the rest, or less.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn of(ranked: &Ranked, threads: usize) -> Self {
        let tail = ranked.len().saturating_sub(threads);
        // Summed from the light end: beside a load of 1e18, a tail of ones would vanish.
        let mut rest: f64 = ranked.load[..tail].iter().sum();
        let mut smallest = f64::INFINITY;
        let mut sharing = threads - (ranked.len() - tail);
        if sharing > 0 {
            smallest = rest / sharing as f64;
        }
        for load in &ranked.load[tail..] {
            rest += load;
            sharing += 1;
            smallest = smallest.min(rest / sharing as f64);
        }
        let heaviest = ranked.load.last().copied().unwrap_or(0.0);
        Self { largest: heaviest.max(rest / threads as f64), smallest }
    }
}
