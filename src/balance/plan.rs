//! Compares, validates and weighs plans. A plan is the wanted thread of each partition.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// The share of time in calls from which a thread gets no further partitions, if another is below
/// [`IDLE`]. Its load may look small, because others may have taken over its partitions.
const SATURATED: f64 = 0.95;

const IDLE: f64 = 0.8;

/// The move of one partition to another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) partition: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// Returns the moves from the current owners to the plan, ordered by partition.
pub(crate) fn moves(owner: &[usize], plan: &[usize]) -> Vec<Move> {
    let pairs = owner.iter().zip(plan).enumerate();
    pairs
        .filter(|(_, (from, to))| from != to)
        .map(|(partition, (&from, &to))| Move { partition, from, to })
        .collect()
}

/// Checks that a custom plan has one thread per partition and that each thread exists: a partition
/// on a missing thread would never be drained again.
///
/// # Errors
/// The problem, with value, limit and remedy.
pub(crate) fn validate(plan: &[usize], partitions: usize, threads: usize) -> Result<(), String> {
    if plan.len() != partitions {
        return Err(format!(
            "the plan has {} entries and the queue {partitions} partitions: give one thread per \
             partition, in the order of the loads",
            plan.len()
        ));
    }
    match plan.iter().enumerate().find(|(_, thread)| **thread >= threads) {
        Some((partition, thread)) => Err(format!(
            "the plan gives partition {partition} to thread {thread} and the queue has {threads} \
             drain threads: give a thread from 0 to {}",
            threads.saturating_sub(1)
        )),
        None => Ok(()),
    }
}

/// Returns the load of each thread under the given owners. Partitions whose owner does not exist
/// are ignored.
pub(crate) fn thread_loads(load: &[f64], owner: &[usize], threads: usize) -> Vec<f64> {
    let mut loads = vec![0.0; threads];
    for (load, owner) in load.iter().zip(owner) {
        if let Some(thread) = loads.get_mut(*owner) {
            *thread += load;
        }
    }
    loads
}

/// Returns the ratio of the largest thread load to the smallest: 1 if all are zero, infinite if
/// only the smallest is.
pub(crate) fn load_ratio(thread_loads: &[f64]) -> f64 {
    let (smallest, largest) = extremes(thread_loads);
    if largest == 0.0 { 1.0 } else { largest / smallest }
}

/// Returns the spread of the threads' loads, (largest − smallest) / largest; 0 if all are zero.
pub(crate) fn spread(thread_loads: &[f64]) -> f64 {
    let (smallest, largest) = extremes(thread_loads);
    if largest == 0.0 { 0.0 } else { (largest - smallest) / largest }
}

/// Returns the heaviest partition if it alone exceeds a thread's fair share: no plan can then even
/// out the threads, only more partitions for its type can. Among ties, the lowest index.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn oversized(load: &[f64], threads: usize) -> Option<usize> {
    // A fair share may differ from a partition of that size by a rounding error.
    const ROUNDING: f64 = 1.0 + 1e-9;
    let sum: f64 = load.iter().sum();
    let (partition, heaviest) =
        load.iter().enumerate().rev().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (*heaviest > sum / threads.max(1) as f64 * ROUNDING).then_some(partition)
}

/// Returns the smallest and the largest thread load; zeros without threads.
pub(crate) fn extremes(thread_loads: &[f64]) -> (f64, f64) {
    let ordered =
        |(smallest, largest): (f64, f64), load: &f64| (smallest.min(*load), largest.max(*load));
    let first = thread_loads.first().copied().unwrap_or(0.0);
    thread_loads.iter().fold((first, first), ordered)
}

/// Plans for the available threads only. Partitions of threads that are away stay.
pub(crate) fn plan_around(
    away: &[bool],
    load: &[f64],
    owner: &[usize],
    plan: impl FnOnce(&[f64], &[usize], usize) -> Result<Option<Vec<usize>>, String>,
) -> Result<Option<Vec<usize>>, String> {
    if !away.contains(&true) {
        return plan(load, owner, away.len());
    }
    let available: Vec<usize> = (0..away.len()).filter(|&thread| !away[thread]).collect();
    let movable: Vec<usize> =
        (0..owner.len()).filter(|&partition| !away[owner[partition]]).collect();
    let position = |thread: usize| available.iter().position(|&other| other == thread).unwrap_or(0);
    let loads: Vec<f64> = movable.iter().map(|&partition| load[partition]).collect();
    let owners: Vec<usize> = movable.iter().map(|&partition| position(owner[partition])).collect();
    let Some(partial) = plan(&loads, &owners, available.len())? else { return Ok(None) };
    let mut whole = owner.to_vec();
    for (&partition, thread) in movable.iter().zip(partial) {
        whole[partition] = available[thread];
    }
    Ok(Some(whole))
}

/// Cancels moves to threads that are away or saturated. `busy`: the share of time that each thread
/// spends in calls.
pub(crate) fn hold_back(plan: &mut [usize], owner: &[usize], away: &[bool], busy: &[f64]) {
    let has_idle = busy.iter().any(|share| *share < IDLE);
    let is_full = |thread: usize| has_idle && busy[thread] >= SATURATED;
    for (thread, owner) in plan.iter_mut().zip(owner) {
        if away[*thread] || is_full(*thread) {
            *thread = *owner;
        }
    }
}

// Assignment from scratch: longest processing time first.

/// Assigns a thread to each partition with load, by rank: heaviest first, each to the least loaded
/// thread so far, with ties going to the lower index.
///
/// R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17 (1969): the
/// largest thread load is at most 4/3 − 1/(3·threads) of the best possible, and at most the mean
/// plus (1 − 1/threads) · the heaviest partition. Costs one heap sift per partition.
pub(crate) fn deal(ranked: &Ranked, threads: usize) -> Vec<u32> {
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

// Partitions ordered by load, and bounds that no plan can beat.

/// The partitions that have load, lightest first; equal loads by descending index, so that from the
/// heavy end the lower index comes first. A partition's position in this order is its *rank*.
///
/// Plans are made with ranks rather than partitions because sorted ranks are sorted loads.
#[derive(Debug)]
pub(crate) struct Ranked {
    /// Load by rank. All loads are finite and above 0.
    pub(crate) load: Vec<f64>,
    /// Partition by rank.
    pub(crate) partition: Vec<u32>,
}

impl Ranked {
    /// Ranks the partitions. Loads that are zero, negative or not finite get no rank.
    ///
    /// Load and index share one integer per partition because integers sort faster than pairs. A
    /// load is truncated to the bits that the index leaves: with 65,536 partitions, 36 of its 52
    /// fraction bits.
    pub(crate) fn new(load: &[f64]) -> Self {
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

    pub(crate) fn len(&self) -> usize {
        self.load.len()
    }
}

/// Converts an index to half its size, which makes lists of indices cheaper to shift and search. A
/// queue has far fewer than 2³² partitions.
pub(crate) fn narrow(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 partitions and threads")
}

/// Bounds that no plan can beat.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bounds {
    /// The largest thread load is at least this.
    pub(crate) largest: f64,
    /// The smallest thread load is at most this.
    pub(crate) smallest: f64,
}

impl Bounds {
    /// Largest: one thread holds the heaviest partition, and one thread holds at least the mean.
    /// Smallest: the `k` heaviest partitions are on at most `k` threads, so the other threads share
    /// at most the rest.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn of(ranked: &Ranked, threads: usize) -> Self {
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
#[allow(clippy::float_cmp)]
mod tests {
    use super::*;
    use crate::config::DrainBalancer;

    #[test]
    fn moves_are_the_differences_in_order() {
        assert_eq!(moves(&[0, 1, 0], &[0, 1, 0]), []);
        let (a, b) = (Move { partition: 0, from: 0, to: 1 }, Move { partition: 2, from: 3, to: 0 });
        assert_eq!(moves(&[0, 1, 3], &[1, 1, 0]), [a, b]);
        assert_eq!(moves(&[], &[]), []);
    }

    #[test]
    fn a_plan_with_an_existing_thread_per_partition_is_valid() {
        assert_eq!(validate(&[3, 0, 3], 3, 4), Ok(()));
        assert_eq!(validate(&[], 0, 4), Ok(()));
    }

    /// Unchecked, partition 2 would never be drained again.
    #[test]
    fn a_missing_thread_is_rejected_with_value_limit_and_remedy() {
        assert_eq!(
            validate(&[0, 1, 99, 3], 4, 4).unwrap_err(),
            "the plan gives partition 2 to thread 99 and the queue has 4 drain threads: give a \
             thread from 0 to 3"
        );
        assert!(validate(&[0, 4], 2, 4).unwrap_err().contains("partition 1 to thread 4"));
    }

    #[test]
    fn a_wrong_length_is_rejected_with_value_limit_and_remedy() {
        for (plan, entries) in [(vec![0; 3], 3), (vec![0; 5], 5), (vec![], 0)] {
            assert_eq!(
                validate(&plan, 4, 4).unwrap_err(),
                format!(
                    "the plan has {entries} entries and the queue 4 partitions: give one thread \
                     per partition, in the order of the loads"
                )
            );
        }
    }

    #[test]
    fn loads_add_up_by_owner() {
        assert_eq!(thread_loads(&[1.0, 2.0, 4.0], &[0, 2, 0], 3), [5.0, 0.0, 2.0]);
        assert_eq!(thread_loads(&[1.0, 2.0], &[0, 9], 1), [1.0]);
        assert_eq!(thread_loads(&[], &[], 2), [0.0, 0.0]);
    }

    #[test]
    fn ratio_and_spread_of_thread_loads() {
        let cases: [(&[f64], f64, f64); 7] = [
            (&[2.0, 4.0, 3.0], 2.0, 0.5),
            (&[5.0, 5.0], 1.0, 0.0),
            (&[7.0], 1.0, 0.0),
            (&[0.0, 0.0], 1.0, 0.0),
            (&[], 1.0, 0.0),
            (&[0.0, 3.0], f64::INFINITY, 1.0),
            (&[1e18, 1e-3], 1e21, 1.0),
        ];
        for (loads, ratio, apart) in cases {
            assert_eq!((load_ratio(loads), spread(loads)), (ratio, apart), "{loads:?}");
        }
    }

    #[test]
    fn oversized_names_the_heaviest_partition_above_a_fair_share() {
        let cases: [(&[f64], usize, Option<usize>); 8] = [
            (&[1.0, 6.0, 3.0], 2, Some(1)),
            (&[1.0, 5.0, 4.0], 2, None),
            (&[3.0, 3.0, 0.0], 4, Some(0)),
            (&[0.7, 0.7, 0.7], 3, None),
            (&[7.0], 1, None),
            (&[7.0, 0.0], 2, Some(0)),
            (&[0.0, 0.0], 2, None),
            (&[], 2, None),
        ];
        for (load, threads, partition) in cases {
            assert_eq!(oversized(load, threads), partition, "{load:?} on {threads} threads");
        }
    }

    #[test]
    fn a_thread_that_is_away_neither_gains_nor_loses_partitions() {
        let balancer = DrainBalancer::throughput_weighted();
        let plan =
            |load: &[f64], owner: &[usize], threads: usize| balancer.plan(load, owner, threads);
        let (load, owner) = ([9.0, 9.0, 9.0, 9.0, 1.0, 0.0], [1, 1, 1, 1, 2, 0]);
        let planned = plan_around(&[true, false, false], &load, &owner, plan).unwrap().unwrap();
        assert_eq!(planned[5], 0);
        assert!(planned[..5].iter().all(|&thread| thread != 0), "{planned:?}");
        assert_eq!(planned[..4].iter().filter(|&&thread| thread == 2).count(), 2, "{planned:?}");
        assert_eq!(plan_around(&[true, true, false], &load, &owner, plan), Ok(None));
    }

    #[test]
    fn a_busy_thread_gets_no_partition_while_another_has_time() {
        let held_back = |away: [bool; 2], busy: &[f64]| {
            let mut plan = vec![1, 1, 0];
            hold_back(&mut plan, &[0, 1, 1], &away, busy);
            plan
        };
        let here = [false; 2];
        assert_eq!(held_back(here, &[0.5, 0.96]), [0, 1, 0]);
        assert_eq!(held_back(here, &[0.5, 0.94]), [1, 1, 0]);
        assert_eq!(held_back(here, &[0.85, 0.96]), [1, 1, 0], "both have little time");
        assert_eq!(held_back(here, &[]), [1, 1, 0]);
        assert_eq!(held_back([true, false], &[]), [1, 1, 1]);
    }
}

#[cfg(all(test, not(loom)))]
mod lpt_tests {
    use proptest::prelude::*;

    use super::{extremes, thread_loads};
    use crate::balance::simulation::{loads, lpt, sum};

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

#[cfg(all(test, not(loom)))]
mod rank_tests {
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
