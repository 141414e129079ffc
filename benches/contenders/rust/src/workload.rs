//! The workloads: the numbers of producers and types, the order of items, and the configuration of
//! every contender.

/// Pairs of `(types, weight)`: a type of weight 24 has 24 slots.
type Tiers = &'static [(usize, usize)];

pub struct Workload {
    pub name: &'static str,
    pub drain_threads: usize,
    pub producers: usize,
    pub buffer_size: usize,
    /// The items of a round: enough that the start, when the drain threads sleep, does not matter.
    pub items: usize,
    tiers: Tiers,
}

const ALL: [Workload; 3] = [
    Workload {
        name: "headline",
        drain_threads: 4,
        producers: 16,
        buffer_size: 2_000,
        items: 16_000_000,
        tiers: &[(20, 24), (30, 8), (20, 4), (30, 1)],
    },
    Workload {
        name: "wide",
        drain_threads: 8,
        producers: 32,
        buffer_size: 50_000,
        items: 32_000_000,
        tiers: &[(1_000, 1)],
    },
    Workload {
        name: "wide-10k",
        drain_threads: 8,
        producers: 32,
        buffer_size: 50_000,
        items: 32_000_000,
        tiers: &[(10_000, 1)],
    },
];

impl Workload {
    pub fn named(name: &str) -> Result<Self, String> {
        ALL.into_iter()
            .find(|workload| workload.name == name)
            .ok_or(format!("unknown workload {name}"))
    }

    pub fn types(&self) -> usize {
        self.tiers.iter().map(|tier| tier.0).sum()
    }

    /// The adaptive number of partitions: one per type up to 25 per drain thread, then one for
    /// every two more types.
    pub fn partitions(&self) -> usize {
        let threshold = self.drain_threads * 25;
        let types = self.types();
        if types <= threshold { types } else { threshold + (types - threshold) / 2 }
    }

    /// The types in the order of production: one slot per unit of weight, shuffled by a fixed
    /// linear congruential generator. Producer `p` starts at slot `p · slots / producers`.
    pub fn slots(&self) -> Vec<usize> {
        let weights =
            self.tiers.iter().flat_map(|&(types, weight)| std::iter::repeat_n(weight, types));
        let mut slots: Vec<usize> = weights
            .enumerate()
            .flat_map(|(kind, weight)| std::iter::repeat_n(kind, weight))
            .collect();
        let mut state: u64 = 42;
        for last in (1..slots.len()).rev() {
            // Knuth, MMIX.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            slots.swap(last, usize::try_from(state >> 33).unwrap_or(0) % (last + 1));
        }
        slots
    }

    /// The number of items of each type among `items` items.
    pub fn expected(&self, slots: &[usize], items: usize) -> Vec<u64> {
        let mut expected = vec![0; self.types()];
        let each = items / self.producers;
        for producer in 0..self.producers {
            let start = producer * slots.len() / self.producers;
            for step in 0..slots.len() {
                let times = each / slots.len() + usize::from(step < each % slots.len());
                expected[slots[(start + step) % slots.len()]] += times as u64;
            }
        }
        expected
    }
}
