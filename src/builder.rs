//! How a queue starts: who handles its batches, and whose threads drain it.

use crate::config::{Config, ThreadPolicy, available_cores};
use crate::control::balance::control_thread;
use crate::control::scheduler::{
    PoolRef, dedicated, inline, pooled, shared_pool, sleeper, task_sleeper,
};
use crate::control::spares::Spares;
use crate::control::supervisor;
use crate::control::thread_slots::ThreadSlots;
use crate::error::ConfigError;
use crate::flow::handler::HandlerRef;
use crate::flow::handler::call_settings::CallSettings;
use crate::flow::handler::consumption::Consumption;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::handler::host::{Host, NoHost};
use crate::flow::route::TypeHandlers;
use crate::item::{Item, TypeKey};
use crate::queue::BatchQueue;
use crate::shared::Control;
use crate::sync::{Arc, Mutex};

type ConsumerFactory<T> = Box<dyn FnMut(usize) -> HandlerRef<T> + Send>;

enum Consumers<T> {
    Handlers,
    One(HandlerRef<T>),
    PerThread(ConsumerFactory<T>),
}

/// Settings of a queue that is about to start.
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
    /// A queue that is about to start; call [`Builder::start`].
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

    /// One consumer for the items of all types. Wins over handlers.
    #[must_use]
    pub fn consumer(mut self, consumer: HandlerRef<T>) -> Self {
        self.consumers = Consumers::One(consumer);
        self
    }

    /// One consumer per drain thread, made by `factory` from the thread's index, so that they run
    /// in parallel.
    #[must_use]
    pub fn consumer_per_thread(
        mut self,
        factory: impl FnMut(usize) -> HandlerRef<T> + Send + 'static,
    ) -> Self {
        self.consumers = Consumers::PerThread(Box::new(factory));
        self
    }

    /// The handler that keeps items which failed for good, by
    /// [`consume_dead_letters`](crate::Handler::consume_dead_letters), unless their type has its
    /// own. Up to `buffer_size` items wait for it; beyond that their lanes wait.
    #[must_use]
    pub fn dead_letter(mut self, handler: HandlerRef<T>) -> Self {
        self.dead_letter = Some(handler);
        self
    }

    /// The environment that the handlers need, such as an interpreter.
    #[must_use]
    pub fn host(mut self, host: impl Host<T>) -> Self {
        self.host = Arc::new(host);
        self
    }

    /// Drains on a pool that several queues share. `threads` sets its size when the first of them
    /// starts, and it ends with the last. The queue has one drain task there, whatever
    /// [`Config::threads`] says, and is not balanced.
    #[must_use]
    pub fn shared_scheduler(mut self, name: impl Into<String>, threads: ThreadPolicy) -> Self {
        self.shared_scheduler = Some((name.into(), threads));
        self
    }

    /// No thread drains the queue: callers do, by [`BatchQueue::run_inline`]. For tests.
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
        // Threads that belong to the queue, also beside a pool.
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
            (Some(share), Some(sleeper)) => pooled::start_pooled(&queue.control, sleeper, share),
            (None, Some(sleeper)) if self.is_inline => {
                inline::start_inline(&queue.control, sleeper)
            }
            (_, last) => {
                sleepers.extend(last);
                *queue.joins.lock() = dedicated::start_dedicated(&queue.control, sleepers)?;
            }
        }
        if queue.control.balancing.is_some() {
            control_thread::register(&queue.control).map_err(|cause| {
                ConfigError(format!("cannot start the control thread: {cause}"))
            })?;
        }
        Ok(queue)
    }

    /// The queue's share in the pool that it requested, if it requested one.
    fn take_share(&mut self) -> Result<Option<Arc<PoolRef>>, ConfigError> {
        let Some((pool, threads)) = self.shared_scheduler.take() else { return Ok(None) };
        let size = threads.resolve(available_cores());
        let (share, other) = shared_pool(&pool, size, pooled::live_of(self.host.clone()))
            .map_err(|cause| ConfigError(pooled::no_threads(&pool, size, &cause)))?;
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
