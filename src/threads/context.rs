//! The context of a thread: the queue that it drains, and the handler that it is in.
//!
//! Queues and handler locks are identified by their addresses. Nothing here keeps them alive.

use std::cell::{Cell, RefCell};

use crate::sync::{Arc, AtomicBool, Weak, thread_local};

/// The destination of log lines about a queue.
pub(crate) trait QueueLog: Send + Sync {
    /// Logs a line from any thread, without waiting for the log. If callers drain the queue, the
    /// line is logged after they have done so.
    fn warn(&self, line: String);
}

thread_local! {
    // Not `const`: loom's macro has no such form.
    #[allow(clippy::missing_const_for_thread_local)]
    /// The queue whose drain thread this is, as an address; 0: not a drain thread.
    static DRAINS: Cell<usize> = Cell::new(0);

    #[allow(clippy::missing_const_for_thread_local)]
    /// The log of that queue.
    static LOG: RefCell<Option<Weak<dyn QueueLog>>> = RefCell::new(None);

    #[allow(clippy::missing_const_for_thread_local)]
    /// The handler lock that this drain thread holds, as an address; 0: none.
    static HOLDS: Cell<usize> = Cell::new(0);

    #[allow(clippy::missing_const_for_thread_local)]
    /// The cached result of [`this_thread`].
    static THIS: RefCell<Option<Arc<KnownThread>>> = RefCell::new(None);

    #[allow(clippy::missing_const_for_thread_local)]
    /// The inline queues that this thread drains, as addresses, the innermost last.
    static INLINE: RefCell<Vec<usize>> = RefCell::new(Vec::new());

    #[allow(clippy::missing_const_for_thread_local)]
    /// Whether this thread writes lines of a queue into the log.
    static LOGS: Cell<bool> = Cell::new(false);

    #[allow(clippy::missing_const_for_thread_local)]
    /// If this thread acts as a drain thread: whether the call that it acts for has ended.
    static CALL_HAS_ENDED: RefCell<Option<Arc<AtomicBool>>> = RefCell::new(None);
}

/// A guard while this thread drains a queue. Nests: a handler of an inline queue may drain another
/// inline queue, so dropping the guard restores the previous queue.
#[derive(Debug)]
pub(crate) struct DrainScope {
    before: usize,
    log_before: Option<Weak<dyn QueueLog>>,
    held_before: usize,
}

impl DrainScope {
    pub(crate) fn of<Q>(queue: &Arc<Q>, log: &Arc<dyn QueueLog>) -> Self {
        Self {
            before: DRAINS.with(|drains| drains.replace(Arc::as_ptr(queue) as usize)),
            log_before: LOG.with(|of_queue| of_queue.replace(Some(Arc::downgrade(log)))),
            held_before: HOLDS.with(|holds| holds.replace(0)),
        }
    }
}

impl Drop for DrainScope {
    fn drop(&mut self) {
        DRAINS.with(|drains| drains.set(self.before));
        LOG.with(|log| *log.borrow_mut() = self.log_before.take());
        HOLDS.with(|holds| holds.set(self.held_before));
    }
}

/// A guard while this thread drains an inline queue, perhaps inside a handler of another.
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
#[derive(Debug)]
pub(crate) struct InlineScope {
    is_nested: bool,
}

#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
impl InlineScope {
    /// Returns `None` if this thread is already draining the queue.
    pub(crate) fn enter(queue: usize) -> Option<Self> {
        INLINE.with(|inline| {
            let mut inline = inline.borrow_mut();
            if inline.contains(&queue) {
                return None;
            }
            let is_nested = !inline.is_empty();
            inline.push(queue);
            Some(Self { is_nested })
        })
    }

    /// Whether the thread is inside a handler of another inline queue.
    pub(crate) fn is_nested(&self) -> bool {
        self.is_nested
    }
}

impl Drop for InlineScope {
    fn drop(&mut self) {
        INLINE.with(|inline| inline.borrow_mut().pop());
    }
}

/// A guard while this thread writes lines to the log.
#[derive(Debug)]
pub(crate) struct LogScope {
    before: bool,
}

impl LogScope {
    pub(crate) fn enter() -> Self {
        Self { before: LOGS.with(|logs| logs.replace(true)) }
    }
}

impl Drop for LogScope {
    fn drop(&mut self) {
        LOGS.with(|logs| logs.set(self.before));
    }
}

/// A guard while this thread is inside the handler with this lock.
#[derive(Debug)]
pub(crate) struct HandlerScope(());

impl HandlerScope {
    pub(crate) fn of<K>(lock: &Arc<K>) -> Self {
        HOLDS.with(|holds| holds.set(Arc::as_ptr(lock) as usize));
        Self(())
    }
}

impl Drop for HandlerScope {
    fn drop(&mut self) {
        HOLDS.with(|holds| holds.set(0));
    }
}

/// Returns the address of the queue that the calling thread drains.
pub(crate) fn drained_queue() -> Option<usize> {
    Some(DRAINS.with(Cell::get)).filter(|&queue| queue != 0)
}

/// Returns the log of the queue that the calling thread drains.
#[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
pub(crate) fn drained_log() -> Option<Arc<dyn QueueLog>> {
    LOG.with(|log| log.borrow().as_ref().and_then(Weak::upgrade))
}

/// Returns the address of the handler lock that the calling thread holds as a drain thread.
pub(crate) fn held_lock() -> Option<usize> {
    Some(HOLDS.with(Cell::get)).filter(|&lock| lock != 0)
}

/// On a thread that acts as a drain thread, returns a flag that is set when the call it acts for
/// ends.
pub(crate) fn call_has_ended() -> Option<Arc<AtomicBool>> {
    CALL_HAS_ENDED.with(|ended| ended.borrow().clone())
}

/// Whether the calling thread is a drain thread of any queue.
pub(crate) fn on_drain_thread() -> bool {
    DRAINS.with(Cell::get) != 0
}

/// Whether the calling thread is writing a line of any queue to the log.
pub(crate) fn on_log_thread() -> bool {
    LOGS.with(Cell::get)
}

/// The identity of a thread, for the log.
#[derive(Debug)]
pub(crate) struct KnownThread {
    /// The host's number for the thread.
    pub(crate) number: u64,
    /// The name to use if the host does not know the thread.
    pub(crate) name: String,
}

/// Returns the calling thread. `number` returns the host's number for it, and is called once per
/// thread.
pub(crate) fn this_thread(number: impl FnOnce() -> u64) -> Arc<KnownThread> {
    if let Some(known) = THIS.with(|this| this.borrow().clone()) {
        return known;
    }
    // The host may run code that calls this function again.
    let number = number();
    let name = std::thread::current().name().unwrap_or("a thread without a name").to_owned();
    let known = Arc::new(KnownThread { number, name });
    THIS.with(|this| *this.borrow_mut() = Some(known.clone()));
    known
}

/// The context of a drain thread, for the thread that does the handler's work while the drain
/// thread waits.
#[cfg(feature = "python")]
#[derive(Debug, Clone)]
pub(crate) struct ThreadContext {
    drains: usize,
    log: Option<Weak<dyn QueueLog>>,
    holds: usize,
    call_has_ended: Option<Arc<AtomicBool>>,
}

#[cfg(feature = "python")]
impl ThreadContext {
    /// Returns the context of the calling drain thread, which is inside a handler. `call_has_ended`
    /// is set when the handler returns.
    pub(crate) fn of_call(call_has_ended: Arc<AtomicBool>) -> Self {
        Self { call_has_ended: Some(call_has_ended), ..Self::of_this_thread() }
    }

    fn of_this_thread() -> Self {
        Self {
            drains: DRAINS.with(Cell::get),
            log: LOG.with(|log| log.borrow().clone()),
            holds: HOLDS.with(Cell::get),
            call_has_ended: call_has_ended(),
        }
    }

    /// Makes the calling thread act as that drain thread until the result is dropped.
    pub(crate) fn assume(&self) -> AssumedContext {
        let before = Self::of_this_thread();
        self.set();
        AssumedContext(before)
    }

    fn set(&self) {
        DRAINS.with(|drains| drains.set(self.drains));
        LOG.with(|log| log.borrow_mut().clone_from(&self.log));
        HOLDS.with(|holds| holds.set(self.holds));
        CALL_HAS_ENDED.with(|ended| ended.borrow_mut().clone_from(&self.call_has_ended));
    }
}

/// A guard while this thread acts as another.
#[cfg(feature = "python")]
#[derive(Debug)]
pub(crate) struct AssumedContext(ThreadContext);

#[cfg(feature = "python")]
impl Drop for AssumedContext {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Resets the context in a forked child, whose only thread is not a drain thread even if the
/// forking thread was.
#[cfg(feature = "python")]
pub(crate) fn forget_drain_thread() {
    DRAINS.with(|drains| drains.set(0));
    LOG.with(RefCell::take);
    HOLDS.with(|holds| holds.set(0));
    INLINE.with(|inline| inline.borrow_mut().clear());
}
