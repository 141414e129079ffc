//! The strategies: when to plan, and when to leave the partitions where they are.

use std::borrow::Cow;

use crate::balance::plan::{extremes, load_ratio, thread_loads, validate};
use crate::balance::repair::sticky;
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
            // One partition above a thread's share: the ratio stays above 1.15 for ever.
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

        /// What the ratio promises: from `skip_ratio` on, a plan that reaches its cube root is
        /// returned, and every plan that is returned makes a difference.
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
