//! Which handlers get the batches of a queue.

use crate::flow::handler::HandlerRef;
use crate::flow::route::TypeHandlers;
use crate::sync::Arc;

/// Which handlers get the batches.
pub(crate) enum Consumption<T> {
    /// The handler of each type.
    ByHandler,
    /// One for all types.
    OneConsumer(Arc<TypeHandlers<T>>),
    /// One per drain thread, for all types.
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

    /// The consumer whose `on_idle` and `on_close` the drain thread calls.
    pub(crate) fn side_called_by(&self, thread: usize) -> Option<HandlerRef<T>> {
        match self {
            Self::ByHandler => None,
            Self::OneConsumer(consumer) => (thread == 0).then(|| consumer.handlers[0].clone()),
            Self::PerThread(consumers) => {
                let mine = &consumers[thread].handlers[0];
                // One instance for several threads: the first of them calls it.
                let known = consumers[..thread].iter().any(|other| other.handlers[0].is(mine));
                (!known).then(|| mine.clone())
            }
        }
    }
}
