//! Sticky plans: repair today's owners, or deal anew where repair does not reach.

use super::lpt::deal;
use super::plan::extremes;
use super::rank::{Bounds, Ranked, narrow};
use super::repair::Repair;

/// A repair is taken when its largest thread load is at most so much above LPT's, and its smallest not further below.
const TOLERANCE: f64 = 0.03;

/// A thread for each partition, so that the threads' loads are even and few partitions move.
///
/// * The largest thread load is at most 3 % above LPT's, and LPT's smallest at most 3 % above the smallest.
/// * Partitions without load stay where they are.
/// * Nothing moves while every thread is within 2 % of the mean, and nothing moves when the plan is applied and the
///   same loads come again.
/// * An owner that is no thread counts as index mod threads, where a new partition begins.
///
/// First today's owners are repaired (`repair`). If that does not come close to LPT, the partitions are dealt anew, the
/// new bins are matched to the old threads so that much load stays, and the result is repaired too.
pub(crate) fn sticky(load: &[f64], owner: &[usize], threads: usize) -> Vec<usize> {
    let threads = threads.max(1);
    let home = |partition: usize| match owner.get(partition) {
        Some(thread) if *thread < threads => *thread,
        _ => partition % threads,
    };
    let mut plan: Vec<usize> = (0..load.len()).map(home).collect();
    let ranked = Ranked::new(load);
    let today: Vec<u32> = ranked.partition.iter().map(|partition| narrow(plan[*partition as usize])).collect();
    for (partition, thread) in ranked.partition.iter().zip(repair_or_deal(&ranked, &today, threads)) {
        plan[*partition as usize] = thread as usize;
    }
    plan
}

/// The same by rank.
fn repair_or_deal(ranked: &Ranked, today: &[u32], threads: usize) -> Vec<u32> {
    let repaired = Repair::new(ranked, today.to_vec(), threads).settle();
    // What no plan can beat, LPT cannot either: mostly the repair is good enough without asking LPT.
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

/// Renames bins to threads so that load stays: the bin and the thread that share most load are matched first, then the
/// next pair of which neither is taken. Greedy: at least half as much load stays as with the best matching.
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
    let thread_of: Vec<u32> =
        thread_of.into_iter().map(|thread| narrow(thread.or_else(|| free.next()).unwrap_or(0))).collect();
    bins.iter().map(|bin| thread_of[*bin as usize]).collect()
}
