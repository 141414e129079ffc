//! Outcome: counts and logs what became of a job.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::flow::desk::call::Caller;
use crate::flow::desk::lane::Job;
use crate::flow::desk::tries::NextTry;
use crate::flow::handler::dispatch_log::Problem;
use crate::flow::handler::drop_items::{DropPanics, message};
use crate::flow::handler::{Batch, Failure};
use crate::flow::route::{Target, TypeHandlers};
use crate::item::{Item, TypeKey, counted};
use crate::observe::Outcome;
use crate::sync::Duration;

/// What to do about items without a handler, if the host does not know better.
const HINT: &str = "call add_handler before the first produce, and flush before remove_handler";

impl<T: Item> Caller<'_, T> {
    /// Counts what a job consumed and what failed; for the handler also what is `dead`, which is
    /// counted for the queue when its letter is. Returns how much of it was not counted as
    /// abandoned before.
    pub(super) fn settle(
        &self,
        target: &Target<T>,
        consumed: usize,
        failed: usize,
        dead: usize,
        job: &mut Job<T>,
    ) -> usize {
        let count = |outcome, items: usize| {
            let counts = items > 0 && self.tally.settle(outcome, items as u64);
            if counts { items } else { 0 }
        };
        let consumed = count(Outcome::Consumed, consumed);
        let failed = count(Outcome::Failed, failed);
        if consumed + failed + dead > 0 {
            let failed = (failed + dead) as u64;
            let call = job.call.take();
            target.registered.tally.settle(consumed as u64, failed, job.took, call);
        }
        consumed + failed
    }

    /// Counts items that failed for the log.
    pub(super) fn note_failed(
        &mut self,
        registered: &TypeHandlers<T>,
        failed: usize,
        failure: &Failure,
    ) {
        let (queue, name) = (&self.flow.name, &registered.name);
        self.note(Problem::Failed, registered.key, failed as u64, |failed| {
            let items = counted(failed, "item");
            let line = format!("queue {queue}: {items} failed in handler {name}: {failure}");
            (name.to_string(), line)
        });
    }

    /// Counts items whose first attempt failed, for the log. A handler that only ever needs a few
    /// attempts would not be seen anywhere else.
    #[cold]
    pub(super) fn note_first_failure(
        &mut self,
        registered: &TypeHandlers<T>,
        failed: usize,
        failure: &Failure,
        again: NextTry,
    ) {
        let (queue, name) = (&self.flow.name, &registered.name);
        let attempts = registered.settings.retry.as_ref().map_or(Some(1), |retry| retry.attempts);
        self.note(Problem::TriedAgain, registered.key, failed as u64, |failed| {
            let next = match again {
                NextTry::After(delay) => {
                    let ms = delay.as_millis();
                    let of = attempts.map_or_else(String::new, |most| format!(" of {most}"));
                    format!("tried again in {ms} ms, as attempt 1{of} failed")
                }
                NextTry::Half => "halved, as their batch failed".to_owned(),
            };
            let (items, are) = (counted(failed, "item"), if failed == 1 { "is" } else { "are" });
            let line = format!("queue {queue}: {items} of {name} {are} {next}: {failure}");
            (name.to_string(), line)
        });
    }

    /// Counts a job whose type has no handler, or lost it between two tries.
    pub(super) fn settle_without_handler(&mut self, job: Job<T>, key: TypeKey) {
        let (flow, weight) = (self.flow, job.weight());
        for batch in job.batches() {
            // What an item is called may be the user's code.
            let note = AssertUnwindSafe(|| flow.host.note_unhandled(batch, job.tries > 0));
            drop(catch_unwind(note));
        }
        if job.tries > 0
            && let Some(to) = &flow.dead_letters.of_queue
        {
            let failure = Failure::last("its handler was removed before the next attempt");
            return self.bury(None, job.in_one_piece(), failure, to, 0, Duration::ZERO);
        }
        let items = weight as u64;
        if job.tries > 0 {
            self.tally.settle(Outcome::Failed, items);
            self.note(Problem::Failed, key, items, |failed| {
                let first = job.batch.iter().next();
                let name = first.map_or_else(String::new, |item| flow.host.type_name(item));
                let queue = &flow.name;
                let items = counted(failed, "item");
                let line = format!(
                    "queue {queue}: {items} of {name} failed: the handler was removed before the \
                     next try"
                );
                (name, line)
            });
        } else {
            self.settle_unhandled(&job.batch, key, items);
        }
        let place = job.place;
        self.drop_batches(key, || format!("type {}", key.0), job.into_batches());
        flow.end_job(self.thread, place, weight, Duration::ZERO);
    }

    fn settle_unhandled(&mut self, batch: &Batch<T>, key: TypeKey, items: u64) {
        let flow = self.flow;
        self.tally.settle(Outcome::Unhandled, items);
        let Some(first) = batch.iter().next() else { return };
        self.note(Problem::Unhandled, key, items, |unhandled| {
            let (queue, name) = (&flow.name, flow.host.type_name(first));
            let has_handler =
                |key| flow.route.find(key).is_some_and(|known| known.registered().is_some());
            let hint = flow.host.unhandled_hint(first, &has_handler);
            let hint = hint.unwrap_or_else(|| HINT.to_owned());
            let items = counted(unhandled, "item");
            let line = format!("queue {queue}: {items} of {name} had no handler: {hint}");
            (name, line)
        });
    }

    /// Drops what a call of a handler has left of its items, or what it does not get. They are
    /// counted.
    pub(super) fn drop_items(
        &mut self,
        registered: &TypeHandlers<T>,
        batches: impl IntoIterator<Item = Batch<T>>,
    ) {
        self.drop_batches(registered.key, || registered.name.to_string(), batches);
    }

    pub(super) fn drop_batches(
        &mut self,
        key: TypeKey,
        name: impl FnOnce() -> String,
        batches: impl IntoIterator<Item = Batch<T>>,
    ) {
        let mut panics = DropPanics::default();
        for mut segment in batches.into_iter().flat_map(Batch::into_segments) {
            panics.clear(&mut segment);
            self.segment_cache.keep(segment);
        }
        let Some((items, cause)) = panics.report() else { return };
        let queue = &self.flow.name;
        self.note(Problem::DropPanicked, key, items, |items| {
            let (name, text) = (name(), Problem::DropPanicked.text(items));
            let line =
                format!("queue {queue}: {} of {name} {text}: {cause}", counted(items, "item"));
            (name, line)
        });
    }

    /// Counts items for the log, and logs the line that is due, if one is: `line` returns it after
    /// what the type is called.
    pub(super) fn note(
        &mut self,
        problem: Problem,
        key: TypeKey,
        items: u64,
        line: impl FnOnce(u64) -> (String, String),
    ) {
        let (flow, queue) = (self.flow, &self.flow.name);
        // What an item is called may be the user's code.
        let line = AssertUnwindSafe(|| flow.dispatch_log.note(queue, problem, key, items, line));
        let line = catch_unwind(line).unwrap_or_else(|cause| {
            let cause = message(&cause);
            let (text, items) = (problem.text(items), counted(items, "item"));
            Some(format!("queue {queue}: {items} {text}; no name: {cause}"))
        });
        if let Some(line) = line {
            flow.warn(line);
        }
    }
}
