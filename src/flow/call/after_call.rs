//! The steps after a call: they update the job's lane, notify the owner of its partition, and find
//! the next job at the handler lock.

use crate::config::Selector;
use crate::flow::handler::lock::{HandlerLock, JobPlace, Next, Recall, address};
use crate::flow::partition::Partition;
use crate::flow::partition::lane::Job;
use crate::flow::partition::lanes::Lanes;
use crate::flow::route::type_handlers::{Consumption, Target, TypeHandlers};
use crate::flow::route::{Route, TypeRoute};
use crate::flow::state::Flow;
use crate::item::{Item, TypeKey};
use crate::sync::{Arc, Deadline, Duration, Ordering, fence};
use crate::threads::park::Signal;

impl<T: Item> Flow<T> {
    /// Releases a handler lock after a call. If the caller `stays` and a job of its queue is next,
    /// returns the place of that job instead, and the caller still holds the handler lock.
    pub(crate) fn release(&self, lock: &HandlerLock, stays: bool) -> Option<JobPlace> {
        match lock.release(self.address(), stays) {
            Next::Nothing => None,
            Next::Serve(place) => Some(place),
            Next::Recall(jobs) => {
                for (queue, place) in jobs {
                    if address(&queue) == self.address() {
                        self.recall_job(place, lock.address());
                    } else if let Some(queue) = queue.upgrade() {
                        queue.recall(Some((place, lock.address())));
                    }
                }
                None
            }
        }
    }

    /// Takes a job that was posted at a handler lock held by the caller. Returns `None` if the job
    /// no longer waits for this handler lock.
    pub(crate) fn take_posted(
        &self,
        place: JobPlace,
        lock: &Arc<HandlerLock>,
    ) -> Option<(Target<T>, Job<T>)> {
        let partition = self.route.partition(place.partition);
        let mut lanes = partition.lanes.lock();
        if !lanes.is_posted(place.lane, lock.address()) {
            return None;
        }
        let (key, tried_by) = (lanes.key(place.lane), lanes.tried_by(place.lane));
        let target = match &self.consumption {
            Consumption::PerThread(consumers) if tried_by.is_none() => {
                let at_this_lock = |consumer: &&Arc<TypeHandlers<T>>| {
                    Arc::ptr_eq(&consumer.handlers[0].lock, lock)
                };
                consumers.iter().find(at_this_lock).cloned().map(Target::only)
            }
            _ => self.target_of(key, place.partition, tried_by.unwrap_or(0)),
        };
        let target = target
            .or_else(|| Self::outstanding_target(&lanes, place.lane, place.partition))
            .filter(|target| Arc::ptr_eq(&target.handler().lock, lock));
        let Some(target) = target else {
            lanes.recall(place.lane, lock.address());
            partition.note_lanes(lanes.lane_use());
            drop(lanes);
            self.call_owner(partition, None);
            return None;
        };
        lock.continue_with(target.registered.purpose());
        let most = target.registered.settings.max_batch_items;
        let job = lanes.take_job(place.partition, place.lane, most, lock.address());
        partition.make_room(&mut lanes, true);
        Some((target, job))
    }

    /// Whether a partition has at most one lane.
    pub(crate) fn has_one_type(&self, partition: &Partition<T>) -> bool {
        match self.consumption {
            Consumption::ByHandler => {
                self.config.selector == Selector::ByType && !partition.is_mixed()
            }
            _ => true,
        }
    }

    /// Returns the handler of a lane's next job. `thread` selects the consumer if each drain thread
    /// has its own.
    pub(crate) fn target_of(
        &self,
        key: TypeKey,
        partition: usize,
        thread: usize,
    ) -> Option<Target<T>> {
        match &self.consumption {
            Consumption::ByHandler => self.route.target(key, partition, self.config.selector),
            Consumption::OneConsumer(consumer) => Some(Target::only(consumer.clone())),
            Consumption::PerThread(consumers) => Some(Target::only(consumers[thread].clone())),
        }
    }

    /// Returns the removed handler that still gets the items that lingered in a lane.
    pub(crate) fn outstanding_target(
        lanes: &Lanes<T>,
        lane: usize,
        partition: usize,
    ) -> Option<Target<T>> {
        let registered = lanes.outstanding(lane)?.to.clone().downcast::<TypeHandlers<T>>().ok()?;
        Some(Route::target_in(registered, partition))
    }

    /// Ends the job of a lane, with `items` settled. `thread` has called its handler; the last call
    /// took `took`.
    #[inline]
    pub(crate) fn end_job(&self, thread: usize, place: JobPlace, items: usize, took: Duration) {
        let partition = self.route.partition(place.partition);
        let end = |lanes: &mut Lanes<T>| {
            lanes.note_call(took);
            lanes.end(place.lane, items)
        };
        if partition.change_lanes(end) {
            self.call_owner(partition, Some(thread));
        }
    }

    /// Puts the rest of a job back into its lane after a call of `target`, to be retried at
    /// `until`. `settled` of its items are settled. If the queue has expired, returns the job,
    /// whose items were counted as abandoned.
    pub(crate) fn retry_job(
        &self,
        thread: usize,
        job: Job<T>,
        target: Option<&Target<T>>,
        until: Deadline,
        took: Duration,
        settled: usize,
    ) -> Option<Job<T>> {
        let partition = self.route.partition(job.place.partition);
        let too_late = partition.change_lanes(|lanes| {
            lanes.note_call(took);
            // Under the lock: after expiry, the owner discards what it finds here.
            if self.ending.is_expired() {
                lanes.end(job.place.lane, settled);
                return Some(job);
            }
            lanes.retry(job, until, settled);
            // A thread that changed the handler meanwhile left the job to this one.
            if let Some(gone) = target.filter(|target| !self.is_current(target)) {
                lanes.recall_type(gone.registered.key);
            }
            partition.make_room(lanes, false);
            None
        });
        if too_late.is_none() {
            // The owner is responsible for the next try.
            self.call_owner(partition, Some(thread));
        }
        too_late
    }

    /// Whether the queue, or the type, still has this handler. Called under the lock of the lanes
    /// of one of its jobs, which a removal takes afterwards.
    fn is_current(&self, target: &Target<T>) -> bool {
        let Consumption::ByHandler = self.consumption else { return true };
        let registered = self.route.find(target.registered.key).and_then(TypeRoute::registered);
        registered.is_some_and(|registered| Arc::ptr_eq(&registered, &target.registered))
    }

    /// Notifies the owner of a partition that a change of its lanes needs attention. `awake` is the
    /// calling drain thread, which needs no wake-up because it searches for work before it sleeps.
    pub(crate) fn call_owner(&self, partition: &Partition<T>, awake: Option<usize>) {
        partition.set_ready();
        // SeqCst: pairs with the fence in `Sleeper::prepare`, and with that of a mover in
        // `announce_owner`.
        fence(Ordering::SeqCst);
        let inside = self.route.owner(partition.index).load().inside();
        if Some(inside) != awake {
            self.threads[inside].waker.wake(Signal::Pressure);
        }
    }

    /// Notifies flushes after the end of a job, before the thread calls another handler or sleeps.
    /// A thread that enters a partition next does this when it leaves.
    pub(crate) fn notify_flushes(&self) {
        // SeqCst: pairs with the fence of a flush, between its waiting mark and its read of the
        // lanes.
        fence(Ordering::SeqCst);
        self.flushes.notify();
    }

    /// Makes a posted job ready, to be submitted again.
    pub(crate) fn recall_job(&self, place: JobPlace, lock: usize) {
        let partition = self.route.partition(place.partition);
        if partition.change_lanes(|lanes| lanes.recall(place.lane, lock)) {
            self.call_owner(partition, None);
        }
    }
}

impl<T: Item> Recall for Flow<T> {
    fn recall(self: Arc<Self>, posted: Option<(JobPlace, usize)>) {
        match posted {
            Some((place, lock)) => self.recall_job(place, lock),
            None => self.threads.wake_all(),
        }
        Self::let_go(self);
    }
}
