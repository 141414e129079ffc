//! What threads do with their time: a total, and the share of the last seconds.
//!
//! Times are seconds of a clock that never decreases.

use std::collections::VecDeque;

const BLOCK_S: f64 = 0.25;
const BLOCKS: usize = 12;

/// Sums up the time that one or more threads spend in something.
///
/// A span that has not ended counts as well, so that a call that hangs is seen.
#[derive(Debug)]
pub(crate) struct TimeMeter {
    threads: f64,
    total: f64,
    open: u32,
    at: f64,
    /// Times, and the total until then.
    marks: VecDeque<(f64, f64)>,
}

impl TimeMeter {
    pub(crate) fn new(threads: u32, now: f64) -> Self {
        let marks = VecDeque::from([(now, 0.0)]);
        Self { threads: f64::from(threads), total: 0.0, open: 0, at: now, marks }
    }

    pub(crate) fn enter(&mut self, now: f64) {
        self.advance(now);
        self.open += 1;
    }

    pub(crate) fn leave(&mut self, now: f64) {
        self.advance(now);
        self.open = self.open.saturating_sub(1);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open > 0
    }

    pub(crate) fn seconds(&mut self, now: f64) -> f64 {
        self.advance(now);
        self.total
    }

    /// The share of about the last three seconds, 0 to 1; of all the time before that.
    pub(crate) fn share(&mut self, now: f64) -> f64 {
        self.advance(now);
        let (then, before) = self.marks.front().copied().unwrap_or((now, self.total));
        let passed = (now - then) * self.threads;
        if passed > 0.0 { ((self.total - before) / passed).min(1.0) } else { 0.0 }
    }

    fn advance(&mut self, now: f64) {
        if self.open > 0 {
            self.total += f64::from(self.open) * (now - self.at);
        }
        self.at = now;
        if self.marks.back().is_none_or(|&(last, _)| now - last >= BLOCK_S) {
            if self.marks.len() == BLOCKS {
                self.marks.pop_front();
            }
            self.marks.push_back((now, self.total));
        }
    }
}

/// A count that one or more threads raise, and how fast it rises.
#[derive(Debug)]
pub(crate) struct Counter {
    value: u64,
    began: f64,
    /// Times, and the count from then on.
    marks: VecDeque<(f64, u64)>,
}

impl Counter {
    pub(crate) fn new(now: f64) -> Self {
        Self { value: 0, began: now, marks: VecDeque::from([(now, 0)]) }
    }

    pub(crate) fn add(&mut self, amount: u64, now: f64) {
        self.value = self.value.saturating_add(amount);
        self.mark(now);
    }

    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    /// How much it rises in a second; the mean of the last three seconds.
    #[allow(clippy::cast_precision_loss)] // of counts beyond 2^53
    pub(crate) fn per_s(&mut self, now: f64) -> f64 {
        self.mark(now);
        let then = (now - Self::SPAN_S).max(self.began);
        let passed = now - then;
        let before = self.marks.front().map_or(self.value, |&(_, value)| value);
        if passed > 0.0 { (self.value - before) as f64 / passed } else { 0.0 }
    }

    #[allow(clippy::cast_precision_loss)]
    const SPAN_S: f64 = BLOCK_S * BLOCKS as f64;

    fn mark(&mut self, now: f64) {
        if self.marks.back().is_none_or(|&(last, _)| now - last >= BLOCK_S) {
            self.marks.push_back((now, self.value));
        }
        while self.marks.get(1).is_some_and(|&(second, _)| second <= now - Self::SPAN_S) {
            self.marks.pop_front();
        }
    }
}
