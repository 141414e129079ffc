//! What becomes of a job that failed for good and goes to a handler of dead letters; see
//! `handler/dead_letters.rs`.

use crate::flow::desk::JobPlace;
use crate::flow::desk::call::Caller;
use crate::flow::desk::lane::{Dead, Job};
use crate::flow::desk::lanes::Lanes;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::handler::dispatch_log::Problem;
use crate::flow::handler::{DeadLetters, Failure};
use crate::flow::route::Target;
use crate::flow::state::Flow;
use crate::item::{Item, TypeKey, counted};
use crate::sync::{Arc, Deadline, Duration, Ordering, fence};

/// How soon a lane asks again for room in a box, if it does not hear of it before.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl<T: Item> Caller<'_, T> {
    /// The items of a job failed for good, after so many others were `settled`: they go to a
    /// handler of dead letters, and the lane continues. `target`: the handler, if the type has one.
    pub(super) fn bury(
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

/// What has become of a dead job.
enum Posted<T> {
    All,
    /// The next of its pieces is in hand, and has not been tried.
    ButPieces(Job<T>),
    /// It waits for room in the box.
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
                // This thread serves the box when it has nothing in hand. Another may be sooner.
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

    /// A lane whose dead job had no room in its box is ready: the box may have room now. Under the
    /// lock of the lanes.
    #[cold]
    pub(in crate::flow) fn post_again(&self, lanes: &mut Lanes<T>, place: JobPlace) {
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
