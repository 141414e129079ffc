//! Tries: the tries of a job after its first, and how a batch whose tries are used up is halved
//! until what fails stands alone.
//!
//! Halving (`RetryPolicy::bisect`) gives each half one try, the left one first, without a delay.
//! The right halves wait in the job, so the lane still has one job, and its order is kept. With a
//! left half of the largest power of two below the length, *k* bad ones of *n* items take at most
//! 2*k*(1 + log2(*n*/*k*)) further tries.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::control::deadlines::{LastTry, reserve};
use crate::flow::desk::call::Caller;
use crate::flow::desk::lane::{Job, Piece};
use crate::flow::desk::lanes::Lanes;
use crate::flow::handler::consumption::Consumption;
use crate::flow::handler::{Batch, Failure};
use crate::flow::partition::Partition;
use crate::flow::route::{Target, TypeRoute};
use crate::flow::state::Flow;
use crate::item::Item;
use crate::sync::{Deadline, Duration};

/// What follows a try that fails.
#[derive(Debug, Clone, Copy)]
pub(super) enum NextTry {
    /// All that failed, after this time.
    After(Duration),
    /// Its first half.
    Half,
}

impl<T> Job<T> {
    /// All that the job holds, by weight.
    pub(crate) fn weight(&self) -> usize {
        self.items + self.pieces.iter().map(|piece| piece.batch.len()).sum::<usize>()
    }

    /// The same job with its pieces in its batch, in order.
    pub(super) fn in_one_piece(mut self) -> Self {
        while let Some(piece) = self.pieces.pop() {
            self.batch.append(piece.batch);
        }
        self.items = self.batch.len();
        self
    }

    /// All its items, in no order.
    pub(super) fn batches(&self) -> impl Iterator<Item = &Batch<T>> {
        std::iter::once(&self.batch).chain(self.pieces.iter().map(|piece| &piece.batch))
    }

    /// All its items, in order.
    pub(super) fn into_batches(self) -> impl Iterator<Item = Batch<T>> {
        std::iter::once(self.batch).chain(self.pieces.into_iter().rev().map(|piece| piece.batch))
    }

    /// Takes the piece that waits next in hand. Returns `false` if there is none.
    pub(super) fn next_piece(&mut self) -> bool {
        let Some(Piece { batch, tries }) = self.pieces.pop() else { return false };
        (self.items, self.batch, self.tries) = (batch.len(), batch, tries);
        self.took = Duration::ZERO;
        true
    }
}

impl<T: Item> Caller<'_, T> {
    /// What follows if the try that is about to begin fails.
    pub(super) fn next_try(&self, target: &Target<T>, job: &Job<T>) -> Option<NextTry> {
        let retry = target.registered.settings.retry.as_ref()?;
        let has_tries = retry.attempts.is_none_or(|attempts| job.tries < attempts);
        if has_tries && !self.is_last_try(job.place.partition) {
            return Some(NextTry::After(retry.delay(job.tries, fastrand::f64)));
        }
        let halves =
            retry.bisect && job.batch.len() > 1 && !self.flow.ending.deadlines.is_short_of_time();
        halves.then_some(NextTry::Half)
    }

    /// Whether the time of a shutdown is over for another try, if the one that is about to begin
    /// fails.
    fn is_last_try(&self, partition: usize) -> bool {
        if self.flow.ending.deadlines.news() == 0 {
            return false;
        }
        let partition = self.flow.route.partition(partition);
        let lanes = partition.lanes.lock();
        self.flow.is_last_try(partition, &lanes, lanes.calls().expected())
    }

    /// Tries again what failed of a job; the rest was consumed.
    pub(super) fn try_again(
        &mut self,
        target: &Target<T>,
        mut job: Job<T>,
        again: NextTry,
        took: Duration,
    ) {
        self.tally.side_call(None);
        let consumed = job.items - job.batch.len();
        let mut settled =
            if consumed > 0 { self.settle(target, consumed, 0, 0, &mut job) } else { 0 };
        if let Some(call) = job.call.take() {
            target.registered.tally.note_call(call);
        }
        if settled > 0 {
            (job.items, job.took) = (job.batch.len(), Duration::ZERO);
        }
        let delay = match again {
            NextTry::After(delay) => delay,
            NextTry::Half => {
                if let Err(lost) = halve(&mut job) {
                    self.drop_items(&target.registered, lost);
                    let failure = "an item panicked when its batch was halved";
                    let failed = job.items;
                    settled += self.settle(target, 0, failed, 0, &mut job);
                    self.note_failed(&target.registered, failed, &Failure::last(failure));
                    if !job.next_piece() {
                        return self.flow.end_job(self.thread, job.place, settled, took);
                    }
                }
                Duration::ZERO
            }
        };
        job.tried_by = self.consumer_of(target);
        self.retry(target, job, delay, took, settled);
    }

    /// Puts a job back into its lane, for its next try after a delay.
    pub(super) fn retry(
        &mut self,
        target: &Target<T>,
        job: Job<T>,
        delay: Duration,
        took: Duration,
        settled: usize,
    ) {
        let until = Deadline::after(delay);
        let too_late = self.flow.retry_job(self.thread, job, Some(target), until, took, settled);
        if let Some(job) = too_late {
            self.drop_items(&target.registered, job.into_batches());
        }
    }
}

impl<T: Item> Flow<T> {
    /// When what fails in a partition is tried for the last time, if a shutdown has a deadline.
    pub(in crate::flow) fn last_try(
        &self,
        partition: &Partition<T>,
        lanes: &Lanes<T>,
    ) -> Option<LastTry> {
        self.ending.deadlines.last_try(|| self.reserve(partition, lanes))
    }

    /// Whether the last tries of a partition have begun, or begin in so short a time.
    pub(in crate::flow) fn is_last_try(
        &self,
        partition: &Partition<T>,
        lanes: &Lanes<T>,
        time: Duration,
    ) -> bool {
        let news = self.ending.deadlines.news();
        let last_try = self.last_try(partition, lanes);
        last_try.is_some_and(|last_try| lanes.are_last_tries(news) || last_try.comes_within(time))
    }

    /// The time for the last tries of all batches that wait in a partition, and for their dead
    /// letters.
    fn reserve(&self, partition: &Partition<T>, lanes: &Lanes<T>) -> Duration {
        let registered: Vec<_> = match &self.consumption {
            Consumption::ByHandler => {
                let types = lanes.views().filter_map(|lane| self.route.find(lane.key));
                types.filter_map(TypeRoute::registered).collect()
            }
            Consumption::OneConsumer(consumer) => vec![consumer.clone()],
            Consumption::PerThread(consumers) => consumers.iter().take(1).cloned().collect(),
        };
        let limits = registered.iter().map(|it| it.settings.max_batch_items);
        let batch = limits.min().unwrap_or(self.config.max_batch_items);
        let boxes = registered.iter().filter_map(|it| it.dead_letter.as_ref());
        let keep = boxes.map(|keeper| keeper.expected()).max().unwrap_or_default();
        let queued = partition.pushed_under_gate() - partition.taken();
        let (failed, behind) = lanes.backlog();
        let items = usize::try_from(queued).unwrap_or(usize::MAX).saturating_add(behind);
        reserve(items.div_ceil(batch) + failed, lanes.calls().expected() + keep)
    }
}

/// Leaves the first half of its batch in hand. If that panics, returns the items, which are lost.
fn halve<T: Item>(job: &mut Job<T>) -> Result<(), [Batch<T>; 2]> {
    let (mut first, mut second) = (Batch::default(), std::mem::take(&mut job.batch));
    let halves = catch_unwind(AssertUnwindSafe(|| second.halve_into(&mut first)));
    if halves.is_err() || second.is_empty() {
        return Err([first, second]);
    }
    job.pieces.push(Piece { batch: second, tries: job.tries });
    (job.items, job.batch, job.took) = (first.len(), first, Duration::ZERO);
    Ok(())
}
