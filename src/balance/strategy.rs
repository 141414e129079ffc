//! The strategies: when to plan, and when to leave the partitions where they are. A plan repairs
//! the current owners where that is good enough.

use std::borrow::Cow;

use crate::balance::plan::{
    Bounds, Ranked, deal, extremes, load_ratio, narrow, thread_loads, validate,
};
use crate::config::DrainBalancer;

/// Loads are capped at this value, so that sums stay finite.
const LARGEST_LOAD: f64 = 1e290;

impl DrainBalancer {
    /// Returns the wanted thread of each partition, or `None` if nothing should move. A load that
    /// is negative or not finite counts as 0.
    ///
    /// The weighted balancers skip if all loads are zero, if the threads' load ratio is below
    /// `skip_ratio`, or if the new plan would not lower the ratio by at least a factor of
    /// `skip_ratio` to the power of 2/3 (for 1.15: by 9 %). The last rule is for loads that cannot
    /// be spread evenly, such as five equal partitions on four threads, or one partition above a
    /// thread's share, where noise alone decides which plan is best. A plan that lowers the ratio
    /// to the cube root of `skip_ratio` (for 1.15: 1.048) always passes.
    ///
    /// # Errors
    /// A custom assignment failed, or the plan that it returned is invalid for these partitions and
    /// threads.
    pub fn plan(
        &self,
        load: &[f64],
        owner: &[usize],
        threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        let load = usable(load);
        match self {
            Self::LoadWeighted { skip_ratio } | Self::ThroughputWeighted { skip_ratio } => {
                Ok(weighted(&load, owner, threads, *skip_ratio))
            }
            Self::Custom(assign) => {
                let plan = assign.assign(&load, owner, threads)?;
                if let Some(plan) = &plan {
                    validate(plan, load.len(), threads)?;
                }
                Ok(plan)
            }
        }
    }
}

fn weighted(load: &[f64], owner: &[usize], threads: usize, skip_ratio: f64) -> Option<Vec<usize>> {
    let today = thread_loads(load, owner, threads);
    let (smallest, largest) = extremes(&today);
    if largest == 0.0 || load_ratio(&today) < skip_ratio {
        return None;
    }
    let plan = sticky(load, owner, threads);
    let worth = skip_ratio.powf(2.0 / 3.0);
    if worth > 1.0 {
        let (raised, lowered) = extremes(&thread_loads(load, &plan, threads));
        let falls = largest / lowered;
        // Both may be 0 if there are fewer loads than threads.
        let rises = if raised > smallest { raised / smallest } else { 1.0 };
        if falls * rises < worth {
            return None;
        }
    }
    Some(plan)
}

fn usable(load: &[f64]) -> Cow<'_, [f64]> {
    if load.iter().all(|load| (0.0..=LARGEST_LOAD).contains(load)) {
        return Cow::Borrowed(load);
    }
    load.iter()
        .map(|load| if load.is_finite() { load.clamp(0.0, LARGEST_LOAD) } else { 0.0 })
        .collect()
}

// Sticky plans: repair the current owners, or reassign from scratch where repair falls short.

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
    if close(&repaired.load, smallest, largest) {
        return repaired.thread;
    }
    let bins = deal(ranked, threads);
    let dealt = Repair::new(ranked, matched(ranked, &bins, today, threads), threads);
    let (smallest, largest) = extremes(&dealt.load);
    if close(&repaired.load, smallest, largest) {
        return repaired.thread;
    }
    dealt.settle().thread
}

fn close(loads: &[f64], smallest: f64, largest: f64) -> bool {
    let (least, most) = extremes(loads);
    most <= largest * (1.0 + TOLERANCE) && least * (1.0 + TOLERANCE) >= smallest
}

/// Maps bins to threads so that load stays: the bin and the thread that share the most load are
/// matched first, then the next pair of which neither is matched. Greedy: at least half as much
/// load stays as with the best matching.
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

// Repair: single moves and swaps from the most to the least loaded thread.

/// A thread whose load is this close to the mean is left alone.
pub(crate) const CLOSE: f64 = 0.02;

/// A step must lower the larger of its two loads by more than this fraction. Anything less is
/// rounding, which could go back and forth forever.
const ROUNDING: f64 = 1e-9;

/// The threads and the partitions they hold. Each step lowers the larger of two loads and keeps the
/// other below the old larger load, so the largest thread load never rises and the smallest never
/// falls.
#[derive(Debug)]
pub(crate) struct Repair<'a> {
    ranked: &'a Ranked,
    /// The ranks of each thread in order, lightest first: the heavy end, where most steps happen,
    /// is cheap to change.
    held: Vec<Vec<u32>>,
    /// Thread by rank.
    thread: Vec<u32>,
    /// Returns the load by thread.
    load: Vec<f64>,
    /// The steps left. Real loads need far fewer; the bound guarantees termination for any load.
    steps: usize,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    /// The rank that moves from the more to the less loaded thread.
    gives: u32,
    /// The rank that moves the other way, in a swap.
    takes: Option<u32>,
    /// By how much the larger of the two loads falls.
    gain: f64,
}

impl<'a> Repair<'a> {
    /// Starts from the thread of each rank, all below `threads`.
    pub(crate) fn new(ranked: &'a Ranked, thread: Vec<u32>, threads: usize) -> Self {
        let mut held: Vec<Vec<u32>> = Vec::with_capacity(threads);
        let share = ranked.len() / threads;
        held.resize_with(threads, || Vec::with_capacity(share + share / 4 + 1));
        for (rank, thread) in (0..).zip(&thread) {
            held[*thread as usize].push(rank);
        }
        let mut repair =
            Self { ranked, held, thread, load: vec![0.0; threads], steps: 4 * ranked.len() + 64 };
        repair.weigh();
        repair
    }

    /// Repairs until no step helps. Repairing the result again changes nothing: the last pass saw
    /// the loads that a new repair would see, and took no step.
    pub(crate) fn settle(mut self) -> Self {
        while self.pass() {
            self.weigh();
        }
        self
    }

    /// Recomputes the loads, always in the same order: sums updated step by step would differ in
    /// their last digits.
    fn weigh(&mut self) {
        self.load.fill(0.0);
        for (thread, load) in self.thread.iter().zip(&self.ranked.load) {
            self.load[*thread as usize] += load;
        }
    }

    /// Takes steps between the most and the least loaded thread until both are close to the mean.
    /// If no step helps the most loaded thread (because it holds one huge partition, for example),
    /// it is set aside and the others continue among themselves. Returns whether a step was taken.
    #[allow(clippy::cast_precision_loss)]
    fn pass(&mut self) -> bool {
        let mut active: Vec<usize> = (0..self.load.len()).collect();
        let mut stepped = false;
        while active.len() > 1 && self.steps > 0 {
            let (mut most, mut least, mut sum) = ((0, f64::NEG_INFINITY), (0, f64::INFINITY), 0.0);
            for (index, thread) in active.iter().enumerate() {
                let load = self.load[*thread];
                sum += load;
                if load > most.1 {
                    most = (index, load);
                }
                if load < least.1 {
                    least = (index, load);
                }
            }
            let mean = sum / active.len() as f64;
            if most.1 <= mean * (1.0 + CLOSE) && least.1 >= mean * (1.0 - CLOSE) {
                break;
            }
            let (giver, taker) = (active[most.0], active[least.0]);
            let step = if self.beside_heaviest(giver) <= mean * CLOSE {
                None
            } else {
                self.best_step(giver, taker)
            };
            match step {
                Some(step) => {
                    self.take(step, giver, taker);
                    stepped = true;
                }
                None => {
                    active.remove(most.0);
                }
            }
        }
        stepped
    }

    /// Returns the load of a thread without its heaviest partition. If that is close to zero, no
    /// step is worth taking: moving the heaviest would only make another thread the most loaded
    /// one.
    fn beside_heaviest(&self, thread: usize) -> f64 {
        self.load[thread]
            - self.held[thread].last().map_or(0.0, |rank| self.ranked.load[*rank as usize])
    }

    /// Returns the step that comes closest to halving the gap. A move at least half as good as the
    /// best conceivable step is preferred to a swap, which takes two handoffs.
    fn best_step(&self, giver: usize, taker: usize) -> Option<Step> {
        let gap = self.load[giver] - self.load[taker];
        let half = gap / 2.0;
        let load = &self.ranked.load;
        let better = |best: Option<Step>, gives: u32, takes: Option<u32>| {
            let shifted = load[gives as usize] - takes.map_or(0.0, |rank| load[rank as usize]);
            let gain = shifted.min(gap - shifted);
            let least = best.map_or(self.load[giver] * ROUNDING, |step| step.gain);
            if gain > least { Some(Step { gives, takes, gain }) } else { best }
        };

        let (from, to) = (&self.held[giver], &self.held[taker]);
        let (light, heavy) = from.split_at(self.lighter(from, half));
        let mut best = None;
        for gives in light.last().into_iter().chain(heavy.first()) {
            best = better(best, *gives, None);
        }
        // Swapping a light partition shifts less than moving the heaviest light one: only heavy
        // partitions can do better. There are at most load / half of them.
        for gives in heavy {
            if best.is_some_and(|step| step.gain >= half / 2.0) {
                break;
            }
            let wanted = load[*gives as usize] - half;
            let index = self.lighter(to, wanted);
            if index == to.len()
                && to
                    .last()
                    .is_none_or(|takes| load[*gives as usize] - load[*takes as usize] >= gap)
            {
                // Too heavy for any swap, as are all after it.
                break;
            }
            for takes in to[..index].last().into_iter().chain(to.get(index)) {
                best = better(best, *gives, Some(*takes));
            }
        }
        best
    }

    /// Returns the number of a thread's partitions that are lighter than `load`.
    fn lighter(&self, held: &[u32], load: f64) -> usize {
        held.partition_point(|rank| self.ranked.load[*rank as usize] < load)
    }

    fn take(&mut self, step: Step, giver: usize, taker: usize) {
        self.steps -= 1;
        self.hand_over(step.gives, giver, taker);
        if let Some(rank) = step.takes {
            self.hand_over(rank, taker, giver);
        }
    }

    fn hand_over(&mut self, rank: u32, from: usize, to: usize) {
        let load = self.ranked.load[rank as usize];
        let index = self.held[from].partition_point(|held| *held < rank);
        self.held[from].remove(index);
        let index = self.held[to].partition_point(|held| *held < rank);
        self.held[to].insert(index, rank);
        self.load[from] -= load;
        self.load[to] += load;
        self.thread[rank as usize] = narrow(to);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::balance::plan::moves;
    use crate::balance::simulation::{first_owners, loads, noisy, tiers, uniform, zipf};
    use crate::config::{Assign, SKIP_RATIO};
    use crate::sync::Arc;

    // Tests of the strategies: when they skip, what they plan, what they reject.

    fn throughput() -> DrainBalancer {
        DrainBalancer::throughput_weighted()
    }

    fn never_skipping() -> DrainBalancer {
        throughput().with_skip_ratio(1.0).unwrap()
    }

    /// Assigns everything to one thread, or fails.
    struct AllTo(Result<usize, String>);

    impl Assign for AllTo {
        fn assign(
            &self,
            load: &[f64],
            _owner: &[usize],
            _threads: usize,
        ) -> Result<Option<Vec<usize>>, String> {
            self.0.clone().map(|thread| Some(vec![thread; load.len()]))
        }
    }

    /// Moves nothing; fails unless the loads are as expected.
    struct Expects(Vec<f64>);

    impl Assign for Expects {
        fn assign(
            &self,
            load: &[f64],
            _owner: &[usize],
            _threads: usize,
        ) -> Result<Option<Vec<usize>>, String> {
            if load == self.0 { Ok(None) } else { Err(format!("{load:?}")) }
        }
    }

    #[test]
    fn skips_below_the_ratio_and_plans_above_it() {
        let load = [100.0, 11.0, 10.0, 93.0, 11.0];
        let ratio_1_17 = [0, 0, 0, 1, 1];
        assert!(throughput().plan(&load, &ratio_1_17, 2).unwrap().is_some());
        assert_eq!(
            throughput().with_skip_ratio(1.2).unwrap().plan(&load, &ratio_1_17, 2),
            Ok(None)
        );
        let ratio_1_13 = [100.0, 11.0, 10.0, 93.0, 14.0];
        assert_eq!(throughput().plan(&ratio_1_13, &ratio_1_17, 2), Ok(None));
    }

    #[test]
    fn without_load_there_is_no_plan() {
        for (load, owner, threads) in
            [(vec![], vec![], 4), (vec![0.0; 3], vec![0, 0, 0], 2), (vec![0.0], vec![0], 1)]
        {
            assert_eq!(never_skipping().plan(&load, &owner, threads), Ok(None));
        }
    }

    #[test]
    fn one_thread_and_idle_threads_are_left_alone() {
        assert_eq!(throughput().plan(&[1.0, 5.0], &[0, 0], 1), Ok(None));
        assert_eq!(throughput().plan(&[1.0, 5.0], &[3, 1], 8), Ok(None));
        assert_eq!(
            moves(&[0, 0], &throughput().plan(&[1.0, 5.0], &[0, 0], 8).unwrap().unwrap()).len(),
            1
        );
    }

    #[test]
    fn invalid_loads_count_as_zero() {
        let given = [f64::NAN, -3.0, f64::INFINITY, f64::NEG_INFINITY, 2.0, f64::MAX];
        let counted = vec![0.0, 0.0, 0.0, 0.0, 2.0, LARGEST_LOAD];
        assert_eq!(
            DrainBalancer::custom(Arc::new(Expects(counted))).plan(&given, &[0; 6], 2),
            Ok(None)
        );
        let plan = never_skipping()
            .plan(&[f64::NAN, 1.0, f64::INFINITY, 1.0, -1.0], &[0; 5], 2)
            .unwrap()
            .unwrap();
        assert_eq!((plan[0], plan[2], plan[4], plan[1] + plan[3]), (0, 0, 0, 1));
        assert!(never_skipping().plan(&[f64::MAX; 8], &[0; 8], 2).unwrap().is_some());
    }

    #[test]
    fn noise_on_a_settled_plan_moves_nothing() {
        for (load, threads) in [
            (tiers(100), 4),
            (tiers(500), 8),
            (uniform(200), 8),
            (zipf(100), 4),
            // One partition above a thread's share: the ratio always stays above 1.15.
            (zipf(500), 8),
            (zipf(1_000), 64),
            // Cannot be spread evenly.
            (uniform(5), 4),
            (uniform(70), 64),
            (uniform(3), 4),
        ] {
            let owner = sticky(&load, &first_owners(load.len(), threads), threads);
            for seed in 0..50 {
                let plan = throughput().plan(&noisy(&load, seed), &owner, threads).unwrap();
                assert_eq!(
                    plan,
                    None,
                    "{} partitions on {threads} threads, seed {seed}",
                    load.len()
                );
            }
        }
    }

    #[test]
    fn a_hot_spot_that_shifts_is_followed_with_few_moves() {
        let (mut load, threads) = (tiers(100), 4);
        let owner = sticky(&load, &first_owners(100, threads), threads);
        load.rotate_left(50);
        let plan =
            throughput().plan(&load, &owner, threads).unwrap().expect("the load has shifted");
        assert!(load_ratio(&thread_loads(&load, &plan, threads)) <= 1.05);
        assert!(moves(&owner, &plan).len() <= 15, "{} moves", moves(&owner, &plan).len());
    }

    #[test]
    fn a_custom_plan_is_validated_and_its_error_passed_on() {
        let plan =
            |thread| DrainBalancer::custom(Arc::new(AllTo(thread))).plan(&[1.0, 1.0], &[0, 1], 4);
        assert_eq!(plan(Ok(3)), Ok(Some(vec![3, 3])));
        let refused = plan(Ok(99)).unwrap_err();
        assert!(
            refused.contains("partition 0 to thread 99") && refused.contains("0 to 3"),
            "{refused}"
        );
        assert_eq!(plan(Err("no answer".into())), Err("no answer".into()));
    }

    #[test]
    fn a_skip_ratio_below_one_or_for_a_custom_balancer_is_rejected_with_a_remedy() {
        for ratio in [0.99, 0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = throughput().with_skip_ratio(ratio).unwrap_err().to_string();
            assert_eq!(
                refused,
                format!(
                    "DrainBalancer: skip_ratio is {ratio}; give a finite number of at least 1, for \
                 instance 1.15"
                )
            );
        }
        let custom = DrainBalancer::custom(Arc::new(AllTo(Ok(0))));
        assert!(
            custom
                .with_skip_ratio(2.0)
                .unwrap_err()
                .to_string()
                .contains("return None from assign")
        );
        let load = DrainBalancer::load_weighted().with_skip_ratio(2.0).unwrap();
        assert_eq!(load, DrainBalancer::LoadWeighted { skip_ratio: 2.0 });
    }

    #[test]
    fn balancers_compare_and_print_what_they_are() {
        let custom: Arc<dyn Assign> = Arc::new(AllTo(Ok(0)));
        let other: Arc<dyn Assign> = Arc::new(AllTo(Ok(0)));
        assert_eq!(
            DrainBalancer::custom(custom.clone()),
            DrainBalancer::custom(custom.clone()).clone()
        );
        assert_ne!(DrainBalancer::custom(custom.clone()), DrainBalancer::custom(other));
        assert_ne!(throughput(), DrainBalancer::load_weighted());
        assert_ne!(throughput(), never_skipping());
        assert!(
            DrainBalancer::load_weighted().is_load_weighted() && !throughput().is_load_weighted()
        );
        assert_eq!(format!("{:?}", throughput()), "ThroughputWeighted { skip_ratio: 1.15 }");
        assert_eq!(format!("{:?}", DrainBalancer::custom(custom)), "Custom(..)");
    }

    fn any_queue() -> impl Strategy<Value = (Vec<f64>, Vec<usize>, usize)> {
        (loads(0..120), 1..12_usize).prop_flat_map(|(load, threads)| {
            let owner = prop::collection::vec(0..threads, load.len());
            (Just(load), owner, Just(threads))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::default()
        })]

        /// The promise of the ratio: from `skip_ratio` on, a plan that reaches its cube root is
        /// returned, and every returned plan makes a difference.
        #[test]
        fn a_good_plan_is_returned_and_a_pointless_one_is_not(
            (load, owner, threads) in any_queue()
        ) {
            let today = thread_loads(&load, &owner, threads);
            let (smallest, largest) = extremes(&today);
            let plan = throughput().plan(&load, &owner, threads).unwrap();
            let best = load_ratio(&thread_loads(&load, &sticky(&load, &owner, threads), threads));
            match plan {
                None => prop_assert!(
                    load_ratio(&today) < SKIP_RATIO || best > SKIP_RATIO.cbrt() || largest == 0.0
                ),
                Some(plan) => {
                    let (raised, lowered) = extremes(&thread_loads(&load, &plan, threads));
                    prop_assert!(load_ratio(&today) >= SKIP_RATIO);
                    prop_assert!(
                        largest / lowered * (raised / smallest).max(1.0) >= 1.09 || smallest == 0.0
                    );
                    prop_assert_eq!(
                        throughput().plan(&load, &plan, threads),
                        Ok(None),
                        "planned again from its own plan"
                    );
                }
            }
        }

        /// Noise of 3 % changes the ratio by at most a factor of 1.03 / 0.97: plans with a ratio of
        /// up to 1.15 · 0.97 / 1.03 = 1.083 stay.
        #[test]
        fn noise_moves_nothing_once_the_ratio_is_down(
            (load, owner, threads) in any_queue(),
            seed: u64,
        ) {
            let settled = sticky(&load, &owner, threads);
            if load_ratio(&thread_loads(&load, &settled, threads)) <= SKIP_RATIO * 0.97 / 1.03 {
                let plan = throughput().plan(&noisy(&load, seed), &settled, threads);
                prop_assert_eq!(plan, Ok(None));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod repair_tests {
    use proptest::prelude::*;

    use super::*;
    use crate::balance::plan::extremes;
    use crate::balance::simulation::{loads, tiers};

    /// Repairs owners given by rank, lightest first.
    fn repaired(load: &[f64], owner: &[u32], threads: usize) -> Vec<u32> {
        Repair::new(&Ranked::new(load), owner.to_vec(), threads).settle().thread
    }

    #[test]
    fn a_single_move_that_halves_the_gap_suffices() {
        assert_eq!(repaired(&[1.0, 2.0, 3.0, 4.0], &[0, 0, 0, 1], 2), [1, 0, 0, 1]);
    }

    #[test]
    fn a_swap_helps_where_no_move_does() {
        // 3 + 3 against 2 + 2: any move merely reverses the gap; swapping 3 for 2 closes it.
        let threads = repaired(&[2.0, 2.0, 3.0, 3.0], &[1, 1, 0, 0], 2);
        assert_eq!(threads.iter().filter(|thread| **thread == 0).count(), 2);
        assert_ne!(threads[0], threads[1]);
    }

    #[test]
    fn a_swap_is_preferred_to_a_move_that_helps_little() {
        // Swapping 5 for 4 leaves 9.2 and 9; the 0.2 need not move.
        assert_eq!(repaired(&[0.2, 4.0, 4.0, 5.0, 5.0], &[0, 1, 1, 0, 0], 2)[0], 0);
    }

    #[test]
    fn a_thread_with_one_huge_partition_is_set_aside_and_the_others_continue() {
        // Thread 0 has only the huge partition, thread 1 all the others, thread 2 none.
        assert_eq!(
            repaired(&[1.0, 1.0, 1.0, 1.0, 90.0], &[1, 1, 1, 1, 0], 3)
                .iter()
                .filter(|t| **t == 2)
                .count(),
            2
        );
    }

    #[test]
    fn a_tiny_partition_beside_a_huge_one_stays() {
        let load = [0.01, 10.0, 10.0, 90.0];
        assert_eq!(repaired(&load, &[0, 1, 2, 0], 3), [0, 1, 2, 0]);
    }

    #[test]
    fn nothing_moves_within_two_percent_of_the_mean() {
        let load = [0.9, 1.0, 49.1, 51.0];
        assert_eq!(repaired(&load, &[0, 1, 1, 0], 2), [0, 1, 1, 0]);
    }

    #[test]
    fn tiers_settle_with_few_steps() {
        let ranked = Ranked::new(&tiers(100));
        let owner: Vec<u32> = ranked.partition.iter().map(|partition| partition % 4).collect();
        let settled = Repair::new(&ranked, owner.clone(), 4).settle();
        let (smallest, largest) = extremes(&settled.load);
        assert!(largest / smallest <= (1.0 + CLOSE) / (1.0 - CLOSE), "{:?}", settled.load);
        let moved = settled.thread.iter().zip(&owner).filter(|(now, then)| now != then).count();
        assert!(moved <= 8, "{moved} moves");
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// From owners as bad as one thread for all: repair terminates well within its bound, the
        /// lists agree with the owners, the largest load does not rise and the smallest does not
        /// fall.
        #[test]
        fn terminates_with_lists_that_agree_with_the_owners(
            load in loads(0..150),
            threads in 1..12_usize,
            spread in 1..12_u32,
        ) {
            let ranked = Ranked::new(&load);
            let spread = spread.min(narrow(threads));
            let owner: Vec<u32> =
                ranked.partition.iter().map(|partition| partition % spread).collect();
            let begin = Repair::new(&ranked, owner, threads);
            let (smallest, largest) = extremes(&begin.load);
            let end = begin.settle();
            prop_assert!(
                end.steps > 2 * ranked.len(),
                "{} steps left of {}",
                end.steps,
                4 * ranked.len() + 64
            );
            let (raised, lowered) = extremes(&end.load);
            prop_assert!(lowered <= largest * (1.0 + 1e-9) && raised >= smallest * (1.0 - 1e-9));
            let afresh = Repair::new(&ranked, end.thread.clone(), threads);
            prop_assert_eq!(&end.held, &afresh.held);
            prop_assert_eq!(&end.load, &afresh.load);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod sticky_tests {
    use proptest::prelude::*;

    use super::*;
    use crate::balance::plan::{moves, thread_loads};
    use crate::balance::simulation::{first_owners, loads, lpt, noisy, tiers, uniform, zipf};

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
        let (_, largest) = extremes(&stuck.load);
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
