//! The handlers of one type, and the target of a batch among them.

use smallvec::SmallVec;

use crate::config::{Config, LONGEST, MAX_BUFFER_SIZE, RetryPolicy, check_delay, within};
use crate::error::ConfigError;
use crate::flow::handler::HandlerRef;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::handler::lock::Purpose;
use crate::item::{HandledType, TypeKey};
use crate::observe::HandlerTally;
use crate::sync::{Arc, Duration};

/// Partitions of a type, by index: nearly always one.
pub(crate) type Partitions = SmallVec<[usize; 1]>;

/// The handler or handlers of one type.
pub(crate) struct TypeHandlers<T> {
    pub(crate) key: TypeKey,
    /// The number of the type in order of registration, or of the consumer among the consumers.
    pub(crate) number: usize,
    pub(crate) name: Arc<str>,
    /// One handler for all partitions of the type, or one for each.
    pub(crate) handlers: Vec<HandlerRef<T>>,
    /// The partition of the type, or all those that it is spread over; none for a consumer.
    pub(crate) partitions: Partitions,
    pub(crate) settings: CallSettings,
    /// The box for items that fail for good.
    pub(crate) dead_letter: Option<Arc<DeadLetterBox<T>>>,
    pub(crate) tally: HandlerTally,
}

impl<T> TypeHandlers<T> {
    pub(crate) fn new(
        key: TypeKey,
        number: usize,
        name: &str,
        handlers: Vec<HandlerRef<T>>,
        settings: CallSettings,
    ) -> Self {
        Self {
            key,
            number,
            name: name.into(),
            handlers,
            partitions: Partitions::new(),
            settings,
            dead_letter: None,
            tally: HandlerTally::default(),
        }
    }

    /// Sets the partitions of the type.
    pub(crate) fn in_partitions(self, partitions: Partitions) -> Self {
        Self { partitions, ..self }
    }

    pub(crate) fn with_dead_letter(self, dead_letter: Option<Arc<DeadLetterBox<T>>>) -> Self {
        Self { dead_letter, ..self }
    }

    /// Returns all instances, including that of the dead letters.
    pub(crate) fn instances(&self) -> impl Iterator<Item = &HandlerRef<T>> {
        let keeper = self.dead_letter.iter().map(|letter_box| &letter_box.handler);
        self.handlers.iter().chain(keeper)
    }

    /// Returns the purpose of their calls under a handler lock.
    pub(crate) fn purpose(&self) -> Purpose {
        Purpose::Batch(std::ptr::from_ref(self) as usize)
    }

    pub(crate) fn needs_host(&self) -> bool {
        self.handlers.iter().any(|instance| instance.handler.needs_host())
    }
}

/// The destination of a group of items: one handler instance of a type.
pub(crate) struct Target<T> {
    pub(crate) registered: Arc<TypeHandlers<T>>,
    pub(super) instance: usize,
}

impl<T> Target<T> {
    pub(crate) fn only(registered: Arc<TypeHandlers<T>>) -> Self {
        Self { registered, instance: 0 }
    }

    pub(crate) fn handler(&self) -> &HandlerRef<T> {
        &self.registered.handlers[self.instance]
    }
}

// The handlers that get the batches of a queue.

/// The handlers that get the batches of a queue.
pub(crate) enum Consumption<T> {
    /// The handler of each type.
    ByHandler,
    /// One consumer for all types.
    OneConsumer(Arc<TypeHandlers<T>>),
    /// One consumer per drain thread, for all types.
    PerThread(Vec<Arc<TypeHandlers<T>>>),
}

impl<T> Consumption<T> {
    pub(crate) fn is_by_handler(&self) -> bool {
        matches!(self, Self::ByHandler)
    }

    /// Whether a handler instance is the queue's consumer, or one of them.
    pub(crate) fn includes(&self, handler: &HandlerRef<T>) -> bool {
        match self {
            Self::ByHandler => false,
            Self::OneConsumer(consumer) => consumer.handlers[0].is(handler),
            Self::PerThread(consumers) => {
                consumers.iter().any(|consumer| consumer.handlers[0].is(handler))
            }
        }
    }

    /// Returns the consumer whose `on_idle` and `on_close` the drain thread calls.
    pub(crate) fn side_called_by(&self, thread: usize) -> Option<HandlerRef<T>> {
        match self {
            Self::ByHandler => None,
            Self::OneConsumer(consumer) => (thread == 0).then(|| consumer.handlers[0].clone()),
            Self::PerThread(consumers) => {
                let mine = &consumers[thread].handlers[0];
                // If several threads share an instance, the first of them calls it.
                let known = consumers[..thread].iter().any(|other| other.handlers[0].is(mine));
                (!known).then(|| mine.clone())
            }
        }
    }
}

// The call settings of a type: its own, or else the queue's.

/// How the handlers of one type are called.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CallSettings {
    /// The most items that a call may get.
    pub(crate) max_batch_items: usize,
    /// How long an item may wait for its batch to become full; `None` if not at all.
    pub(crate) max_delay: Option<Duration>,
    pub(crate) retry: Option<RetryPolicy>,
}

impl CallSettings {
    pub(crate) fn of_queue(config: &Config) -> Self {
        let Config { max_batch_items, max_delay, retry, .. } = *config;
        let max_delay = max_delay.filter(|delay| !delay.is_zero());
        Self { max_batch_items, max_delay, retry }
    }

    /// # Errors
    /// A setting of the type is out of range, or conflicts with the others.
    pub(crate) fn of_type(config: &Config, item_type: &HandledType) -> Result<Self, ConfigError> {
        let name = &item_type.name;
        let max_batch_items = item_type.max_batch_items.unwrap_or(config.max_batch_items);
        within(&format!("{name}: max_batch_items"), max_batch_items, MAX_BUFFER_SIZE)?;
        let max_delay = item_type.max_delay.or(config.max_delay).filter(|delay| !delay.is_zero());
        check_delay(&format!("{name}: "), max_delay, max_batch_items)?;
        item_type.retry.as_ref().map_or(Ok(()), RetryPolicy::validate)?;
        Ok(Self {
            max_batch_items,
            max_delay: max_delay.map(|delay| delay.min(LONGEST)),
            retry: item_type.retry.map(RetryPolicy::with_bounded_times).or(config.retry),
        })
    }
}
