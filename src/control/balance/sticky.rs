//! Sticky plans: repair the current owners, or reassign from scratch where repair falls short.

use super::lpt::deal;
use super::plan::extremes;
use super::rank::{Bounds, Ranked, narrow};
use super::repair::Repair;

/// A repair is accepted if its largest thread load is at most this fraction above LPT's, and its
/// smallest at most as far below.
const TOLERANCE: f64 = 0.03;

/// Assigns a thread to each partition such that loads are even and few partitions move.
///
/// * The largest thread load is at most 3 % above LPT's, and LPT's smallest at most 3 % above the
///   smallest.
/// * Partitions without load stay where they are.
/// * Nothing moves while every thread is within 2 % of the mean, nor when the plan has been applied
///   and the same loads recur.
/// * An owner that does not exist counts as index mod threads, where a new partition starts.
///
/// The current owners are repaired first (`repair`). If the result is not close to LPT, the
/// partitions are reassigned from scratch, the new bins are matched to the old threads so that much
/// of the load stays, and the result is repaired too.
pub(crate) fn sticky(load: &[f64], owner: &[usize], threads: usize) -> Vec<usize> {
    let threads = threads.max(1);
    let home = |partition: usize| match owner.get(partition) {
        Some(thread) if *thread < threads => *thread,
        _ => partition % threads,
    };
    let mut plan: Vec<usize> = (0..load.len()).map(home).collect();
    let ranked = Ranked::new(load);
    let today: Vec<u32> =
        ranked.partition.iter().map(|partition| narrow(plan[*partition as usize])).collect();
    for (partition, thread) in ranked.partition.iter().zip(repair_or_deal(&ranked, &today, threads))
    {
        plan[*partition as usize] = thread as usize;
    }
    plan
}

/// Like [`sticky`], but by rank.
fn repair_or_deal(ranked: &Ranked, today: &[u32], threads: usize) -> Vec<u32> {
    let repaired = Repair::new(ranked, today.to_vec(), threads).settle();
    // LPT cannot beat the bounds either: usually the repair is good enough without running LPT.
    let Bounds { largest, smallest } = Bounds::of(ranked, threads);
    if close(repaired.load(), smallest, largest) {
        return repaired.into_threads();
    }
    let bins = deal(ranked, threads);
    let dealt = Repair::new(ranked, matched(ranked, &bins, today, threads), threads);
    let (smallest, largest) = extremes(dealt.load());
    if close(repaired.load(), smallest, largest) {
        return repaired.into_threads();
    }
    dealt.settle().into_threads()
}

fn close(loads: &[f64], smallest: f64, largest: f64) -> bool {
    let (least, most) = extremes(loads);
    most <= largest * (1.0 + TOLERANCE) && least * (1.0 + TOLERANCE) >= smallest
}

/// Maps bins to threads so that load stays: the bin and the thread that share the most load are
/// matched first, then the next pair of which neither is taken. Greedy: at least half as much load
/// stays as with the best matching.
fn matched(ranked: &Ranked, bins: &[u32], today: &[u32], threads: usize) -> Vec<u32> {
    let mut shared = vec![0.0; threads * threads];
    for ((bin, thread), load) in bins.iter().zip(today).zip(&ranked.load) {
        shared[*bin as usize * threads + *thread as usize] += load;
    }
    let mut pairs: Vec<usize> = (0..shared.len()).filter(|pair| shared[*pair] > 0.0).collect();
    pairs.sort_unstable_by(|a, b| shared[*b].total_cmp(&shared[*a]).then(a.cmp(b)));

    let mut thread_of: Vec<Option<usize>> = vec![None; threads];
    let mut taken = vec![false; threads];
    for pair in pairs {
        let (bin, thread) = (pair / threads, pair % threads);
        if thread_of[bin].is_none() && !taken[thread] {
            thread_of[bin] = Some(thread);
            taken[thread] = true;
        }
    }
    let mut free = (0..threads).filter(|thread| !taken[*thread]);
    let thread_of: Vec<u32> = thread_of
        .into_iter()
        .map(|thread| narrow(thread.or_else(|| free.next()).unwrap_or(0)))
        .collect();
    bins.iter().map(|bin| thread_of[*bin as usize]).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::super::lpt::lpt;
    use super::super::plan::{moves, thread_loads};
    use super::super::workloads::{first_owners, loads, noisy, tiers, uniform, zipf};
    use super::*;

    const ROUNDING: f64 = 1.0 + 1e-9;

    #[test]
    fn every_partition_gets_a_thread_in_edge_cases() {
        assert_eq!(sticky(&[], &[], 4), [0; 0]);
        assert_eq!(sticky(&[1.0, 2.0], &[0, 0], 1), [0, 0]);
        assert_eq!(sticky(&[0.0, 0.0, 0.0], &[2, 2, 0], 3), [2, 2, 0]);
        assert_eq!(
            sticky(&[5.0, 5.0], &[3, 3], 5).iter().filter(|thread| **thread == 3).count(),
            1
        );
        assert_eq!(sticky(&[1.0; 4], &[9, 9, 9], 4), [0, 1, 2, 3]);
        assert_eq!(sticky(&[1e18, 1e-9, 1.0], &[0, 0, 0], 2), [0, 1, 1]);
    }

    #[test]
    fn where_repair_is_stuck_the_partitions_are_reassigned() {
        // No step helps between the most and the least loaded thread, 9 + 9 and 9, but 15 is
        // possible.
        let (load, owner) = ([3.0, 6.0, 9.0, 9.0, 9.0], [1, 1, 1, 2, 2]);
        let ranked = Ranked::new(&load);
        let stuck = Repair::new(&ranked, vec![1, 1, 2, 2, 1], 3).settle();
        let (_, largest) = extremes(stuck.load());
        assert!(
            largest > 15.0 * (1.0 + TOLERANCE),
            "the repair alone reached {largest}: choose another example"
        );
        let (_, largest) = extremes(&thread_loads(&load, &sticky(&load, &owner, 3), 3));
        assert!(largest <= 15.0, "{largest}");
    }

    #[test]
    fn bins_map_to_the_threads_that_held_most_of_their_load() {
        let ranked = Ranked::new(&[1.0, 2.0, 4.0, 8.0]);
        // Bin 0 is thread 2's 8, bin 1 is thread 0's 4 and 2, bin 2 has thread 2's 1 and gets the
        // thread that is left.
        assert_eq!(matched(&ranked, &[2, 1, 1, 0], &[2, 0, 0, 2], 3), [1, 0, 0, 2]);
    }

    #[test]
    fn noise_on_a_settled_plan_moves_at_most_two_percent() {
        for (load, threads) in [
            (tiers(100), 4),
            (tiers(500), 8),
            (zipf(100), 4),
            (zipf(500), 8),
            (uniform(600), 8),
            (tiers(10_000), 64),
            (zipf(10_000), 16),
        ] {
            let mut owner = sticky(&load, &first_owners(load.len(), threads), threads);
            let mut moved = 0;
            for seed in 0..10 {
                let plan = sticky(&noisy(&load, seed), &owner, threads);
                moved += moves(&owner, &plan).len();
                owner = plan;
            }
            assert!(
                moved * 5 <= load.len(),
                "{} partitions: {moved} moves in 10 intervals",
                load.len()
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn plans_are_complete_close_to_lpt_and_stable(
            (load, owner, threads) in (loads(0..120), 1..12_usize).prop_flat_map(|(load, threads)| {
                let owner = prop::collection::vec(0..threads, load.len());
                (Just(load), owner, Just(threads))
            }),
        ) {
            let plan = sticky(&load, &owner, threads);
            prop_assert_eq!(plan.len(), load.len());
            prop_assert!(plan.iter().all(|thread| *thread < threads));

            let idle = || (0..load.len()).filter(|partition| load[*partition] == 0.0);
            prop_assert!(
                idle().all(|partition| plan[partition] == owner[partition]),
                "idle partitions moved"
            );

            let (smallest, largest) = extremes(&thread_loads(&load, &plan, threads));
            let (least, most) = extremes(&thread_loads(&load, &lpt(&load, threads), threads));
            prop_assert!(
                largest <= most * (1.0 + TOLERANCE) * ROUNDING,
                "largest {largest}, LPT's {most}"
            );
            prop_assert!(
                smallest * (1.0 + TOLERANCE) * ROUNDING >= least,
                "smallest {smallest}, LPT's {least}"
            );

            prop_assert_eq!(
                &sticky(&load, &plan, threads),
                &plan,
                "planned again from its own plan"
            );
        }
    }
}
