//! Loads for the tests of this module.

use proptest::collection::{SizeRange, vec};
use proptest::prelude::*;

/// The loads of the headline bench: 20 % of weight 24, 30 % of 8, 20 % of 4, 30 % of 1.
pub(super) fn tiers(partitions: usize) -> Vec<f64> {
    let tiers = [(20, 24.0), (30, 8.0), (20, 4.0), (30, 1.0)];
    let tiers = tiers
        .iter()
        .flat_map(|(percent, weight)| std::iter::repeat_n(*weight, partitions * percent / 100));
    Lcg(42).shuffled(tiers.collect())
}

/// Loads of 1/k.
pub(super) fn zipf(partitions: u32) -> Vec<f64> {
    Lcg(42).shuffled((1..=partitions).map(|k| 1.0 / f64::from(k)).collect())
}

/// Equal loads.
pub(super) fn uniform(partitions: usize) -> Vec<f64> {
    vec![10.0; partitions]
}

/// The initial owners in a queue: index mod threads.
pub(super) fn first_owners(partitions: usize, threads: usize) -> Vec<usize> {
    (0..partitions).map(|partition| partition % threads).collect()
}

/// Each load times a factor from 0.97 to 1.03.
pub(super) fn noisy(load: &[f64], seed: u64) -> Vec<f64> {
    let mut lcg = Lcg(seed);
    load.iter().map(|load| load * (0.97 + 0.06 * f64::from(lcg.below(1_000_001)) / 1e6)).collect()
}

pub(super) fn sum(load: &[f64]) -> f64 {
    load.iter().sum()
}

/// Loads of one kind per case: small counts with zeros and many ties, arbitrary values, or values
/// across 21 decades.
pub(super) fn loads(partitions: impl Into<SizeRange>) -> impl Strategy<Value = Vec<f64>> {
    let partitions = partitions.into();
    prop_oneof![
        vec((0..12_u32).prop_map(f64::from), partitions.clone()),
        vec(0.0..100.0_f64, partitions.clone()),
        vec((-3.0..18.0_f64).prop_map(|decade| 10_f64.powf(decade)), partitions),
    ]
}

/// A linear congruential generator (Knuth, MMIX).
pub(super) struct Lcg(u64);

impl Lcg {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A count with this mean (Knuth's product of uniform numbers; for means of a few units).
    pub(super) fn poisson(&mut self, mean: f64) -> u64 {
        let (least, mut product, mut count) = ((-mean).exp(), 1.0, 0);
        loop {
            product *= f64::from(self.below(1_000_001)) / 1e6;
            if product <= least {
                return count;
            }
            count += 1;
        }
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(limit)).expect("below a u32")
    }

    fn shuffled(&mut self, mut loads: Vec<f64>) -> Vec<f64> {
        for last in (1..loads.len()).rev() {
            let other = self.below(u32::try_from(last + 1).expect("a few loads")) as usize;
            loads.swap(last, other);
        }
        loads
    }
}
