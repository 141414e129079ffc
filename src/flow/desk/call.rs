//! Call: passes jobs to their handlers and counts the outcome. The thread that calls is inside no
//! partition.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::control::slow_calls::SLOW_CALL;
use crate::control::thread_slots::SlowCall;
use crate::flow::desk::lane::Job;
use crate::flow::desk::tries::NextTry;
use crate::flow::desk::{Desk, JobPlace};
use crate::flow::handler::Failure;
use crate::flow::handler::consumption::Consumption;
use crate::flow::handler::drop_items::message;
use crate::flow::partition::segment_pool::SegmentCache;
use crate::flow::route::Target;
use crate::flow::state::{Flow, Steering};
use crate::item::{Item, TypeKey};
use crate::observe::{CallFigures, Calling, ThreadTally, measures};
use crate::sync::{Arc, Duration, Instant, now, time_since};
use crate::thread_context::HandlerScope;

/// How long a thread that has a desk serves the jobs of others there while its own partitions have
/// work.
const STAY: Duration = Duration::from_millis(1);

/// The same limit in jobs, for loom, which has no clock.
const MOST_SERVED: usize = if cfg!(loom) { 2 } else { usize::MAX };

/// What the turns of one cycle did.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::flow) struct Round {
    /// Calls of handlers.
    pub(in crate::flow) calls: usize,
    /// Items taken.
    pub(in crate::flow) taken: usize,
    /// Turns that took something.
    pub(in crate::flow) takes: usize,
    /// Items of the jobs that were called.
    pub(in crate::flow) called: usize,
}

impl Round {
    /// Batches, or what they gather from if none is full.
    pub(in crate::flow) fn batches(&self) -> usize {
        if self.calls == 0 { self.takes } else { self.calls }
    }

    pub(super) fn count<T>(&mut self, job: &Job<T>) {
        self.calls += 1;
        self.called += job.items;
    }
}

/// A job in the hand of a thread, which holds the desk of its handler, if it has one.
pub(crate) struct InHand<T> {
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
    /// Calls the handler of a job; then serves the jobs that were posted at its desk meanwhile, for
    /// a limited time if this thread has other work. Adds the calls to `round`.
    pub(in crate::flow) fn call_all(
        &mut self,
        in_hand: InHand<T>,
        round: &mut Round,
        has_work: impl Fn() -> bool,
    ) {
        let InHand { target, job, key } = in_hand;
        round.count(&job);
        let Some(target) = target else {
            return self.in_host(|this| this.settle_without_handler(job, key));
        };
        let desk = target.handler().desk.clone();
        self.call_at(&desk, target, job);
        let (mut served, mut began) = (0, None::<Instant>);
        loop {
            let stays = began.is_none_or(|began| served < MOST_SERVED && time_since(began) < STAY)
                || !has_work();
            let Some(place) = self.flow.release(&desk, stays) else { break };
            self.flow.notify_flushes();
            began.get_or_insert_with(Instant::now);
            served += 1;
            if let Some((target, job)) = self.flow.take_posted(place, &desk) {
                round.count(&job);
                self.call_at(&desk, target, job);
            }
        }
    }

    /// Calls at the desk that the thread holds, and holds afterwards.
    fn call_at(&mut self, desk: &Desk, target: Target<T>, job: Job<T>) {
        let leaves = LeaveOnUnwind { flow: self.flow, desk };
        self.call_in_place(&target, job);
        // Before the release: until then, a removal of the handler keeps it.
        drop(target);
        std::mem::forget(leaves);
    }

    /// Calls inside the host if the handler needs it.
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

    /// Calls the handler once, and counts the outcome unless there is a next try.
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
            // The time is over, and the items were counted as abandoned.
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

    /// Calls `consume`, and returns how long that took; `None` if the shutdown deadline has passed
    /// and handlers are no longer called.
    fn try_once(
        &mut self,
        target: &Target<T>,
        job: &mut Job<T>,
    ) -> Option<(Result<(), Failure>, Duration)> {
        let (handler, name) = (target.handler(), &target.registered.name);
        let _compensation = self.flow.compensate_for(handler);
        // Not in loom, where no call is slow.
        let is_slow = !cfg!(loom) && handler.desk.is_slow();
        let _slow = is_slow.then(|| self.begin_slow_call());
        let start = now();
        let (number, partition) = (target.registered.number, job.place.partition);
        if !self.tally.begin_call(Calling::Batch { number, partition }, start) {
            return None;
        }
        let holding = HandlerScope::of(&handler.desk);
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

    /// Before a call of a slow handler, until the result is dropped.
    #[cold]
    fn begin_slow_call(&self) -> SlowCall<'a> {
        let flow = self.flow;
        let slow = flow.threads[self.thread].begin_slow_call();
        self.steering.clone().begin_slow_call(self.thread);
        slow
    }

    /// Notes whether the handler is slow. Not in loom, which has no clock.
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
        target.handler().desk.note_slow(is_slow);
        self.flow.route.partition(place.partition).note_slow(is_slow);
    }

    /// The number of the consumer that tried a job, with one consumer for each thread.
    pub(super) fn consumer_of(&self, target: &Target<T>) -> Option<usize> {
        let is_per_thread = matches!(self.flow.consumption, Consumption::PerThread(_));
        is_per_thread.then_some(target.registered.number)
    }
}

/// Frees the desk if the thread unwinds: its handler may serve other queues.
struct LeaveOnUnwind<'a, T: Item> {
    flow: &'a Flow<T>,
    desk: &'a Desk,
}

impl<T: Item> Drop for LeaveOnUnwind<'_, T> {
    fn drop(&mut self) {
        self.flow.release(self.desk, false);
    }
}

/// Calls a handler. A panic fails the call, not the drain thread.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|cause| Err(Failure::last(format!("{name} panicked: {}", message(&cause)))))
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use crate::BatchQueue;
    use crate::sync::Arc;
    use crate::testing::loom::{Number, ONE, Seen, TWO, config, model_by_turns};

    /// Rule 6: an item without a handler goes into the partition of a type that has one, whose
    /// handler does not get it.
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
