//! The shared state of the data plane: one component per concern, which documents who writes and
//! who reads its fields.

use std::fmt;

use rustc_hash::FxHashMap;

use crate::config::{Config, available_cores};
use crate::flow::deadlines::Deadlines;
use crate::flow::handler::dead_letters::{DeadLetterBox, DeadLetterBoxes};
use crate::flow::handler::dispatch_log::DispatchLog;
use crate::flow::handler::lock::Recall;
use crate::flow::handler::slow_calls::SlowCalls;
use crate::flow::handler::{HandlerRef, Host};
use crate::flow::partition::Partition;
use crate::flow::route::Route;
use crate::flow::route::retirements::{Retirement, Retirements};
use crate::flow::route::type_handlers::Consumption;
use crate::flow::segments::PutTime;
use crate::item::Item;
use crate::sync::{
    Arc, AtomicBool, AtomicUsize, Condvar, Duration, Instant, Mutex, Ordering, Weak, wait_for,
};
use crate::threads::agenda::Arming;
use crate::threads::context::{QueueLog, on_drain_thread};
use crate::threads::park::Signal;
use crate::threads::pool::{Pool, RunningThreads};
use crate::threads::slots::ThreadSlots;
use crate::threads::waits::WaitingProducers;

/// The data plane of one queue. Producers and drain threads hold it. The control side changes it,
/// but it does not refer to the control side.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `route` | growth and handlers, under the control lock; see `route.rs` | all threads |
/// | `threads` | see `threads/slots.rs` | all threads |
/// | `arming` | see `threads/agenda.rs` | drain threads, supervisor |
/// | `ending` | see [`Ending`] | drain threads, shutdowns |
/// | `flushes` | see [`Flushes`] | drain threads, flushes |
/// | `dead_letters` | see `handler/dead_letters.rs` | drain threads, flushes |
/// | `dispatch_log` | see `handler/dispatch_log.rs` | producers, drain threads |
/// | `retirements` | see `route/retirements.rs` | drain threads |
/// | `serving` | see [`Serving`] | control side, drain threads |
/// | `slow_calls` | see `handler/slow_calls.rs` | drain threads, supervisor |
/// | `waiting_producers` | producers that wait for room | watchdog |
/// | `next_partition` | producers, with a round-robin selector | the same |
///
/// The other fields never change.
pub(crate) struct Flow<T: Item> {
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) consumption: Consumption<T>,
    pub(crate) host: Arc<dyn Host<T>>,
    pub(crate) log: Arc<dyn QueueLog>,
    /// The pool that the queue's one drain task runs on; `None` if it has dedicated threads.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) started: Instant,
    /// Drain threads of this queue per core of the process, rounded up.
    pub(crate) threads_per_core: u32,
    pub(crate) threads: ThreadSlots,
    pub(crate) arming: Arming,
    pub(crate) route: Route<T>,
    pub(crate) next_partition: AtomicUsize,
    pub(crate) waiting_producers: WaitingProducers,
    pub(crate) slow_calls: SlowCalls,
    pub(crate) retirements: Retirements<T>,
    pub(crate) serving: Serving,
    pub(crate) dead_letters: DeadLetterBoxes<T>,
    pub(crate) dispatch_log: DispatchLog,
    pub(crate) ending: Ending<T>,
    pub(crate) flushes: Flushes,
}

impl<T: Item> Flow<T> {
    pub(crate) fn new(
        name: String,
        config: Config,
        consumption: Consumption<T>,
        dead_letter: Option<Arc<DeadLetterBox<T>>>,
        (host, log): (Arc<dyn Host<T>>, Arc<dyn QueueLog>),
        threads: ThreadSlots,
        pool: Option<Arc<Pool>>,
    ) -> Self {
        PutTime::start();
        let route = Route::new(&config);
        route.grow(&config, threads.len(), config.partitions.resolve(threads.len(), 0.0));
        let threads_per_core =
            u32::try_from(threads.len().div_ceil(available_cores())).unwrap_or(u32::MAX);
        Self {
            name,
            config,
            consumption,
            host,
            log,
            pool,
            started: Instant::now(),
            threads_per_core,
            arming: Arming::new(threads.may_be_taken_over()),
            route,
            next_partition: AtomicUsize::new(0),
            waiting_producers: WaitingProducers::default(),
            slow_calls: SlowCalls::new(threads.most()),
            retirements: Retirements::new(),
            serving: Serving::default(),
            dead_letters: DeadLetterBoxes::new(dead_letter),
            dispatch_log: DispatchLog::new(),
            ending: Ending::new(threads.len()),
            flushes: Flushes::new(),
            threads,
        }
    }

    /// Returns the identity by which threads, handler locks and waits know the queue.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Wakes the thread inside the partition after a put, from a sleep or rest that `signal`
    /// reaches.
    #[inline]
    pub(crate) fn wake_inside(&self, partition: &Partition<T>, signal: Signal) {
        // The thread inside, not the next owner, can act on it now.
        self.threads.wake_inside(signal, || self.route.owner(partition.index).load().inside());
    }

    /// Logs a line from any thread, without waiting for the log.
    pub(crate) fn warn(&self, line: String) {
        self.log.warn(line);
    }

    /// Logs a line within the caller's call, or as [`warn`](Self::warn) does on a drain thread.
    pub(crate) fn warn_in_call(&self, line: String) {
        if on_drain_thread() { self.warn(line) } else { self.host.log(&line) }
    }

    /// Returns the reference by which a handler lock calls the queue back.
    pub(crate) fn watcher(self: &Arc<Self>) -> Weak<dyn Recall> {
        Arc::<Self>::downgrade(self)
    }

    /// Whether a retirement can end. If not, the queue is notified when a thread leaves one of the
    /// handlers. The caller has fenced.
    pub(crate) fn has_ended_retirement(self: &Arc<Self>) -> bool {
        self.retirements.are_pending()
            && self.retirements.has_idle(|handler| self.serves(handler), &self.watcher())
    }

    /// Whether a handler instance still serves some type of this queue.
    pub(crate) fn serves(&self, handler: &HandlerRef<T>) -> bool {
        let of_queue = &self.dead_letters.of_queue;
        of_queue.as_ref().is_some_and(|of_queue| of_queue.handler.is(handler))
            || self.consumption.includes(handler)
            || self.serving.includes(handler)
    }

    /// Drops a reference. The last one drops the queue's items and handlers inside their host.
    pub(crate) fn let_go(flow: Arc<Self>) {
        let host = flow.host.clone();
        drop_inside(&*host, flow);
    }
}

/// Drops a reference to a part of a queue; the last one is dropped inside the host.
pub(crate) fn drop_inside<T: Item, P>(host: &dyn Host<T>, part: Arc<P>) {
    let mut last = Arc::into_inner(part);
    if last.is_some() {
        host.enter(&mut || drop(last.take()));
    }
}

impl<T: Item> fmt::Debug for Flow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow")
            .field("name", &self.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The requests of drain threads to the control side, at most once per cycle or around a call that
/// is slow or has no items.
pub(crate) trait Steering<T: Item>: Send + Sync {
    /// Called before a slow handler is called: other threads take over the caller's partitions now,
    /// instead of after a tick.
    fn begin_slow_call(self: Arc<Self>, thread: usize);

    /// Called after a drain thread has noted a call without items in its tally.
    fn watch_side_call(&self);

    /// Returns the retirements that end now; `all` of them if no thread of the queue calls handlers
    /// any more.
    fn ended_retirements(&self, all: bool) -> Vec<Retirement<T>>;

    /// Ends departures of types after an empty cycle of a drain thread.
    fn end_departures_when_idle(&self);

    /// Called as the last step of each drain thread before it lets go of its queue.
    fn end_watch(&self);

    /// Called when a drain thread unwinds. Its partitions no longer have an owner, so the queue
    /// closes and counts what is left as abandoned.
    fn close_after_panic(&self);

    /// Drops a reference; the last one is dropped inside the host.
    fn let_go(self: Arc<Self>);
}

/// The threads that wait until everything accepted has been handled.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `waiting` | flushes | drain threads |
/// | `progress` | flushes (wait), drain threads and expiry (notify) | flushes |
#[derive(Debug)]
pub(crate) struct Flushes {
    waiting: AtomicUsize,
    progress: (Mutex<()>, Condvar),
}

/// A flush that waits: while this lives, no drain thread rests.
#[must_use = "the flush counts until this is dropped"]
pub(crate) struct Flushing<'a>(&'a Flushes);

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Self { waiting: AtomicUsize::new(0), progress: (Mutex::new(()), Condvar::new()) }
    }

    /// Registers a flush. The caller wakes all drain threads afterwards.
    pub(crate) fn begin(&self) -> Flushing<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Flushing(self)
    }

    /// Whether a flush is waiting.
    #[inline]
    pub(crate) fn are_waiting(&self) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits until a drain thread leaves a partition, unless already `done`.
    pub(crate) fn wait(&self, done: impl Fn() -> bool, limit: Option<Duration>) {
        let (lock, progress) = &self.progress;
        let guard = lock.lock();
        if !done() {
            drop(wait_for(progress, guard, limit));
        }
    }

    /// Notifies flushes when a drain thread leaves a partition, after its fence.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.are_waiting() {
            let (lock, progress) = &self.progress;
            let _guard = lock.lock();
            progress.notify_all();
        }
    }
}

/// The phase of a queue: running → closing → ended, or expired.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `closing` | closer, once, after every gate is closed | drain threads |
/// | `unfinished` | closer (set), drain threads (count down) | drain threads |
/// | `expired` | an expiring shutdown, once, under the control lock | drain threads |
/// | `deadlines` | see `deadlines.rs` | drain threads |
/// | `to_close` | drain threads at their end | the same |
/// | `running` | the last act of each drain thread | shutdowns |
pub(crate) struct Ending<T> {
    closing: AtomicBool,
    unfinished: AtomicUsize,
    expired: AtomicBool,
    pub(crate) deadlines: Deadlines,
    /// The instances whose `on_close` is due; filled when the first drain thread ends.
    to_close: Mutex<Option<Vec<HandlerRef<T>>>>,
    running: Arc<RunningThreads>,
}

impl<T> Ending<T> {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            closing: AtomicBool::new(false),
            unfinished: AtomicUsize::new(0),
            expired: AtomicBool::new(false),
            deadlines: Deadlines::default(),
            to_close: Mutex::new(None),
            running: Arc::new(RunningThreads::new(threads)),
        }
    }

    // ---- close ----------------------------------------------------------------------------------

    /// Sets the number of unfinished partitions. Called under the control lock, before the gates
    /// close and before [`publish_closing`](Self::publish_closing).
    pub(crate) fn set_unfinished(&self, partitions: usize) {
        // Relaxed: published by the Release store of `closing`.
        self.unfinished.store(partitions, Ordering::Relaxed);
    }

    /// Publishes that the queue is closing, after every gate was closed.
    pub(crate) fn publish_closing(&self) {
        // Release: pairs with the Acquire loads of `closing`; a drain thread that sees it finds
        // every gate closed.
        self.closing.store(true, Ordering::Release);
        self.deadlines.publish_news();
    }

    /// Whether every gate is closed.
    pub(crate) fn is_closing(&self) -> bool {
        // Acquire: pairs with the Release in `publish_closing`, after which every gate is closed.
        self.closing.load(Ordering::Acquire)
    }

    /// Like [`is_closing`](Self::is_closing), for a caller that has fenced.
    pub(crate) fn is_closing_after_fence(&self) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.closing.load(Ordering::Relaxed)
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Counts down for a partition that is closed and empty. Returns whether it was the last.
    pub(crate) fn finish_partition(&self) -> bool {
        // AcqRel: the thread that counts down the last partition has seen what the others did
        // before they counted down theirs.
        self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether the drain threads have nothing left to do, because everything is finished or the
    /// queue has expired.
    pub(crate) fn is_over(&self) -> bool {
        if self.is_expired() {
            return true;
        }
        // Acquire: pairs with the AcqRel in `finish_partition`; all handlers' writes are visible
        // before `on_close`.
        self.closing.load(Ordering::Acquire) && self.unfinished.load(Ordering::Acquire) == 0
    }

    /// Returns a handler instance, of `instances` on the first call, whose `on_close` is due;
    /// preferably one that no thread is inside.
    pub(crate) fn next_to_close(
        &self,
        instances: impl FnOnce() -> Vec<HandlerRef<T>>,
    ) -> Option<HandlerRef<T>> {
        let mut to_close = self.to_close.lock();
        let left = to_close.get_or_insert_with(instances);
        let free = left.iter().position(|handler| !handler.lock.is_held());
        if left.is_empty() { None } else { Some(left.swap_remove(free.unwrap_or(0))) }
    }

    /// Returns the drain threads that have not ended.
    pub(crate) fn running(&self) -> &Arc<RunningThreads> {
        &self.running
    }

    // ---- expiry ---------------------------------------------------------------------------------

    /// Whether a shutdown ran out of time.
    pub(crate) fn is_expired(&self) -> bool {
        // Acquire: pairs with the Release in `expire`.
        self.expired.load(Ordering::Acquire)
    }

    /// Like [`is_expired`](Self::is_expired), under the control lock.
    pub(crate) fn is_expired_under_lock(&self) -> bool {
        // Relaxed: only written under the control lock.
        self.expired.load(Ordering::Relaxed)
    }

    /// Expires the queue, under the control lock, after the abandoned items were counted.
    pub(crate) fn expire(&self) {
        // Release: pairs with the Acquire in `is_expired`.
        self.expired.store(true, Ordering::Release);
    }
}

/// The number of registrations that each handler instance serves, which saves a scan over all
/// types.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `counts` | registration and removal, under the control lock | the same; drain threads |
#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// By the address of the instance, which the registration keeps alive. No entry is 0. This lock
    /// comes last in the order of locks.
    counts: Mutex<FxHashMap<usize, usize>>,
}

impl Serving {
    /// Counts one more type for each instance, as often as it is listed.
    pub(crate) fn add<'a, T: 'a>(&self, instances: impl Iterator<Item = &'a HandlerRef<T>>) {
        let mut counts = self.counts.lock();
        for instance in instances {
            *counts.entry(instance.address()).or_default() += 1;
        }
    }

    /// Reverses [`add`](Self::add).
    pub(crate) fn remove<'a, T: 'a>(&self, instances: impl Iterator<Item = &'a HandlerRef<T>>) {
        let mut counts = self.counts.lock();
        for instance in instances {
            let Some(count) = counts.get_mut(&instance.address()) else { continue };
            *count -= 1;
            if *count == 0 {
                counts.remove(&instance.address());
            }
        }
    }

    /// Whether the instance serves a type.
    pub(crate) fn includes<T>(&self, instance: &HandlerRef<T>) -> bool {
        self.counts.lock().contains_key(&instance.address())
    }
}

#[cfg(all(test, not(loom)))]
mod serving_tests {
    use super::*;
    use crate::flow::batch::Batch;

    #[test]
    fn an_instance_serves_until_it_has_left_each_of_its_types() {
        let serving = Serving::default();
        let [first, second] = [(); 2].map(|()| HandlerRef::new(|_: &mut Batch<u64>| {}));
        let twice = [first.clone(), first.clone()];
        serving.add(twice.iter());
        serving.add([&first, &second].into_iter());
        serving.remove(twice.iter());
        assert!(serving.includes(&first) && serving.includes(&second));
        serving.remove([&first, &second].into_iter());
        assert!(!serving.includes(&first) && !serving.includes(&second));
        assert!(serving.counts.lock().is_empty());
    }
}
