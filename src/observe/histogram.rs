//! A log-linear histogram of values.
//!
//! Each power of two is divided into [`PARTS`] buckets of equal width, so a value is known to
//! within an eighth, and the limits of the buckets include all powers of two. Only the buckets
//! between the smallest and the largest value are kept. The calls of a handler have similar sizes,
//! so a histogram usually takes a few hundred bytes, and never more than four kilobytes.

/// The number of buckets per power of two.
const PARTS: u64 = 8;

/// The binary logarithm of [`PARTS`].
const PART_BITS: u32 = PARTS.ilog2();

/// A histogram of values, with a resolution of an eighth of each value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    count: u64,
    sum: u64,
    max: u64,
    /// The bucket of the first entry of `counts`.
    first: usize,
    counts: Vec<u64>,
}

impl Histogram {
    /// Adds a value.
    #[inline]
    pub(crate) fn record(&mut self, value: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
        let bucket = bucket_of(value);
        // Below the first bucket this wraps, to far beyond the last.
        match self.counts.get_mut(bucket.wrapping_sub(self.first)) {
            Some(count) => *count += 1,
            None => self.record_outside(bucket),
        }
    }

    #[cold]
    fn record_outside(&mut self, bucket: usize) {
        self.reach(bucket);
        self.counts[bucket - self.first] += 1;
    }

    /// Extends the kept buckets to include this one.
    fn reach(&mut self, bucket: usize) {
        if self.counts.is_empty() {
            self.first = bucket;
        }
        if bucket < self.first {
            self.counts.splice(..0, std::iter::repeat_n(0, self.first - bucket));
            self.first = bucket;
        }
        let length = self.counts.len().max(bucket - self.first + 1);
        self.counts.resize(length, 0);
    }

    /// Adds all values of another histogram.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
        let Some(last) = other.counts.len().checked_sub(1) else { return };
        self.reach(other.first);
        self.reach(other.first + last);
        let start = other.first - self.first;
        for (count, more) in self.counts[start..].iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the largest value, exactly; 0 if there is none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the mean of the values, exactly; 0 if there is none.
    #[allow(clippy::cast_precision_loss)]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// Returns the smallest value that a share `q` of the values, from 0 to 1, does not exceed. The
    /// result is at most an eighth too large, and never above [`max`](Self::max); 0 if there are no
    /// values.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = ((q * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut before = 0;
        for (bucket, count) in (self.first..).zip(&self.counts) {
            before += count;
            if before >= rank {
                return limit_of(bucket).min(self.max);
            }
        }
        self.max
    }

    /// Returns how many values are at most `limit`: exactly if `limit` is a power of two, otherwise
    /// without the values of its bucket.
    pub fn at_most(&self, limit: u64) -> u64 {
        let whole = (self.first..).zip(&self.counts);
        whole.take_while(|&(bucket, _)| limit_of(bucket) <= limit).map(|(_, count)| count).sum()
    }
}

/// Returns the bucket of a value. Each bucket includes its own limit, but not that of the previous
/// one.
#[inline]
fn bucket_of(value: u64) -> usize {
    let value = value.saturating_sub(1);
    if value < PARTS {
        return usize::try_from(value).unwrap_or(0);
    }
    let power = value.ilog2();
    let part = (value >> (power - PART_BITS)) % PARTS;
    usize::try_from(u64::from(power - PART_BITS + 1) * PARTS + part).unwrap_or(usize::MAX)
}

/// Returns the largest value of a bucket.
fn limit_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket + 1;
    }
    let (power, part) = (bucket / PARTS - 1, bucket % PARTS);
    u64::try_from(u128::from(PARTS + part + 1) << power).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates values of all sizes.
    fn values() -> impl Strategy<Value = Vec<u64>> {
        let value = (0..64_u32, any::<u64>()).prop_map(|(shift, value)| value >> shift);
        prop::collection::vec(value, 0..200)
    }

    fn histogram(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for &value in values {
            histogram.record(value);
        }
        histogram
    }

    fn at_most(values: &[u64], limit: u64) -> u64 {
        values.iter().filter(|&&value| value <= limit).count() as u64
    }

    proptest! {
        #[test]
        fn a_quantile_is_at_most_an_eighth_above_that_of_a_sorted_list(
            mut values in values(), q in 0.0..=1.0_f64,
        ) {
            let histogram = histogram(&values);
            values.sort_unstable();
            #[allow(clippy::cast_precision_loss)]
            let rank = (1..=values.len()).find(|&rank| rank as f64 >= q * values.len() as f64);
            let exact = rank.map_or(0, |rank| values[rank - 1]);
            let found = histogram.quantile(q);
            // 0 and 1 share a bucket.
            let most = exact.saturating_add(exact / 8).max(1);
            prop_assert!((exact..=most).contains(&found), "{found} for {exact}");
        }

        #[test]
        fn count_sum_and_max_are_exact(values in values()) {
            let histogram = histogram(&values);
            prop_assert_eq!(histogram.count(), values.len() as u64);
            let sum = values.iter().fold(0_u64, |sum, value| sum.saturating_add(*value));
            prop_assert_eq!(histogram.sum(), sum);
            prop_assert_eq!(histogram.max(), values.iter().copied().max().unwrap_or(0));
        }

        #[test]
        fn what_is_at_most_a_power_of_two_is_exact(values in values(), power in 0..64_u32) {
            let limit = 1 << power;
            prop_assert_eq!(histogram(&values).at_most(limit), at_most(&values, limit));
        }

        #[test]
        fn two_that_are_merged_are_that_of_all_values(first in values(), second in values()) {
            let mut merged = histogram(&first);
            merged.merge(&histogram(&second));
            prop_assert_eq!(merged, histogram(&[first, second].concat()));
        }

        #[test]
        fn it_never_takes_more_than_four_kilobytes(values in values()) {
            let mut histogram = histogram(&values);
            histogram.record(0);
            histogram.record(u64::MAX);
            prop_assert!(histogram.counts.len() * size_of::<u64>() <= 4_096);
        }
    }

    #[test]
    fn each_bucket_includes_its_limit_and_the_next_value_is_in_the_next() {
        for bucket in 0..bucket_of(u64::MAX) {
            let limit = limit_of(bucket);
            assert_eq!((bucket_of(limit), bucket_of(limit + 1)), (bucket, bucket + 1));
        }
        assert_eq!(limit_of(bucket_of(u64::MAX)), u64::MAX);
    }

    #[test]
    fn an_empty_one_has_zeros() {
        let none = Histogram::default();
        assert_eq!((none.quantile(0.5), none.max(), none.at_most(u64::MAX)), (0, 0, 0));
        assert!(none.mean().abs() < f64::EPSILON);
    }
}
