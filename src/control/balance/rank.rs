//! Partitions ordered by load, and bounds that no plan can beat.

/// The partitions that have load, lightest first; equal loads by descending index, so that from the
/// heavy end the lower index comes first. A partition's position in this order is its *rank*.
///
/// Plans are made with ranks rather than partitions because sorted ranks are sorted loads.
#[derive(Debug)]
pub(super) struct Ranked {
    /// Load by rank. All loads are finite and above 0.
    pub(super) load: Vec<f64>,
    /// Partition by rank.
    pub(super) partition: Vec<u32>,
}

impl Ranked {
    /// Ranks the partitions. Loads that are zero, negative or not finite get no rank.
    ///
    /// Load and index share one integer per partition because integers sort faster than pairs. A
    /// load is truncated to the bits that the index leaves: with 65,536 partitions, 36 of its 52
    /// fraction bits.
    pub(super) fn new(load: &[f64]) -> Self {
        let index_bits = usize::BITS - load.len().leading_zeros();
        let index_mask = (1 << index_bits) - 1;
        let mut keys: Vec<u64> = Vec::with_capacity(load.len());
        for (partition, &load) in (0..).zip(load) {
            if load > 0.0 && load.is_finite() {
                // The bits of positive floats sort like their values; the first bit is the sign.
                // The index counts down, so that among equal loads the lower index ranks as the
                // heavier.
                keys.push(load.to_bits() << 1 & !index_mask | (index_mask - partition));
            }
        }
        keys.sort_unstable();
        // The index has fewer than 32 bits, as `narrow` checks.
        #[allow(clippy::cast_possible_truncation)]
        Self {
            load: keys.iter().map(|key| f64::from_bits((key & !index_mask) >> 1)).collect(),
            partition: keys.iter().map(|key| (index_mask - (key & index_mask)) as u32).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.load.len()
    }
}

/// Converts an index to half its size, which makes lists of indices cheaper to shift and search. A
/// queue has far fewer than 2³² partitions.
pub(super) fn narrow(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 partitions and threads")
}

/// Bounds that no plan can beat.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    /// The largest thread load is at least this.
    pub(super) largest: f64,
    /// The smallest thread load is at most this.
    pub(super) smallest: f64,
}

impl Bounds {
    /// Largest: one thread holds the heaviest partition, and one thread holds at least the mean.
    /// Smallest: the `k` heaviest partitions are on at most `k` threads, so the other threads share
    /// at most the rest.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn of(ranked: &Ranked, threads: usize) -> Self {
        let tail = ranked.len().saturating_sub(threads);
        // Summed from the light end: next to a load of 1e18, a tail of ones would vanish.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_ranked_by_load_and_the_lower_index_is_the_heavier_of_equals() {
        let ranked = Ranked::new(&[2.0, 1e18, 0.0, 2.0, 1e-9, 7.0, 2.0]);
        assert_eq!(ranked.partition, [4, 6, 3, 0, 5, 1]);
        let near = ranked.load.iter().zip([1e-9, 2.0, 2.0, 2.0, 7.0, 1e18]);
        assert!(near.clone().all(|(load, given)| (load / given - 1.0).abs() < 1e-12), "{near:?}");
    }

    #[test]
    fn invalid_loads_have_no_rank() {
        assert_eq!(
            Ranked::new(&[0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0]).len(),
            0
        );
        assert_eq!(Ranked::new(&[]).len(), 0);
    }

    #[test]
    fn bounds_account_for_heavy_partitions_and_idle_threads() {
        let cases: [(&[f64], usize, f64, f64); 6] = [
            (&[1.0, 1.0, 1.0, 1.0], 2, 2.0, 2.0),
            (&[9.0, 1.0, 1.0, 1.0], 2, 9.0, 3.0),
            (&[90.0, 9.0, 1.0, 1.0], 3, 90.0, 2.0),
            (&[3.0, 5.0], 3, 5.0, 0.0),
            (&[1e18, 1.0, 1.0], 2, 1e18, 2.0),
            (&[], 2, 0.0, 0.0),
        ];
        for (load, threads, largest, smallest) in cases {
            let bounds = Bounds::of(&Ranked::new(load), threads);
            assert_eq!(bounds, Bounds { largest, smallest }, "{load:?} on {threads} threads");
        }
    }
}
