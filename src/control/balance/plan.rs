//! Compares, validates and weighs plans. A plan is the wanted thread of each partition.

/// A thread that spends this share of its time in calls has none left for further partitions, if
/// another spends less than [`IDLE`]. What it was asked for may look little: others may have taken
/// its partitions over.
const SATURATED: f64 = 0.95;

const IDLE: f64 = 0.8;

/// The move of one partition to another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) partition: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// The moves from the current owners to the plan, ordered by partition.
pub(crate) fn moves(owner: &[usize], plan: &[usize]) -> Vec<Move> {
    let pairs = owner.iter().zip(plan).enumerate();
    pairs
        .filter(|(_, (from, to))| from != to)
        .map(|(partition, (&from, &to))| Move { partition, from, to })
        .collect()
}

/// Validates a custom plan: one thread per partition, and each thread exists. A partition assigned
/// to a missing thread would never be drained again.
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

/// The load of each thread under the given owners. A partition whose owner does not exist is
/// ignored.
pub(crate) fn thread_loads(load: &[f64], owner: &[usize], threads: usize) -> Vec<f64> {
    let mut loads = vec![0.0; threads];
    for (load, owner) in load.iter().zip(owner) {
        if let Some(thread) = loads.get_mut(*owner) {
            *thread += load;
        }
    }
    loads
}

/// The largest thread load over the smallest: 1 when all are zero, infinite when only the smallest
/// is.
pub(crate) fn load_ratio(thread_loads: &[f64]) -> f64 {
    let (smallest, largest) = extremes(thread_loads);
    if largest == 0.0 { 1.0 } else { largest / smallest }
}

/// The spread of the threads' loads: (largest − smallest) / largest; 0 when all are zero.
pub(crate) fn spread(thread_loads: &[f64]) -> f64 {
    let (smallest, largest) = extremes(thread_loads);
    if largest == 0.0 { 0.0 } else { (largest - smallest) / largest }
}

/// The heaviest partition, if it alone exceeds a thread's fair share. No plan can even out the
/// threads then; only more partitions for its type can. Among ties, the lowest index.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn oversized(load: &[f64], threads: usize) -> Option<usize> {
    // A quarter of a sum may differ from a partition of that size by a rounding error.
    const ROUNDING: f64 = 1.0 + 1e-9;
    let sum: f64 = load.iter().sum();
    let (partition, heaviest) =
        load.iter().enumerate().rev().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (*heaviest > sum / threads.max(1) as f64 * ROUNDING).then_some(partition)
}

/// The smallest and the largest thread load; zeros without threads.
pub(super) fn extremes(thread_loads: &[f64]) -> (f64, f64) {
    let ordered =
        |(smallest, largest): (f64, f64), load: &f64| (smallest.min(*load), largest.max(*load));
    let first = thread_loads.first().copied().unwrap_or(0.0);
    thread_loads.iter().fold((first, first), ordered)
}

/// Plans for the available threads only. The partitions of the others stay.
pub(super) fn plan_around(
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

/// Leaves a partition where it is that would go to a thread which is away, or has no time left.
/// `busy`: the share of the time that each thread spends in calls.
pub(super) fn hold_back(plan: &mut [usize], owner: &[usize], away: &[bool], busy: &[f64]) {
    let has_idle = busy.iter().any(|share| *share < IDLE);
    let is_full = |thread: usize| has_idle && busy[thread] >= SATURATED;
    for (thread, owner) in plan.iter_mut().zip(owner) {
        if away[*thread] || is_full(*thread) {
            *thread = *owner;
        }
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

    /// In the original, partition 2 would never be drained again.
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
