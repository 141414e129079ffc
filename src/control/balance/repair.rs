//! Repair: single moves and swaps from the most to the least loaded thread.

use super::rank::{Ranked, narrow};

/// A thread whose load is so close to the mean is left alone.
pub(super) const CLOSE: f64 = 0.02;

/// A step must lower the larger of its two threads by more than this part of it; less is rounding,
/// and rounding could go back and forth for ever.
const ROUNDING: f64 = 1e-9;

/// Threads with what they hold. Each step lowers the larger of two threads and leaves the other one
/// below what that was, so the largest thread load never rises and the smallest never falls.
#[derive(Debug)]
pub(super) struct Repair<'a> {
    ranked: &'a Ranked,
    /// Ranks by thread, in order, so lightest first. The heavy end, where most steps are, is cheap
    /// to change.
    held: Vec<Vec<u32>>,
    /// Thread by rank.
    thread: Vec<u32>,
    /// Load by thread.
    load: Vec<f64>,
    /// Steps that are left. They always sufficed with room to spare; the bound is for loads nobody
    /// thought of.
    steps: usize,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    /// Rank that goes from the more to the less loaded thread.
    gives: u32,
    /// Rank that comes back.
    takes: Option<u32>,
    /// By how much the larger of the two loads falls.
    gain: f64,
}

impl<'a> Repair<'a> {
    /// Starts from the thread of each rank, all below `threads`.
    pub(super) fn new(ranked: &'a Ranked, thread: Vec<u32>, threads: usize) -> Self {
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

    /// Repairs until nothing helps. Asked again about its own result it does nothing: the last pass
    /// saw the loads as a new repair would and made no step.
    pub(super) fn settle(mut self) -> Self {
        while self.pass() {
            self.weigh();
        }
        self
    }

    /// Load by thread.
    pub(super) fn load(&self) -> &[f64] {
        &self.load
    }

    pub(super) fn into_threads(self) -> Vec<u32> {
        self.thread
    }

    /// Adds up afresh, always in the same order: sums kept up to date by steps would differ in
    /// their last digits.
    fn weigh(&mut self) {
        self.load.fill(0.0);
        for (thread, load) in self.thread.iter().zip(&self.ranked.load) {
            self.load[*thread as usize] += load;
        }
    }

    /// Takes steps between the most and the least loaded thread until both are close to the mean. A
    /// most loaded thread that no step helps (it holds one huge partition, say) is set aside and
    /// the others go on among themselves. True if a step was taken.
    #[allow(clippy::cast_precision_loss)]
    fn pass(&mut self) -> bool {
        let mut at_it: Vec<usize> = (0..self.load.len()).collect();
        let mut stepped = false;
        while at_it.len() > 1 && self.steps > 0 {
            let (mut most, mut least, mut sum) = ((0, f64::NEG_INFINITY), (0, f64::INFINITY), 0.0);
            for (place, thread) in at_it.iter().enumerate() {
                let load = self.load[*thread];
                sum += load;
                if load > most.1 {
                    most = (place, load);
                }
                if load < least.1 {
                    least = (place, load);
                }
            }
            let mean = sum / at_it.len() as f64;
            if most.1 <= mean * (1.0 + CLOSE) && least.1 >= mean * (1.0 - CLOSE) {
                break;
            }
            let (giver, taker) = (at_it[most.0], at_it[least.0]);
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
                    at_it.remove(most.0);
                }
            }
        }
        stepped
    }

    /// What a thread holds beside its heaviest partition. If that is next to nothing no step is
    /// worth it: the heaviest would only make another thread the most loaded one.
    fn beside_heaviest(&self, thread: usize) -> f64 {
        self.load[thread]
            - self.held[thread].last().map_or(0.0, |rank| self.ranked.load[*rank as usize])
    }

    /// The step that comes nearest to halving the gap; a move rather than a swap when it is at
    /// least half as good as the best thinkable, because a swap is two handoffs.
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
        // A light partition in a swap shifts less than the heaviest light one moved alone: only
        // heavy ones can do better. There are at most load / half of them.
        for gives in heavy {
            if best.is_some_and(|step| step.gain >= half / 2.0) {
                break;
            }
            let wanted = load[*gives as usize] - half;
            let place = self.lighter(to, wanted);
            if place == to.len()
                && to
                    .last()
                    .is_none_or(|takes| load[*gives as usize] - load[*takes as usize] >= gap)
            {
                // Too heavy for any swap, and so are all after it.
                break;
            }
            for takes in to[..place].last().into_iter().chain(to.get(place)) {
                best = better(best, *gives, Some(*takes));
            }
        }
        best
    }

    /// How many of a thread's partitions are lighter than `load`.
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
        let place = self.held[from].partition_point(|held| *held < rank);
        self.held[from].remove(place);
        let place = self.held[to].partition_point(|held| *held < rank);
        self.held[to].insert(place, rank);
        self.load[from] -= load;
        self.load[to] += load;
        self.thread[rank as usize] = narrow(to);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::super::plan::extremes;
    use super::super::workloads::{loads, tiers};
    use super::*;

    /// Repairs owners given by rank, lightest first.
    fn repaired(load: &[f64], owner: &[u32], threads: usize) -> Vec<u32> {
        Repair::new(&Ranked::new(load), owner.to_vec(), threads).settle().into_threads()
    }

    #[test]
    fn one_move_that_halves_the_gap_is_all_that_is_done() {
        assert_eq!(repaired(&[1.0, 2.0, 3.0, 4.0], &[0, 0, 0, 1], 2), [1, 0, 0, 1]);
    }

    #[test]
    fn a_swap_helps_where_no_move_does() {
        // 3 + 3 against 2 + 2: each move only turns the gap round, 3 for 2 closes it.
        let threads = repaired(&[2.0, 2.0, 3.0, 3.0], &[1, 1, 0, 0], 2);
        assert_eq!(threads.iter().filter(|thread| **thread == 0).count(), 2);
        assert_ne!(threads[0], threads[1]);
    }

    #[test]
    fn a_swap_goes_before_a_move_that_helps_little() {
        // 5 for 4 leaves 9.2 and 9; the 0.2 need not move.
        assert_eq!(repaired(&[0.2, 4.0, 4.0, 5.0, 5.0], &[0, 1, 1, 0, 0], 2)[0], 0);
    }

    #[test]
    fn a_thread_with_one_huge_partition_is_set_aside_and_the_others_go_on() {
        // Thread 0 has the huge one alone, thread 1 has all the rest, thread 2 nothing.
        assert_eq!(
            repaired(&[1.0, 1.0, 1.0, 1.0, 90.0], &[1, 1, 1, 1, 0], 3)
                .iter()
                .filter(|t| **t == 2)
                .count(),
            2
        );
    }

    #[test]
    fn a_trifle_beside_a_huge_partition_stays() {
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
        let (smallest, largest) = extremes(settled.load());
        assert!(largest / smallest <= (1.0 + CLOSE) / (1.0 - CLOSE), "{:?}", settled.load());
        let moved =
            settled.into_threads().iter().zip(&owner).filter(|(now, then)| now != then).count();
        assert!(moved <= 8, "{moved} moves");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// From the worst owners, one thread for all: it ends by itself, the lists agree with the
        /// owners, the largest load does not rise and the smallest does not fall.
        #[test]
        fn ends_by_itself_with_lists_that_agree(load in loads(0..150), threads in 1..12_usize, spread in 1..12_u32) {
            let ranked = Ranked::new(&load);
            let spread = spread.min(narrow(threads));
            let owner: Vec<u32> = ranked.partition.iter().map(|partition| partition % spread).collect();
            let begin = Repair::new(&ranked, owner, threads);
            let (smallest, largest) = extremes(begin.load());
            let end = begin.settle();
            prop_assert!(end.steps > 2 * ranked.len(), "{} steps left of {}", end.steps, 4 * ranked.len() + 64);
            let (raised, lowered) = extremes(end.load());
            prop_assert!(lowered <= largest * (1.0 + 1e-9) && raised >= smallest * (1.0 - 1e-9));
            let afresh = Repair::new(&ranked, end.thread.clone(), threads);
            prop_assert_eq!(&end.held, &afresh.held);
            prop_assert_eq!(&end.load, &afresh.load);
        }
    }
}
