//! The queue: connects the data plane to its drain threads. Running → closing → closed.

use std::fmt;

use crate::config::{Config, Selector, ThreadPolicy, available_cores};
use crate::control::log_helper::last_patience;
use crate::control::state::Control;
use crate::control::{drains, rebalancer, supervisor};
use crate::error::{AddHandlerError, ConfigError, FlushError, ProduceError};
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::handler::{HandlerRef, Handlers, Host, NoHost};
use crate::flow::partition::Access;
use crate::flow::produce::pending::{Line, TryProduceError};
use crate::flow::route::retirements::Retired;
use crate::flow::route::type_handlers::{CallSettings, Consumption, TypeHandlers};
use crate::flow::state::Flow;
use crate::item::{HandledType, Item, TypeKey};
use crate::observe::{HandlerHistograms, Stats};
use crate::sync::{Arc, Instant, JoinHandle, Mutex, Weak};
use crate::threads::context::on_drain_thread;
use crate::threads::park::{sleeper, task_sleeper};
use crate::threads::pools::{PoolRef, shared_pool};
use crate::threads::slots::{Spares, ThreadSlots};
use crate::threads::waits::{Pause, Wait};

/// A partitioned queue that drains itself: any thread puts items in, and the handler of each type
/// gets them in batches.
///
/// Dropping the queue closes it without waiting: accepted items are still delivered, and then the
/// drain threads end. Call [`shutdown`](Self::shutdown) to wait for that.
///
/// ```
/// use batchqueue::{BatchQueue, Batch, Config, HandlerRef, Item, TypeKey};
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering::Relaxed}};
///
/// #[derive(Debug)]
/// struct Word(&'static str);
/// impl Item for Word {
///     fn type_key(&self) -> TypeKey { TypeKey(1) }
/// }
///
/// let letters = Arc::new(AtomicU64::new(0));
/// let count = letters.clone();
/// let queue = BatchQueue::builder("words", Config::default()).start().unwrap();
/// queue.add_handler(TypeKey(1), HandlerRef::new(move |batch: &mut Batch<Word>| {
///     count.fetch_add(batch.drain().map(|word| word.0.len() as u64).sum(), Relaxed);
/// })).unwrap();
/// queue.produce(Word("hello")).unwrap();
/// assert_eq!(queue.shutdown(None), 0);
/// assert_eq!(letters.load(Relaxed), 5);
/// ```
pub struct BatchQueue<T: Item> {
    pub(crate) flow: Arc<Flow<T>>,
    pub(crate) control: Arc<Control<T>>,
    pub(crate) joins: Mutex<Vec<JoinHandle<()>>>,
}

impl<T: Item> BatchQueue<T> {
    /// Returns the queue's name.
    pub fn name(&self) -> &str {
        &self.flow.name
    }

    /// Whether any thread may put items in.
    pub fn is_running(&self) -> bool {
        self.control.state.lock().access == Access::Open
    }

    /// Whether the queue is shut down and its last drain thread has ended.
    pub fn has_ended(&self) -> bool {
        self.flow.ending.running().is_empty()
    }

    /// Sends the items of a type to a handler from now on, in place of any previous one. Under an
    /// adaptive policy, this may add partitions. A type keeps its partition until it has
    /// [gone](Self::remove_handler).
    ///
    /// A replaced handler finishes its current batch and then gets `on_close`, unless it serves
    /// another type of this queue. All other items go to the new handler. When this returns, no
    /// thread is inside the old one. A drain thread that is inside no handler makes the last call;
    /// called on a drain thread, this does not wait for it.
    ///
    /// # Errors
    /// The queue is shut down.
    pub fn add_handler(
        &self,
        item_type: impl Into<HandledType>,
        handler: HandlerRef<T>,
    ) -> Result<(), AddHandlerError> {
        self.add_handler_with(item_type, vec![handler], &mut Wait)
    }

    /// [`add_handler`](Self::add_handler) for a hot type: each handler gets its own partition, and
    /// items are spread evenly over them. Order holds per partition only.
    ///
    /// # Errors
    /// As [`add_handler`](Self::add_handler); also if `handlers` is empty or longer than the number
    /// of partitions, if the type already has a different number of partitions, or if the selector
    /// is not by type.
    pub fn add_handlers(
        &self,
        item_type: impl Into<HandledType>,
        handlers: Vec<HandlerRef<T>>,
    ) -> Result<(), AddHandlerError> {
        self.add_handler_with(item_type, handlers, &mut Wait)
    }

    /// [`add_handlers`](Self::add_handlers) with a handler for dead letters and a custom wait.
    ///
    /// # Errors
    /// As [`add_handlers`](Self::add_handlers); also if `pause` ended the wait. The new handler is
    /// then in place, and the old one retires in the background.
    pub fn add_handler_with<P: Pause>(
        &self,
        item_type: impl Into<HandledType>,
        handlers: impl Into<Handlers<T>>,
        pause: &mut P,
    ) -> Result<(), AddHandlerError<P::Interrupt>> {
        let retired = self.control.register(&item_type.into(), handlers.into())?;
        wait_for_retired(retired, None, pause).map(drop).map_err(AddHandlerError::Interrupted)
    }

    /// Removes a type's handler: its items are unhandled from now on. Returns `false` if the type
    /// has no handler or the queue is shut down.
    ///
    /// The handler finishes its current batch and then gets `on_close`, unless it serves another
    /// type of this queue. When this returns, no thread is inside it. A drain thread that is inside
    /// no handler, if need be a spare one, makes the last call; called on a drain thread, this does
    /// not wait for it.
    ///
    /// Once everything that was in its partition at the removal is settled, the type has *gone*:
    /// the queue keeps nothing of it, and the next new type gets its partition.
    pub fn remove_handler(&self, key: TypeKey) -> bool {
        match self.remove_handler_with(key, None, &mut Wait) {
            Ok(removed) => removed,
            Err(never) => match never {},
        }
    }

    /// [`remove_handler`](Self::remove_handler) with a deadline and a custom wait. Also returns
    /// `false` if the deadline passes before the old handler has returned: the type then has no
    /// handler, and the old one retires in the background.
    ///
    /// # Errors
    /// `pause` ended the wait, with the same outcome.
    pub fn remove_handler_with<P: Pause>(
        &self,
        key: TypeKey,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<bool, P::Interrupt> {
        let retired = self.control.unregister(key);
        let removed = retired.is_some();
        let ended = wait_for_retired(retired, deadline, pause);
        if removed {
            self.control.after_retirement();
        }
        ended.map(|ended| removed && ended)
    }

    /// Puts one item in, waiting for space if the strategy says so.
    ///
    /// Costs one route lookup, one lock and one append, unless it waits.
    ///
    /// # Errors
    /// The item is refused and returned: the partition is full, the queue is shut down, or the
    /// caller is a handler whose wait would never end.
    pub fn produce(&self, item: T) -> Result<(), ProduceError<T>> {
        self.produce_with(item, None, None, &mut Wait)
    }

    /// [`produce`](Self::produce) with a partition chosen by the caller, a deadline and a custom
    /// wait. The item counts as one: use [`produce_weighted`](Self::produce_weighted) for heavier
    /// ones.
    ///
    /// # Errors
    /// As [`produce`](Self::produce); also if the deadline has passed, or if `pause` ended the
    /// wait.
    ///
    /// # Panics
    /// `partition` is not below [`partition_count`](Self::partition_count).
    #[allow(clippy::inline_always)] // as `Partition::put`
    #[inline(always)]
    pub fn produce_with<P: Pause>(
        &self,
        item: T,
        partition: Option<usize>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), ProduceError<T, P::Interrupt>> {
        self.flow.produce(item, partition, deadline, pause)
    }

    /// Puts an item in by its [`weight`](Item::weight), cut in pieces if it does not fit whole. An
    /// error returns the refused part: the whole item, or the rest.
    ///
    /// With [`Blocking`](crate::config::BufferStrategy::Blocking), pieces are at least half a
    /// buffer. With [`IfPossible`](crate::config::BufferStrategy::IfPossible), one piece as large
    /// as the room goes in.
    ///
    /// # Errors
    /// As [`produce_with`](Self::produce_with).
    pub fn produce_weighted<P: Pause>(
        &self,
        item: T,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), ProduceError<T, P::Interrupt>> {
        self.flow.produce_weighted(item, deadline, pause)
    }

    /// Puts items in, in order, up to the first that is refused. The rest stays in `items`. Each
    /// item counts as one.
    ///
    /// # Errors
    /// As [`produce_with`](Self::produce_with), for that item.
    pub fn produce_many<P: Pause>(
        &self,
        items: &mut std::vec::IntoIter<T>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), ProduceError<T, P::Interrupt>> {
        self.flow.produce_many(items, deadline, pause)
    }

    /// Puts one item in without waiting, for callers that listen for room instead; see
    /// [`PendingItem`](crate::flow::produce::pending::PendingItem). If `is_awaited` reports that
    /// others wait in the item's line, the item becomes pending immediately, so that it does not
    /// overtake them.
    ///
    /// # Errors
    /// The item is pending, or refused as by [`produce`](Self::produce).
    ///
    /// # Panics
    /// `partition` is not below [`partition_count`](Self::partition_count).
    pub fn try_produce(
        &self,
        item: T,
        partition: Option<usize>,
        is_awaited: &dyn Fn(Line) -> bool,
    ) -> Result<(), TryProduceError<T>> {
        self.flow.try_produce(item, partition, is_awaited)
    }

    /// Puts items in without waiting, in order, up to the first that is pending or refused. The
    /// rest stay in `items`.
    ///
    /// # Errors
    /// As [`try_produce`](Self::try_produce), for that item.
    pub fn try_produce_many(
        &self,
        items: &mut std::vec::IntoIter<T>,
    ) -> Result<(), TryProduceError<T>> {
        self.flow.try_produce_many(items)
    }

    /// Returns how many items of a line would find room now. Returns `buffer_size` if the partition
    /// no longer accepts items, so that a caller that waits for room tries again.
    ///
    /// # Panics
    /// The partition of `line` is not below [`partition_count`](Self::partition_count).
    pub fn room(&self, line: Line) -> usize {
        self.flow.room(line)
    }

    /// Waits until all items accepted before the call are handled. Returns `false` if the deadline
    /// passes, or if a shutdown abandoned items.
    ///
    /// # Errors
    /// The caller is a drain thread, which would wait for itself; or `pause` ended the wait.
    pub fn flush<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<bool, FlushError<P::Interrupt>> {
        self.control.flush(deadline, pause)
    }

    /// Runs the balancer now, over the time since its last run, and returns the number of
    /// partitions whose wanted owner changed; 0 without a balancer. These have moved when this
    /// returns, except those whose owner is just then taking from them, which move a few
    /// microseconds later.
    ///
    /// On a drain thread this only requests a run, and inside a balancer it does nothing; either
    /// way it returns 0.
    pub fn rebalance(&self) -> usize {
        if on_drain_thread() {
            self.control.rebalance_soon();
            return 0;
        }
        self.control.rebalance()
    }

    /// Closes the queue to all threads but drain threads, which still finish their queues' items.
    ///
    /// `deadline` is that of the shutdown that will follow once other queues have ended. Failed
    /// batches get their last try before it, even if that shutdown begins too late to ensure this.
    pub fn close_to_outside(&self, deadline: Option<Instant>) {
        self.control.close_to_outside(deadline);
    }

    /// Closes the queue: later puts are refused, and accepted items are delivered. Does not wait.
    pub fn close(&self) {
        self.control.close();
    }

    /// Closes the queue, waits until all accepted items are handled and `on_close` has run, and
    /// returns the number of abandoned items: 0 unless the deadline passed. Further callers wait
    /// for the same end.
    ///
    /// On a drain thread of this queue, closes it and returns immediately.
    pub fn shutdown(&self, deadline: Option<Instant>) -> u64 {
        match self.shutdown_with(deadline, &mut Wait) {
            Ok(abandoned) => abandoned,
            Err(never) => match never {},
        }
    }

    /// [`shutdown`](Self::shutdown) with a custom wait.
    ///
    /// # Errors
    /// `pause` ended the wait. The queue is closed and continues to deliver; call again to wait for
    /// its end.
    pub fn shutdown_with<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<u64, P::Interrupt> {
        let abandoned = self.end_with(deadline, pause)?;
        self.wait_logged(last_patience(deadline), pause)?;
        Ok(abandoned)
    }

    /// [`shutdown_with`](Self::shutdown_with) without the wait for the log.
    pub(crate) fn end_with<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<u64, P::Interrupt> {
        let abandoned = self.control.end(deadline, pause)?;
        if self.flow.ending.running().is_empty() {
            // The threads have ended, so the joins do not wait. A panic was reported when it
            // happened.
            for thread in std::mem::take(&mut *self.joins.lock()) {
                drop(thread.join());
            }
        }
        Ok(abandoned)
    }

    /// Waits until the queue's lines are in the log, at most until `latest`. A drain thread does
    /// not wait.
    pub(crate) fn wait_logged<P: Pause>(
        &self,
        latest: Instant,
        pause: &mut P,
    ) -> Result<(), P::Interrupt> {
        if on_drain_thread() {
            return Ok(());
        }
        self.control.log_helper.wait_written(latest, pause)
    }

    /// Returns a reference that keeps nothing alive, for code that closes all queues when the
    /// process exits. It still reaches a dropped queue whose drain threads are delivering items.
    pub fn downgrade(&self) -> WeakQueue<T> {
        WeakQueue::of(&self.control)
    }

    /// Returns a snapshot of counts and usage.
    pub fn stats(&self) -> Stats {
        self.control.stats()
    }

    /// Returns the histograms of the types in [`Stats::handlers`], in the same order unless a type
    /// is added or removed between the calls.
    pub fn histograms(&self) -> Vec<(TypeKey, HandlerHistograms)> {
        self.control.histograms()
    }

    /// If no thread drains the queue, handles the accepted items, or ends the queue if it is
    /// closed. Items that still wait at the deadline stay in the queue.
    ///
    /// # Errors
    /// `pause` ended the wait for a batch that backs off, or for another caller.
    #[cfg(feature = "python")]
    pub(crate) fn run_inline<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), P::Interrupt> {
        let mut is_over = false;
        while !is_over {
            pause.pause(&mut |limit| {
                is_over = self.control.run_inline(crate::threads::waits::slice(limit, deadline))
                    || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            })?;
        }
        Ok(())
    }

    /// Returns the capacity of each partition.
    #[cfg(feature = "python")]
    pub(crate) fn buffer_size(&self) -> usize {
        self.flow.config.buffer_size
    }

    /// Whether no thread drains the queue.
    #[cfg(feature = "python")]
    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        self.control.is_inline()
    }

    /// Returns the number of partitions, which `add_handler` may raise.
    pub fn partition_count(&self) -> usize {
        self.flow.route.partition_count()
    }

    /// Returns the selector that the queue was created with.
    pub fn selector(&self) -> Selector {
        self.flow.config.selector
    }
}

/// Waits for a handler's retirement. Returns `false` if the deadline passed first. Does not wait on
/// a drain thread.
fn wait_for_retired<P: Pause>(
    retired: Option<Arc<Retired>>,
    deadline: Option<Instant>,
    pause: &mut P,
) -> Result<bool, P::Interrupt> {
    let retired = retired.filter(|_| !on_drain_thread());
    retired.map_or(Ok(true), |retired| retired.wait_for_end(deadline, pause))
}

impl<T: Item> Drop for BatchQueue<T> {
    fn drop(&mut self) {
        self.control.close();
    }
}

impl<T: Item> fmt::Debug for BatchQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchQueue").field("name", &self.flow.name).finish_non_exhaustive()
    }
}

// The start of a queue: its consumers, and the threads that drain it.

type ConsumerFactory<T> = Box<dyn FnMut(usize) -> HandlerRef<T> + Send>;

enum Consumers<T> {
    Handlers,
    One(HandlerRef<T>),
    PerThread(ConsumerFactory<T>),
}

/// The settings of a queue that has not started yet.
pub struct Builder<T: Item> {
    name: String,
    config: Config,
    consumers: Consumers<T>,
    dead_letter: Option<HandlerRef<T>>,
    host: Arc<dyn Host<T>>,
    shared_scheduler: Option<(String, ThreadPolicy)>,
    is_inline: bool,
}

impl<T: Item> BatchQueue<T> {
    /// Returns a builder; call [`Builder::start`] to start the queue.
    pub fn builder(name: impl Into<String>, config: Config) -> Builder<T> {
        Builder::new(name.into(), config)
    }
}

impl<T: Item> Builder<T> {
    fn new(name: String, config: Config) -> Self {
        Self {
            name,
            config,
            consumers: Consumers::Handlers,
            dead_letter: None,
            host: Arc::new(NoHost),
            shared_scheduler: None,
            is_inline: false,
        }
    }

    /// Sets one consumer for the items of all types, which takes precedence over handlers.
    #[must_use]
    pub fn consumer(mut self, consumer: HandlerRef<T>) -> Self {
        self.consumers = Consumers::One(consumer);
        self
    }

    /// Sets one consumer per drain thread, so that they run in parallel. `factory` gets the
    /// thread's index.
    #[must_use]
    pub fn consumer_per_thread(
        mut self,
        factory: impl FnMut(usize) -> HandlerRef<T> + Send + 'static,
    ) -> Self {
        self.consumers = Consumers::PerThread(Box::new(factory));
        self
    }

    /// Sets the handler that gets items that failed for good, by
    /// [`consume_dead_letters`](crate::flow::handler::Handler::consume_dead_letters), unless their
    /// type has its own. Up to `buffer_size` items wait for it; beyond that, their lanes wait.
    #[must_use]
    pub fn dead_letter(mut self, handler: HandlerRef<T>) -> Self {
        self.dead_letter = Some(handler);
        self
    }

    /// Sets the environment that the handlers need, such as an interpreter.
    #[must_use]
    pub fn host(mut self, host: impl Host<T>) -> Self {
        self.host = Arc::new(host);
        self
    }

    /// Drains the queue on a pool that several queues share. `threads` sets the pool's size when
    /// the first of them starts; the pool ends with the last. The queue has one drain task there,
    /// whatever [`Config::threads`] says, and is not balanced.
    #[must_use]
    pub fn shared_scheduler(mut self, name: impl Into<String>, threads: ThreadPolicy) -> Self {
        self.shared_scheduler = Some((name.into(), threads));
        self
    }

    /// Lets callers drain the queue with [`BatchQueue::run_inline`], instead of threads. For tests.
    #[cfg(feature = "python")]
    #[must_use]
    pub(crate) fn inline(mut self, is_inline: bool) -> Self {
        self.is_inline = is_inline;
        self
    }

    /// Starts the drain threads.
    ///
    /// # Errors
    /// A setting is out of range, or the system has no thread left.
    pub fn start(mut self) -> Result<BatchQueue<T>, ConfigError> {
        self.config.validate()?;
        self.config = std::mem::take(&mut self.config).with_bounded_times();
        if self.is_inline {
            self.config = std::mem::take(&mut self.config).inline();
        }
        let share = self.take_share()?;
        let (threads, _, warning) = self.config.resolve(available_cores());
        if let Some(warning) = warning {
            self.host.log(&format!("queue {}: {warning}", self.name));
        }
        let most_letters = self.config.buffer_size;
        let dead_letter = self.dead_letter.map(|handler| DeadLetterBox::new(handler, most_letters));
        let consumer_of = |config: &Config, number, handler| {
            let registered = consumer_of_all_types(config, number, handler);
            Arc::new(registered.with_dead_letter(dead_letter.clone()))
        };
        let consumption = match self.consumers {
            Consumers::Handlers => Consumption::ByHandler,
            Consumers::One(consumer) => {
                Consumption::OneConsumer(consumer_of(&self.config, 0, consumer))
            }
            Consumers::PerThread(mut factory) => Consumption::PerThread(
                (0..threads)
                    .map(|thread| consumer_of(&self.config, thread, factory(thread)))
                    .collect(),
            ),
        };
        let on_threads = share.is_none() && !self.is_inline;
        let make_sleeper = if on_threads { sleeper } else { task_sleeper };
        let can_share = !matches!(consumption, Consumption::PerThread(_));
        let spares = self.config.spares(threads, can_share)?;
        let (mut sleepers, mut wakers): (Vec<_>, Vec<_>) =
            (0..threads).map(|_| make_sleeper()).unzip();
        // Spare threads belong to the queue, even if a pool drains it.
        let (spares, their_wakers): (Vec<_>, Vec<_>) = (0..spares).map(|_| sleeper()).unzip();
        wakers.extend(their_wakers);
        let spares = Spares::new(threads, spares);
        let pool = share.as_ref().map(|share| share.pool().clone());
        let control = Arc::new(Control::new(
            self.name,
            self.config,
            consumption,
            dead_letter,
            self.host,
            ThreadSlots::new(wakers, spares),
            pool,
        ));
        supervisor::register(&control);
        control.start_watch();
        let queue =
            BatchQueue { flow: control.flow.clone(), control, joins: Mutex::new(Vec::new()) };
        match (share, sleepers.pop()) {
            (Some(share), Some(sleeper)) => drains::start_pooled(&queue.control, sleeper, share),
            (None, Some(sleeper)) if self.is_inline => {
                drains::start_inline(&queue.control, sleeper);
            }
            (_, last) => {
                sleepers.extend(last);
                *queue.joins.lock() = drains::start_dedicated(&queue.control, sleepers)?;
            }
        }
        if queue.control.balancing.is_some() {
            rebalancer::register(&queue.control).map_err(|cause| {
                ConfigError(format!("cannot start the control thread: {cause}"))
            })?;
        }
        Ok(queue)
    }

    /// Returns the queue's share of a pool, if it asked for one.
    fn take_share(&mut self) -> Result<Option<Arc<PoolRef>>, ConfigError> {
        let Some((pool, threads)) = self.shared_scheduler.take() else { return Ok(None) };
        let size = threads.resolve(available_cores());
        let (share, other) = shared_pool(&pool, size, drains::live_of(self.host.clone()))
            .map_err(|cause| ConfigError(drains::no_threads(&pool, size, &cause)))?;
        if let Some(known) = other {
            self.host.log(&format!(
                "queue {}: the shared scheduler {pool:?} exists with {known} threads; the {size} \
                 asked for now are ignored",
                self.name
            ));
        }
        self.config = std::mem::take(&mut self.config).on_shared_pool();
        Ok(Some(share))
    }
}

fn consumer_of_all_types<T>(
    config: &Config,
    number: usize,
    handler: HandlerRef<T>,
) -> TypeHandlers<T> {
    let (name, settings) = (handler.handler.name(), CallSettings::of_queue(config));
    TypeHandlers::new(TypeKey::CONSUMER, number, &name, vec![handler], settings)
}

// A reference to a queue that keeps nothing alive.

/// A weak reference to a queue.
#[derive(Debug)]
pub struct WeakQueue<T: Item>(Weak<Control<T>>);

impl<T: Item> WeakQueue<T> {
    pub(crate) fn of(control: &Arc<Control<T>>) -> Self {
        Self(Arc::downgrade(control))
    }

    /// Whether neither the queue nor any of its drain threads exists anymore.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// [`BatchQueue::close_to_outside`], if the queue still exists.
    pub fn close_to_outside(&self, deadline: Option<Instant>) {
        self.with(|control| control.close_to_outside(deadline));
    }

    /// Whether all items that the queue accepted are handled, or the queue is gone.
    #[cfg(feature = "python")]
    pub(crate) fn is_all_handled(&self) -> bool {
        self.with(|control| control.is_all_handled()).unwrap_or(true)
    }

    /// Does what [`BatchQueue::end_with`] does before it joins the threads, if the queue still
    /// exists.
    #[cfg(feature = "python")]
    pub(crate) fn end_with<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), P::Interrupt> {
        self.with(|control| control.end(deadline, pause).map(drop)).unwrap_or(Ok(()))
    }

    /// [`BatchQueue::wait_logged`], if the queue still exists; not for a drain thread, which would
    /// wait for itself.
    #[cfg(feature = "python")]
    pub(crate) fn wait_logged<P: Pause>(
        &self,
        latest: Instant,
        pause: &mut P,
    ) -> Result<(), P::Interrupt> {
        self.with(|control| control.log_helper.wait_written(latest, pause)).unwrap_or(Ok(()))
    }

    /// Calls `act` if the queue still exists, and then drops the reference, which may be the last.
    fn with<R>(&self, act: impl FnOnce(&Arc<Control<T>>) -> R) -> Option<R> {
        let control = self.0.upgrade()?;
        let result = act(&control);
        Control::let_go(control);
        Some(result)
    }
}
