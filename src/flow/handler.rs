//! Handlers, and the host that they run in.

pub(crate) mod dead_letters;
pub(crate) mod dispatch_log;
pub(crate) mod lock;
pub(crate) mod slow_calls;

use std::fmt;

use crate::flow::batch::{Batch, DeadLetters, Failure};
use crate::flow::handler::lock::HandlerLock;
use crate::item::{Item, TypeKey};
use crate::sync::Arc;
use crate::threads::pool::ThreadBody;

/// Handles the batches of one type, or of a whole queue.
///
/// **Exclusive (P1):** calls of one [`HandlerRef`] never overlap, whatever thread, type or queue
/// they come from. A panic fails only its own batch.
pub trait Handler<T>: Send + Sync {
    /// Handles one batch of 1 to `max_batch_items` items.
    ///
    /// # Errors
    /// The batch could not be handled: all its items count as failed, or only those left in it; see
    /// [`Failure::of_rest`].
    fn consume(&self, batch: &mut Batch<T>) -> Result<(), Failure>;

    /// Keeps items that failed for good, as the [`Handlers::dead_letter`] of a type or the
    /// [`Builder::dead_letter`] of a queue. There is only one attempt.
    ///
    /// # Errors
    /// The letters could not be kept, so their items count as failed.
    ///
    /// [`Builder::dead_letter`]: crate::queue::Builder::dead_letter
    fn consume_dead_letters(&self, _letters: &mut Vec<DeadLetters<T>>) -> Result<(), Failure> {
        Err(Failure::last("it takes no dead letters; implement consume_dead_letters"))
    }

    /// Whether `consume` must run inside [`Host::enter`]. If no handler of a partition needs the
    /// host, the drain thread does not enter it for that partition.
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

    /// Whether [`on_close`](Self::on_close) does anything. If not, a handler that is replaced while
    /// no thread is inside, or removed with nothing queued for it, is retired without a drain
    /// thread.
    fn has_on_close(&self) -> bool {
        true
    }

    /// Called once per queue, after the handler's last batch.
    ///
    /// # Errors
    /// Logged but not counted, because no item is involved.
    fn on_close(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether another thread, such as an event loop, does the work while the drain thread waits
    /// for it. On a shared pool another worker replaces the waiting one.
    fn works_elsewhere(&self) -> bool {
        false
    }

    /// Returns the handler's name for logs and statistics.
    fn name(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }
}

impl<T, F: Fn(&mut Batch<T>) + Send + Sync> Handler<T> for F {
    fn consume(&self, batch: &mut Batch<T>) -> Result<(), Failure> {
        self(batch);
        Ok(())
    }

    fn has_on_close(&self) -> bool {
        false
    }
}

/// The handlers of one type.
#[derive(Debug)]
pub struct Handlers<T> {
    /// One for all partitions of the type, or one for each.
    pub instances: Vec<HandlerRef<T>>,
    /// The handler that keeps the items of the type that failed for good. `None` means that of the
    /// queue, if there is one.
    pub dead_letter: Option<HandlerRef<T>>,
}

impl<T> From<Vec<HandlerRef<T>>> for Handlers<T> {
    fn from(instances: Vec<HandlerRef<T>>) -> Self {
        Self { instances, dead_letter: None }
    }
}

/// A handler instance with its lock. Clones refer to the same instance: even if it is
/// registered for several types or on several queues, only one thread is inside at a time.
pub struct HandlerRef<T> {
    pub(crate) handler: Arc<dyn Handler<T>>,
    pub(crate) lock: Arc<HandlerLock>,
}

impl<T> HandlerRef<T> {
    /// Creates an instance with its own lock.
    pub fn new(handler: impl Handler<T> + 'static) -> Self {
        Self::with_lock(Arc::new(handler), Arc::new(HandlerLock::default()))
    }

    /// Creates an instance that shares `lock` with others, of which only one is entered at a time.
    pub fn with_lock(handler: Arc<dyn Handler<T>>, lock: Arc<HandlerLock>) -> Self {
        Self { handler, lock }
    }

    /// Returns the instance's identity.
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
        Self { handler: self.handler.clone(), lock: self.lock.clone() }
    }
}

impl<T> fmt::Debug for HandlerRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandlerRef").field(&self.handler.name()).finish()
    }
}

// The host that handlers run in. Rust handlers need none; Python handlers need the interpreter.

/// Wraps the work of drain threads, so that the core never refers to an interpreter.
pub trait Host<T: Item>: Send + Sync + 'static {
    /// Runs a drain thread from start to end. The host may have ended, and not run `body`.
    fn live(&self, body: ThreadBody) {
        body();
    }

    /// Runs code that reads items or calls handlers. Called once per cycle with work, unless no
    /// handler [needs](crate::flow::handler::Handler::needs_host) the host. Calls may be nested.
    fn enter(&self, body: &mut dyn FnMut()) {
        body();
    }

    /// Runs several cycles, each with a nested [`enter`](Self::enter), which this makes cheaper.
    fn stay(&self, body: &mut dyn FnMut()) {
        body();
    }

    /// Runs code that does not need the host: a wait for another thread, or a handler. Usually
    /// called inside [`enter`](Self::enter).
    fn leave(&self, wait: &mut (dyn FnMut() + Send)) {
        wait();
    }

    /// Logs a line about something that may need the operator's attention.
    fn log(&self, line: &str) {
        log::warn!(target: "batchqueue", "{line}");
    }

    /// Logs a line about normal operation.
    fn inform(&self, line: &str) {
        log::info!(target: "batchqueue", "{line}");
    }

    /// Returns the number by which the host knows the calling thread.
    fn thread_number(&self) -> u64 {
        0
    }

    /// Returns the name of a thread, if the host knows it. May wait for the host.
    fn thread_name(&self, _number: u64) -> Option<String> {
        None
    }

    /// Returns the call stack of a thread, if the host knows it. May wait for the host.
    fn thread_stack(&self, _number: u64) -> Option<String> {
        None
    }

    /// Returns a hint for the log why an item may have no handler although others do. Called inside
    /// [`enter`](Self::enter).
    fn unhandled_hint(&self, _item: &T, _has_handler: &dyn Fn(TypeKey) -> bool) -> Option<String> {
        None
    }

    /// Called before the items of a batch are dropped, or go to a handler of dead letters, because
    /// there is no handler for them, or for their retry. Called inside [`enter`](Self::enter).
    fn note_unhandled(&self, _items: &Batch<T>, _were_tried: bool) {}

    /// Called without a lock when a shutdown has expired, and all that was not settled is
    /// abandoned.
    fn note_abandoned(&self) {}

    /// Returns the name of an item's type for the log. Called inside [`enter`](Self::enter), or by
    /// a producer.
    fn type_name(&self, item: &T) -> String {
        format!("type {}", item.type_key().0)
    }
}

/// The host of Rust handlers.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoHost;

impl<T: Item> Host<T> for NoHost {}
