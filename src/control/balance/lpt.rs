//! Deal anew: longest processing time first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::rank::{Ranked, narrow};

/// The thread of each partition: heaviest first, each to the thread that has least so far; of equals the lower index.
/// A partition without load goes to index mod threads, as a new one does.
///
/// R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17 (1969): the largest thread load is
/// at most 4/3 − 1/(3·threads) of the best possible, and at most the mean plus (1 − 1/threads) · the heaviest partition.
/// Costs a sort and one step down a heap per partition.
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) fn lpt(load: &[f64], threads: usize) -> Vec<usize> {
    let threads = threads.max(1);
    let ranked = Ranked::new(load);
    let mut bins: Vec<usize> = (0..load.len()).map(|partition| partition % threads).collect();
    for (partition, bin) in ranked.partition.iter().zip(deal(&ranked, threads)) {
        bins[*partition as usize] = bin as usize;
    }
    bins
}

/// The same by rank, for partitions with load only.
pub(super) fn deal(ranked: &Ranked, threads: usize) -> Vec<u32> {
    // Loads are not negative, so their bits are in the order of their values; unlike floats, bits have a total order.
    let mut least: BinaryHeap<Reverse<(u64, u32)>> = (0..narrow(threads)).map(|thread| Reverse((0, thread))).collect();
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
