//! Call: passes jobs to their handlers and counts the outcome. The calling thread is outside all
//! partitions.

pub(crate) mod after_call;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::flow::batch::{Batch, DeadLetters, DropPanics, Failure, message};
use crate::flow::deadlines::{LastTry, reserve};
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::handler::dispatch_log::Problem;
use crate::flow::handler::lock::{HandlerLock, JobPlace};
use crate::flow::handler::slow_calls::SLOW_CALL;
use crate::flow::partition::Partition;
use crate::flow::partition::lane::{Dead, Job, Piece};
use crate::flow::partition::lanes::Lanes;
use crate::flow::route::TypeRoute;
use crate::flow::route::type_handlers::{Consumption, Target, TypeHandlers};
use crate::flow::segments::SegmentCache;
use crate::flow::state::{Flow, Steering};
use crate::item::{Item, TypeKey, counted};
use crate::observe::{CallFigures, Calling, Outcome, ThreadTally, measures};
use crate::sync::{Arc, Deadline, Duration, Instant, Ordering, fence, now, time_since};
use crate::threads::context::HandlerScope;
use crate::threads::slots::SlowCall;

/// How long a thread that holds a handler lock serves the jobs of others there while its own
/// partitions have work.
const STAY: Duration = Duration::from_millis(1);

/// The same limit in jobs, for loom, which has no clock.
const MOST_SERVED: usize = if cfg!(loom) { 2 } else { usize::MAX };

/// The work done by the turns of one cycle.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Round {
    /// Calls of handlers.
    pub(crate) calls: usize,
    /// Items taken.
    pub(crate) taken: usize,
    /// Turns that took something.
    pub(crate) takes: usize,
    /// Items of the jobs that were called.
    pub(crate) called: usize,
}

impl Round {
    /// Returns the number of batches, or of takes if no batch was called.
    pub(crate) fn batches(&self) -> usize {
        if self.calls == 0 { self.takes } else { self.calls }
    }

    pub(super) fn count<T>(&mut self, job: &Job<T>) {
        self.calls += 1;
        self.called += job.items;
    }
}

/// A job in flight. Its thread holds the lock of the handler, if there is one.
pub(crate) struct InFlight<T> {
    pub(crate) target: Option<Target<T>>,
    pub(crate) job: Job<T>,
    pub(crate) key: TypeKey,
}

/// Calls handlers on behalf of one drain thread.
pub(crate) struct Caller<'a, T: Item> {
    pub(crate) flow: &'a Arc<Flow<T>>,
    pub(crate) steering: &'a Arc<dyn Steering<T>>,
    pub(crate) thread: usize,
    pub(crate) tally: &'a ThreadTally,
    /// Emptied segments, for later takes.
    pub(crate) segment_cache: &'a mut SegmentCache<T>,
    /// Whether this thread has entered the host.
    pub(crate) inside_host: bool,
}

impl<'a, T: Item> Caller<'a, T> {
    /// Calls the handler of a job, then serves the jobs that were posted at its handler lock
    /// meanwhile, for a limited time if this thread has other work. Adds the calls to `round`.
    pub(crate) fn call_all(
        &mut self,
        in_flight: InFlight<T>,
        round: &mut Round,
        has_work: impl Fn() -> bool,
    ) {
        let InFlight { target, job, key } = in_flight;
        round.count(&job);
        let Some(target) = target else {
            return self.in_host(|this| this.settle_without_handler(job, key));
        };
        let lock = target.handler().lock.clone();
        self.call_at(&lock, target, job);
        let (mut served, mut began) = (0, None::<Instant>);
        loop {
            let stays = began.is_none_or(|began| served < MOST_SERVED && time_since(began) < STAY)
                || !has_work();
            let Some(place) = self.flow.release(&lock, stays) else { break };
            self.flow.notify_flushes();
            began.get_or_insert_with(Instant::now);
            served += 1;
            if let Some((target, job)) = self.flow.take_posted(place, &lock) {
                round.count(&job);
                self.call_at(&lock, target, job);
            }
        }
    }

    /// Calls under the handler lock, which the thread holds before and after.
    fn call_at(&mut self, lock: &HandlerLock, target: Target<T>, job: Job<T>) {
        let leaves = LeaveOnUnwind { flow: self.flow, lock };
        self.call_in_place(&target, job);
        // Before the release, because until then a removal of the handler keeps it alive.
        drop(target);
        std::mem::forget(leaves);
    }

    /// Calls the handler, inside the host if it needs it.
    fn call_in_place(&mut self, target: &Target<T>, job: Job<T>) {
        if target.handler().handler.needs_host() {
            self.in_host(|this| this.call(target, job));
        } else {
            self.call(target, job);
        }
    }

    fn in_host(&mut self, body: impl FnOnce(&mut Self)) {
        if self.inside_host {
            return body(self);
        }
        let (flow, mut body) = (self.flow, Some(body));
        self.inside_host = true;
        flow.host.enter(&mut || {
            if let Some(body) = body.take() {
                body(self);
            }
        });
        self.inside_host = false;
    }

    /// Calls the handler once, and counts the outcome unless another try follows.
    fn call(&mut self, target: &Target<T>, mut job: Job<T>) {
        let registered = &target.registered;
        let cut = self.cut_to_limit(registered, &mut job);
        job.tries = job.tries.saturating_add(1);
        let again = self.next_try(target, &job);
        let dead_letter = registered.dead_letter.as_ref();
        let is_halved = matches!(again, Some(NextTry::Half));
        job.batch.set_attempt(again.is_none(), is_halved, dead_letter.is_some());
        let tried = match cut {
            Ok(()) => self.try_once(target, &mut job),
            Err(failure) => Some((Err(failure), Duration::ZERO)),
        };
        let Some((result, took)) = tried else {
            // The shutdown has expired, and the items were counted as abandoned.
            let place = job.place;
            self.drop_items(registered, job.into_batches());
            return self.flow.end_job(self.thread, place, 0, Duration::ZERO);
        };
        let failed = match &result {
            Ok(()) => 0,
            Err(failure) if failure.in_part => job.batch.len().min(job.items),
            Err(_) => job.items - job.batch.withdrawn(),
        };
        if let (Err(failure), Some(again)) = (&result, again)
            && failure.retry
            && !(failure.in_part && job.batch.is_last_for_a_part())
            && failed > 0
            && job.batch.len() == failed
        {
            if job.tries == 1 {
                self.note_first_failure(registered, failed, failure, again);
            }
            return self.try_again(target, job, again, took);
        }
        let consumed = job.items - failed;
        let dead = if dead_letter.is_some() { failed.min(job.batch.len()) } else { 0 };
        let lost = failed - dead;
        self.settle(target, job.items - dead - lost, lost, dead, &mut job);
        if let Err(failure) = result {
            if lost > 0 && !failure.reported {
                self.note_failed(registered, lost, &failure);
            }
            if let Some(to) = dead_letter.filter(|_| dead > 0) {
                job.items = dead;
                return self.bury(Some(target), job, failure, to, consumed + lost, took);
            }
        }
        self.drop_items(registered, [std::mem::take(&mut job.batch)]);
        let settled = job.items;
        if job.next_piece() {
            job.tried_by = self.consumer_of(target);
            return self.retry(target, job, Duration::ZERO, took, settled);
        }
        self.flow.end_job(self.thread, job.place, settled, took);
    }

    /// Calls `consume`. Returns the result and the time it took, or `None` if the shutdown has
    /// expired and handlers are no longer called.
    fn try_once(
        &mut self,
        target: &Target<T>,
        job: &mut Job<T>,
    ) -> Option<(Result<(), Failure>, Duration)> {
        let (handler, name) = (target.handler(), &target.registered.name);
        let _compensation = self.flow.compensate_for(handler);
        // Not in loom, where no call is slow.
        let is_slow = !cfg!(loom) && handler.lock.is_slow();
        let _slow = is_slow.then(|| self.begin_slow_call());
        let start = now();
        let (number, partition) = (target.registered.number, job.place.partition);
        if !self.tally.begin_call(Calling::Batch { number, partition }, start) {
            return None;
        }
        let holding = HandlerScope::of(&handler.lock);
        let mut result = Ok(());
        let mut consume = || result = call(name, || handler.handler.consume(&mut job.batch));
        if self.inside_host && !handler.handler.needs_host() {
            self.flow.host.leave(&mut consume);
        } else {
            consume();
        }
        drop(holding);
        let took = time_since(start);
        self.note_duration(target, job.place, start, took);
        job.took += took;
        let waited = job.put_at.take().map(|put_at| start.saturating_duration_since(put_at));
        job.call = measures().then_some(CallFigures { items: job.items, took, waited });
        Some((result, took))
    }

    /// Announces a call of a slow handler, which lasts until the result is dropped.
    #[cold]
    fn begin_slow_call(&self) -> SlowCall<'a> {
        let flow = self.flow;
        let slow = flow.threads[self.thread].begin_slow_call();
        self.steering.clone().begin_slow_call(self.thread);
        slow
    }

    /// Notes the duration of a call, and whether the handler is slow. Not in loom, which has no
    /// clock.
    #[inline]
    fn note_duration(&self, target: &Target<T>, place: JobPlace, start: Instant, took: Duration) {
        if cfg!(loom) {
            return;
        }
        let slot = &self.flow.threads[self.thread];
        slot.note_busy(took);
        if took <= SLOW_CALL {
            slot.note_quick_call(start.saturating_duration_since(self.flow.started));
        }
        let is_slow = took > SLOW_CALL;
        target.handler().lock.note_slow(is_slow);
        self.flow.route.partition(place.partition).note_slow(is_slow);
    }

    /// Returns the number of the consumer that tried a job, if each thread has its own consumer.
    pub(super) fn consumer_of(&self, target: &Target<T>) -> Option<usize> {
        let is_per_thread = matches!(self.flow.consumption, Consumption::PerThread(_));
        is_per_thread.then_some(target.registered.number)
    }
}

/// Frees the handler lock if the thread unwinds: its handler may serve other queues.
struct LeaveOnUnwind<'a, T: Item> {
    flow: &'a Flow<T>,
    lock: &'a HandlerLock,
}

impl<T: Item> Drop for LeaveOnUnwind<'_, T> {
    fn drop(&mut self) {
        self.flow.release(self.lock, false);
    }
}

/// Calls a handler. A panic fails the call, not the drain thread.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|cause| Err(Failure::last(format!("{name} panicked: {}", message(&cause)))))
}

// Cut: splits an item that exceeds the limit of a batch, before the first try.

impl<T: Item> Caller<'_, T> {
    /// Ensures before a try that the job does not exceed the limit of a batch.
    #[inline]
    fn cut_to_limit(
        &mut self,
        registered: &TypeHandlers<T>,
        job: &mut Job<T>,
    ) -> Result<(), Failure> {
        if job.excess > 0 {
            return self.cut_at_limit(registered, job);
        }
        if job.tries == 0 && job.items > registered.settings.max_batch_items {
            return Err(Failure::last("an item panicked when its weight was read"));
        }
        Ok(())
    }

    /// Cuts the last item of a job at the limit of a batch, and puts the rest back into the lane.
    /// If the cut panics, the item is lost and the job fails.
    #[cold]
    fn cut_at_limit(
        &mut self,
        registered: &TypeHandlers<T>,
        job: &mut Job<T>,
    ) -> Result<(), Failure> {
        let excess = std::mem::take(&mut job.excess);
        let Some(last) = job.batch.pop() else { return Ok(()) };
        let parts = catch_unwind(AssertUnwindSafe(|| {
            let weight = last.weight() - excess;
            last.cut(weight)
        }));
        let (partition, lane) = (self.flow.route.partition(job.place.partition), job.place.lane);
        let Ok((first, rest)) = parts else {
            partition.change_lanes(|lanes| {
                lanes.lose_rest(lane, excess);
                partition.make_room(lanes, true);
            });
            job.items += excess;
            return Err(Failure::last("an item panicked when it was cut at the limit of a batch"));
        };
        job.batch.push_back(first);
        if let Some(rest) = partition.change_lanes(|lanes| lanes.put_back(lane, rest)) {
            let mut batch = Batch::default();
            batch.push_front(rest);
            self.drop_items(registered, [batch]);
        }
        Ok(())
    }
}

// Outcome: counts and logs the results of jobs.

/// The advice for items without a handler, unless the host has a better one.
const HINT: &str = "call add_handler before the first produce, and flush before remove_handler";

impl<T: Item> Caller<'_, T> {
    /// Counts the consumed and failed items of a job. Items that are `dead` count for the handler
    /// only: the queue counts them with their letter. Returns the number of consumed and failed
    /// items that had not been counted as abandoned.
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

    /// Counts failed items for the log.
    fn note_failed(&mut self, registered: &TypeHandlers<T>, failed: usize, failure: &Failure) {
        let (queue, name) = (&self.flow.name, &registered.name);
        self.note(Problem::Failed, registered.key, failed as u64, |failed| {
            let items = counted(failed, "item");
            let line = format!("queue {queue}: {items} failed in handler {name}: {failure}");
            (name.to_string(), line)
        });
    }

    /// Counts items whose first attempt failed, for the log. Otherwise a handler that always
    /// succeeds after a few attempts would go unnoticed.
    #[cold]
    fn note_first_failure(
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

    /// Settles a job whose type has no handler, or lost it between two tries.
    fn settle_without_handler(&mut self, job: Job<T>, key: TypeKey) {
        let (flow, weight) = (self.flow, job.weight());
        for batch in job.batches() {
            // The name of an item may come from user code.
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

    /// Drops items that a handler has left in its batches, or will not get. They are already
    /// counted.
    fn drop_items(
        &mut self,
        registered: &TypeHandlers<T>,
        batches: impl IntoIterator<Item = Batch<T>>,
    ) {
        self.drop_batches(registered.key, || registered.name.to_string(), batches);
    }

    fn drop_batches(
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

    /// Counts items for the log, and logs a line if one is due: `line` returns the name of the type
    /// and the line.
    pub(super) fn note(
        &mut self,
        problem: Problem,
        key: TypeKey,
        items: u64,
        line: impl FnOnce(u64) -> (String, String),
    ) {
        let (flow, queue) = (self.flow, &self.flow.name);
        // The name of an item may come from user code.
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

// Tries: retries of a job, and halving of a batch whose tries are used up, until the failing items
// are isolated.
//
// Halving (`RetryPolicy::bisect`) gives each half one try, the left one first, without a delay. The
// right halves wait in the job, so the lane still has one job, and order is kept. With a left half
// of the largest power of two below the length, *k* bad items among *n* take at most 2*k*(1 +
// log2(*n*/*k*)) further tries.

/// The step after a failed try.
#[derive(Debug, Clone, Copy)]
pub(super) enum NextTry {
    /// Retries all failed items after this time.
    After(Duration),
    /// Tries the first half.
    Half,
}

impl<T> Job<T> {
    /// Returns the items of the job, by weight.
    pub(crate) fn weight(&self) -> usize {
        self.items + self.pieces.iter().map(|piece| piece.batch.len()).sum::<usize>()
    }

    /// Merges the pieces of the job into its batch, in order.
    fn in_one_piece(mut self) -> Self {
        while let Some(piece) = self.pieces.pop() {
            self.batch.append(piece.batch);
        }
        self.items = self.batch.len();
        self
    }

    /// Returns all batches of the job, in no particular order.
    pub(super) fn batches(&self) -> impl Iterator<Item = &Batch<T>> {
        std::iter::once(&self.batch).chain(self.pieces.iter().map(|piece| &piece.batch))
    }

    /// Returns all batches of the job, in order.
    fn into_batches(self) -> impl Iterator<Item = Batch<T>> {
        std::iter::once(self.batch).chain(self.pieces.into_iter().rev().map(|piece| piece.batch))
    }

    /// Makes the next piece the batch of the job. Returns `false` if there is none.
    fn next_piece(&mut self) -> bool {
        let Some(Piece { batch, tries }) = self.pieces.pop() else { return false };
        (self.items, self.batch, self.tries) = (batch.len(), batch, tries);
        self.took = Duration::ZERO;
        true
    }
}

impl<T: Item> Caller<'_, T> {
    /// Returns the step that follows if the try about to begin fails.
    fn next_try(&self, target: &Target<T>, job: &Job<T>) -> Option<NextTry> {
        let retry = target.registered.settings.retry.as_ref()?;
        let has_tries = retry.attempts.is_none_or(|attempts| job.tries < attempts);
        if has_tries && !self.is_last_try(job.place.partition) {
            return Some(NextTry::After(retry.delay(job.tries, fastrand::f64)));
        }
        let halves =
            retry.bisect && job.batch.len() > 1 && !self.flow.ending.deadlines.is_short_of_time();
        halves.then_some(NextTry::Half)
    }

    /// Whether a shutdown leaves no time for another try if the one about to begin fails.
    fn is_last_try(&self, partition: usize) -> bool {
        if self.flow.ending.deadlines.news() == 0 {
            return false;
        }
        let partition = self.flow.route.partition(partition);
        let lanes = partition.lanes.lock();
        self.flow.is_last_try(partition, &lanes, lanes.calls().expected())
    }

    /// Retries the failed items of a job; the rest was consumed.
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

    /// Puts a job back into its lane for its next try, after a delay.
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
    /// Returns when the failing batches of a partition get their last try, if a shutdown has a
    /// deadline.
    pub(crate) fn last_try(&self, partition: &Partition<T>, lanes: &Lanes<T>) -> Option<LastTry> {
        self.ending.deadlines.last_try(|| self.reserve(partition, lanes))
    }

    /// Whether the last tries of a partition have begun, or begin within `time`.
    pub(crate) fn is_last_try(
        &self,
        partition: &Partition<T>,
        lanes: &Lanes<T>,
        time: Duration,
    ) -> bool {
        let news = self.ending.deadlines.news();
        let last_try = self.last_try(partition, lanes);
        last_try.is_some_and(|last_try| lanes.are_last_tries(news) || last_try.comes_within(time))
    }

    /// Returns the time to reserve for the last tries of all batches that wait in a partition, and
    /// for their dead letters.
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

/// Halves the batch of a job and keeps the first half there. If that panics, returns the items,
/// which have failed.
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

// Jobs that failed for good and go to a handler of dead letters; see `handler/dead_letters.rs`.

/// How soon a lane retries a full box if it is not notified of room earlier.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl<T: Item> Caller<'_, T> {
    /// Passes the items of a job that failed for good to a handler of dead letters, and lets the
    /// lane continue. `settled` is the number of other items settled before; `target` is the
    /// handler, if the type has one.
    fn bury(
        &mut self,
        target: Option<&Target<T>>,
        mut job: Job<T>,
        failure: Failure,
        to: &Arc<DeadLetterBox<T>>,
        settled: usize,
        took: Duration,
    ) {
        self.tally.side_call(None);
        self.note_dead(target, &job, &failure, to);
        let (place, items) = (job.place, job.items);
        job.dead = Some(Box::new(Dead::new(failure, to.clone())));
        let (thread, flow) = (self.thread, self.flow);
        let too_late = match flow.post_letters(job) {
            Posted::All => return flow.end_job(thread, place, settled + items, took),
            Posted::ButPieces(mut job) => {
                job.tried_by = target.and_then(|target| self.consumer_of(target));
                let now = Deadline::after(Duration::ZERO);
                flow.retry_job(thread, job, target, now, took, settled + items)
            }
            Posted::NoRoom(job) => {
                let later = Deadline::after(ASK_AGAIN);
                flow.retry_job(thread, job, target, later, took, settled)
            }
        };
        if let Some(job) = too_late {
            let name = target.map_or_else(String::new, |target| target.registered.name.to_string());
            self.drop_batches(TypeKey(0), || name, job.into_batches());
        }
    }

    fn note_dead(
        &mut self,
        target: Option<&Target<T>>,
        job: &Job<T>,
        failure: &Failure,
        to: &DeadLetterBox<T>,
    ) {
        if failure.reported {
            return;
        }
        let flow = self.flow;
        let first = job.batch.iter().next();
        let key = target.map_or(TypeKey(0), |target| target.registered.key);
        self.note(Problem::DeadLettered, key, job.items as u64, |items| {
            let name = match (target, first) {
                (Some(target), _) => target.registered.name.to_string(),
                (None, first) => first.map_or_else(String::new, |item| flow.host.type_name(item)),
            };
            let (queue, keeper) = (&flow.name, &to.name);
            let items = counted(items, "item");
            let line = format!(
                "queue {queue}: {items} of {name} went to the handler of dead letters \
                 ({keeper}): {failure}"
            );
            (name, line)
        });
    }
}

/// The outcome of posting a dead job.
enum Posted<T> {
    All,
    /// The batch was posted; the job now has its next piece, which has not been tried.
    ButPieces(Job<T>),
    /// The job waits for room in the box.
    NoRoom(Job<T>),
}

impl<T: Item> Flow<T> {
    fn post_letters(&self, mut job: Job<T>) -> Posted<T> {
        let Some(dead) = job.dead.take() else { return Posted::ButPieces(job) };
        let Dead { failure, to, .. } = *dead;
        let items = std::mem::take(&mut job.batch);
        let letters = DeadLetters { items, failure, attempts: job.tries };
        match self.dead_letters.post(&to, letters, job.place) {
            Ok(()) => {
                // This thread serves the box when it has nothing in flight. Another may do so
                // earlier.
                if self.threads.len() > 1 {
                    // SeqCst: pairs with the fence in `Sleeper::prepare`.
                    fence(Ordering::SeqCst);
                    self.threads.wake_all();
                }
                if job.next_piece() { Posted::ButPieces(job) } else { Posted::All }
            }
            Err(DeadLetters { items, failure, .. }) => {
                job.batch = items;
                job.dead = Some(Box::new(Dead::new(failure, to)));
                Posted::NoRoom(job)
            }
        }
    }

    /// Retries to post the dead job of a lane, because its box may have room now. Called under the
    /// lock of the lanes.
    #[cold]
    pub(crate) fn post_again(&self, lanes: &mut Lanes<T>, place: JobPlace) {
        let job = lanes.take_job(place.partition, place.lane, usize::MAX, 0);
        let items = job.items;
        match self.post_letters(job) {
            Posted::All => {
                // The turn may have left items queued because of this lane.
                if lanes.end(place.lane, items) {
                    self.route.partition(place.partition).set_ready();
                }
            }
            Posted::ButPieces(job) => {
                lanes.retry(job, Deadline::after(Duration::ZERO), items);
                lanes.make_due_ready();
            }
            Posted::NoRoom(job) => lanes.retry(job, Deadline::after(ASK_AGAIN), 0),
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use crate::queue::BatchQueue;
    use crate::sync::Arc;
    use crate::testing::loom::{Number, ONE, Seen, TWO, config, model_by_turns};

    /// Rule 6: an item without a handler goes into the partition of a type that has a handler,
    /// which does not get it.
    #[test]
    fn loom_unknown_type_while_the_owner_takes() {
        model_by_turns(9, 2, || {
            let seen = Arc::new(Seen::default());
            let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
            queue.add_handler(ONE, seen.handler()).unwrap();
            let producer = {
                let queue = queue.clone();
                thread::spawn(move || queue.produce(Number(TWO, 2)).unwrap())
            };
            queue.produce(Number(ONE, 1)).unwrap();
            producer.join().unwrap();
            queue.shutdown(None);
            assert_eq!(seen.numbers(), [1]);
            assert_eq!(queue.stats().unhandled, 1);
        });
    }
}
