//! Assignment from scratch: longest processing time first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::rank::{Ranked, narrow};

/// Assigns a thread to each partition with load, by rank: heaviest first, each to the least loaded
/// thread so far, with ties going to the lower index.
///
/// R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17 (1969): the
/// largest thread load is at most 4/3 − 1/(3·threads) of the best possible, and at most the mean
/// plus (1 − 1/threads) · the heaviest partition. Costs one heap sift per partition.
pub(super) fn deal(ranked: &Ranked, threads: usize) -> Vec<u32> {
    // Loads are not negative, so their bits sort like their values; unlike floats, bits have a
    // total order.
    let mut least: BinaryHeap<Reverse<(u64, u32)>> =
        (0..narrow(threads)).map(|thread| Reverse((0, thread))).collect();
    let mut bins = vec![0; ranked.len()];
    for (bin, load) in bins.iter_mut().zip(&ranked.load).rev() {
        let Some(mut top) = least.peek_mut() else { break };
        let Reverse((least_load, thread)) = *top;
        *bin = thread;
        *top = Reverse(((f64::from_bits(least_load) + load).to_bits(), thread));
        drop::<PeekMut<'_, _>>(top);
    }
    bins
}

/// The same by partition. One without load goes to index mod threads, like a new one.
#[cfg(all(test, not(loom)))]
pub(super) fn lpt(load: &[f64], threads: usize) -> Vec<usize> {
    let threads = threads.max(1);
    let ranked = Ranked::new(load);
    let mut bins: Vec<usize> = (0..load.len()).map(|partition| partition % threads).collect();
    for (partition, bin) in ranked.partition.iter().zip(deal(&ranked, threads)) {
        bins[*partition as usize] = bin as usize;
    }
    bins
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::super::plan::{extremes, thread_loads};
    use super::super::workloads::{loads, sum};
    use super::*;

    /// Allows for rounding: ranking truncates loads, and sums are rounded.
    const ROUNDING: f64 = 1.0 + 1e-9;

    fn largest(load: &[f64], threads: usize) -> f64 {
        extremes(&thread_loads(load, &lpt(load, threads), threads)).1
    }

    /// The smallest possible largest thread load, by exhaustive search. Threads are
    /// interchangeable.
    fn optimum(load: &[f64], threads: &mut [f64], best: f64) -> f64 {
        let Some((first, rest)) = load.split_first() else { return extremes(threads).1.min(best) };
        let mut best = best;
        for thread in 0..threads.len() {
            let before = threads[thread];
            if before + first < best {
                threads[thread] += first;
                best = optimum(rest, threads, best);
                threads[thread] = before;
            }
            if before == 0.0 {
                break;
            }
        }
        best
    }

    #[test]
    fn heaviest_goes_first_to_the_least_loaded_and_ties_go_by_index() {
        assert_eq!(lpt(&[1.0, 5.0, 3.0, 3.0], 2), [0, 0, 1, 1]);
        assert_eq!(lpt(&[2.0; 6], 3), [0, 1, 2, 0, 1, 2]);
        // Graham's example that reaches the bound: 7 where 6 is possible.
        assert_eq!(
            largest(&[3.0, 3.0, 2.0, 2.0, 2.0], 2).total_cmp(&7.0),
            std::cmp::Ordering::Equal
        );
    }

    #[test]
    fn every_partition_gets_a_thread_in_edge_cases() {
        assert_eq!(lpt(&[], 4), [0; 0]);
        assert_eq!(lpt(&[1.0, 2.0], 1), [0, 0]);
        assert_eq!(lpt(&[1.0, 2.0], 5), [1, 0]);
        assert_eq!(lpt(&[0.0, 0.0, 0.0, 0.0, 8.0], 3), [0, 1, 2, 0, 0]);
        assert_eq!(lpt(&[f64::NAN, -1.0, f64::INFINITY], 2), [0, 1, 0]);
        assert_eq!(lpt(&[1e18, 1e-9, 1e18, 1e-9], 2), [0, 0, 1, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        #[allow(clippy::cast_precision_loss)]
        fn largest_bin_is_at_most_the_mean_plus_the_rest_of_the_heaviest(
            load in loads(0..200),
            threads in 1..20_usize,
        ) {
            let heaviest = load.iter().copied().fold(0.0, f64::max);
            let count = threads as f64;
            let bound = sum(&load) / count + (1.0 - 1.0 / count) * heaviest;
            prop_assert!(largest(&load, threads) <= bound * ROUNDING);
        }

        #[test]
        #[allow(clippy::cast_precision_loss)]
        fn largest_bin_is_within_grahams_ratio_of_the_optimum(
            load in loads(0..11),
            threads in 1..5_usize,
        ) {
            let best = optimum(&load, &mut vec![0.0; threads], f64::INFINITY);
            let bound = best * (4.0 / 3.0 - 1.0 / (3.0 * threads as f64));
            prop_assert!(largest(&load, threads) <= bound * ROUNDING, "optimum {best}");
        }
    }
}
