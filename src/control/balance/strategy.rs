//! The strategies: when to plan, and when to leave the partitions where they are.

use std::borrow::Cow;

use super::plan::{extremes, load_ratio, thread_loads, validate};
use super::sticky::sticky;
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
#[path = "strategy_tests.rs"]
mod tests;
