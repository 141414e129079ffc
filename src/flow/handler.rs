//! Handlers and their batches.

pub(crate) mod batch;
pub(crate) mod call_settings;
pub(crate) mod consumption;
pub(crate) mod dispatch_log;
pub(crate) mod host;

use std::fmt;

use crate::flow::desk::Desk;
use crate::sync::Arc;

pub use batch::{Batch, Drain};

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
}

impl Failure {
    /// A failure that the queue logs and may retry.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), reported: false, retry: true, in_part: false }
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

/// Handles the batches of one type, or of a whole queue.
///
/// **Exclusive (P1):** calls of one [`HandlerRef`] never overlap, whatever thread, type or queue
/// they come from. A panic fails only its own batch.
pub trait Handler<T>: Send + Sync {
    /// Handles one batch of 1 to `max_batch_items` items.
    ///
    /// # Errors
    /// The batch could not be handled, and all its items count as failed; or only those that are
    /// left in it: see [`Failure::of_rest`].
    fn consume(&self, batch: &mut Batch<T>) -> Result<(), Failure>;

    /// Whether `consume` must run inside [`Host::enter`](crate::Host::enter). If no handler of a
    /// partition needs it, the drain thread does not enter the host for that partition.
    fn needs_host(&self) -> bool {
        true
    }

    /// Whether [`on_idle`](Self::on_idle) does anything. If not, the handler costs an idle queue
    /// nothing.
    fn has_on_idle(&self) -> bool {
        false
    }

    /// Called after an empty cycle of the drain thread that owns the handler.
    ///
    /// # Errors
    /// Logged but not counted, because no item is involved.
    fn on_idle(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Called once per queue, after the handler's last batch.
    ///
    /// # Errors
    /// Logged but not counted, because no item is involved.
    fn on_close(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether another thread, such as an event loop, does the work while the drain thread waits
    /// for it. On a shared pool another worker replaces the one that waits.
    fn works_elsewhere(&self) -> bool {
        false
    }

    /// The handler's name in logs and statistics.
    fn name(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }
}

impl<T, F: Fn(&mut Batch<T>) + Send + Sync> Handler<T> for F {
    fn consume(&self, batch: &mut Batch<T>) -> Result<(), Failure> {
        self(batch);
        Ok(())
    }
}

/// A handler instance with its desk. Clones refer to the same instance: even if it is
/// registered for several types or on several queues, only one thread is inside at a time.
pub struct HandlerRef<T> {
    pub(crate) handler: Arc<dyn Handler<T>>,
    pub(crate) desk: Arc<Desk>,
}

impl<T> HandlerRef<T> {
    /// Creates an instance with a new desk.
    pub fn new(handler: impl Handler<T> + 'static) -> Self {
        Self::with_desk(Arc::new(handler), Arc::new(Desk::default()))
    }

    /// Creates an instance that shares `desk` with others: only one of them is entered at a time.
    pub fn with_desk(handler: Arc<dyn Handler<T>>, desk: Arc<Desk>) -> Self {
        Self { handler, desk }
    }

    /// The instance's identity.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.handler).cast::<()>() as usize
    }

    /// Whether both are the same instance.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl<T> Clone for HandlerRef<T> {
    fn clone(&self) -> Self {
        Self { handler: self.handler.clone(), desk: self.desk.clone() }
    }
}

impl<T> fmt::Debug for HandlerRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandlerRef").field(&self.handler.name()).finish()
    }
}
