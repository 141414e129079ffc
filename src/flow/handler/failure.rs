//! What went wrong in a call, and the items that failed for good with it.

use std::any::Any;
use std::fmt;

use crate::flow::handler::batch::Batch;
use crate::sync::Arc;

/// Why a handler failed to handle a batch, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong, for the log.
    pub message: String,
    /// Whether the failure has been reported already; if not, the queue logs it.
    pub reported: bool,
    /// Whether a retry may help. A batch that lost items is never retried.
    pub retry: bool,
    /// Whether only the items failed that are still in the batch, and those that were taken out
    /// were handled. Otherwise all of them failed.
    pub in_part: bool,
    /// The error itself, for a handler of dead letters.
    pub cause: Option<Cause>,
}

impl Failure {
    /// A failure that the queue logs and may retry.
    pub fn new(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { message, reported: false, retry: true, in_part: false, cause: None }
    }

    /// A failure of the items that are still in the batch. Those that the handler took out, with
    /// [`Batch::drain`] or [`Batch::keep`], count as consumed. The queue logs it, and may retry the
    /// items that failed, but does not halve them.
    pub fn of_rest(message: impl Into<String>) -> Self {
        Self { in_part: true, ..Self::new(message) }
    }

    /// A failure that the queue logs and does not retry.
    pub fn last(message: impl Into<String>) -> Self {
        Self { retry: false, ..Self::new(message) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// What made items fail, for the handler that gets them as [`DeadLetters`].
#[derive(Clone)]
pub struct Cause(Arc<dyn Any + Send + Sync>);

impl Cause {
    /// Keeps an error.
    pub fn new(error: impl Any + Send + Sync) -> Self {
        Self(Arc::new(error))
    }

    /// The error, if it is of this type.
    pub fn downcast_ref<E: Any>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cause").finish_non_exhaustive()
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Cause {}

/// Items that failed for good in one call, of one type unless the queue has a consumer.
#[derive(Debug)]
pub struct DeadLetters<T> {
    /// The items, in order.
    pub items: Batch<T>,
    /// Why they failed in their last attempt.
    pub failure: Failure,
    /// The attempts, the first included.
    pub attempts: u32,
}
