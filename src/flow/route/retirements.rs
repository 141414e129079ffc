//! Retirements: handlers that were replaced or removed, and may still have a thread inside.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `list` | control side, the thread that ends one | the same |
//! | `pending` | the same, under `list`'s lock | drain threads |

use crate::flow::batch::DropPanics;
use crate::flow::handler::HandlerRef;
use crate::flow::handler::lock::Recall;
use crate::flow::partition::lane::UnsettledMark;
use crate::flow::route::type_handlers::TypeHandlers;
use crate::sync::{Arc, AtomicUsize, Condvar, Duration, Instant, Mutex, Ordering, Weak, wait_for};
use crate::threads::waits::{Pause, slice};

/// The end of a retirement, for callers that wait for it.
#[derive(Debug)]
pub(crate) struct Retired {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Retired {
    fn new() -> Self {
        Self { ended: Mutex::new(false), changed: Condvar::new() }
    }

    pub(crate) fn is_ended(&self) -> bool {
        *self.ended.lock()
    }

    /// Waits for the end. Returns `false` if `deadline` passes first. Not called on a drain thread,
    /// which might be inside the handler.
    pub(crate) fn wait_for_end<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<bool, P::Interrupt> {
        while !self.is_ended() {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            pause.pause(&mut |limit| self.wait(slice(limit, deadline)))?;
        }
        Ok(true)
    }

    fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_all();
    }

    fn wait(&self, limit: Option<Duration>) {
        let ended = self.ended.lock();
        if !*ended {
            drop(wait_for(&self.changed, ended, limit));
        }
    }
}

/// The retired handlers of one type.
pub(crate) struct Retirement<T> {
    registered: Arc<TypeHandlers<T>>,
    /// The mark of the items that the handlers still get, if any.
    unsettled: Option<UnsettledMark>,
    /// The instances whose `on_close` is next; set once no thread is inside any more.
    pub(crate) to_close: Vec<HandlerRef<T>>,
    retired: Arc<Retired>,
}

impl<T> Retirement<T> {
    fn has(&self, handler: &HandlerRef<T>) -> bool {
        self.registered.instances().any(|instance| instance.is(handler))
    }

    /// Whether no thread is inside for a batch of these handlers, or at all inside one that is to
    /// be closed. Otherwise `watcher` is notified when a thread leaves.
    fn is_idle(
        &self,
        serves: &impl Fn(&HandlerRef<T>) -> bool,
        watcher: &Weak<dyn Recall>,
    ) -> bool {
        let purpose = self.registered.purpose();
        // A handler of dead letters that serves nothing else is closed too, after its letters.
        let keeper = self.registered.dead_letter.as_ref();
        let keeper = keeper.filter(|keeper| !serves(&keeper.handler));
        if keeper.is_some_and(|keeper| !keeper.is_empty()) {
            return false;
        }
        let has_outstanding =
            self.unsettled.as_ref().is_some_and(|unsettled| Arc::strong_count(unsettled) > 1);
        let is_idle = |handler: &HandlerRef<T>| {
            handler.lock.is_idle(purpose, !serves(handler), has_outstanding, watcher)
        };
        self.registered.handlers.iter().chain(keeper.map(|keeper| &keeper.handler)).all(is_idle)
    }

    /// Ends the retirement after `on_close`: drops the handlers, then notifies the waiting callers.
    /// Returns a log line if a handler panicked when it was dropped.
    #[must_use]
    pub(crate) fn end(self, queue: &str) -> Option<String> {
        let Self { registered, to_close, retired, .. } = self;
        let (name, handlers) = (registered.name.clone(), registered.instances().cloned());
        let handlers: Vec<_> = handlers.chain(to_close).collect();
        drop(registered);
        let mut panics = DropPanics::default();
        panics.drop_all(handlers.into_iter());
        retired.end();
        let (_, cause) = panics.report()?;
        Some(format!("queue {queue}: a handler of {name} panicked when it was dropped: {cause}"))
    }
}

/// A retirement that has begun.
pub(crate) struct Begun<T> {
    pub(crate) retired: Arc<Retired>,
    /// The retirement, if it is already over: the caller ends it, outside all locks. Otherwise a
    /// drain thread does.
    pub(crate) over: Option<Retirement<T>>,
}

pub(crate) struct Retirements<T> {
    list: Mutex<Vec<Retirement<T>>>,
    pending: AtomicUsize,
}

impl<T> Retirements<T> {
    pub(crate) fn new() -> Self {
        Self { list: Mutex::new(Vec::new()), pending: AtomicUsize::new(0) }
    }

    /// Whether there is a retirement. The caller has fenced.
    #[inline]
    pub(crate) fn are_pending(&self) -> bool {
        // Relaxed: ordered by the caller's fence, which pairs with the one in `retire`.
        self.pending.load(Ordering::Relaxed) > 0
    }

    /// Whether a retirement can end.
    pub(crate) fn has_idle(
        &self,
        serves: impl Fn(&HandlerRef<T>) -> bool,
        watcher: &Weak<dyn Recall>,
    ) -> bool {
        self.list.lock().iter().any(|retirement| retirement.is_idle(&serves, watcher))
    }

    /// Begins the retirement of `registered`. It is over if it `may_end`, no thread is inside, and
    /// none of the instances has an `on_close` to call. Called under the control lock; the caller
    /// fences before it wakes the threads.
    pub(crate) fn begin(
        &self,
        registered: Arc<TypeHandlers<T>>,
        unsettled: Option<UnsettledMark>,
        may_end: bool,
        serves: impl Fn(&HandlerRef<T>) -> bool,
        watcher: &Weak<dyn Recall>,
    ) -> Begun<T> {
        let retired = Arc::new(Retired::new());
        let begun =
            Retirement { registered, unsettled, to_close: Vec::new(), retired: retired.clone() };
        let mut list = self.list.lock();
        // An instance that is in another retirement is closed at the end of that one.
        let closes = |handler: &HandlerRef<T>| {
            handler.handler.has_on_close()
                && !serves(handler)
                && !list.iter().any(|retirement| retirement.has(handler))
        };
        if may_end && !begun.registered.instances().any(closes) && begun.is_idle(&serves, watcher) {
            return Begun { retired, over: Some(begun) };
        }
        list.push(begun);
        // Relaxed: ordered by the caller's fence.
        self.pending.store(list.len(), Ordering::Relaxed);
        Begun { retired, over: None }
    }

    /// Removes the retirements that can end from the list. Each gets the instances to close: those
    /// that are in no other retirement and that the queue no longer `serves`. Called under the
    /// control lock.
    pub(crate) fn take_idle(
        &self,
        all: bool,
        serves: impl Fn(&HandlerRef<T>) -> bool,
        watcher: &Weak<dyn Recall>,
    ) -> Vec<Retirement<T>> {
        let mut list = self.list.lock();
        let (mut ended, left): (Vec<_>, Vec<_>) =
            list.drain(..).partition(|retirement| all || retirement.is_idle(&serves, watcher));
        *list = left;
        // Relaxed: a thread that has to see it takes the lock.
        self.pending.store(list.len(), Ordering::Relaxed);
        let mut closed: Vec<HandlerRef<T>> = Vec::new();
        for retirement in &mut ended {
            for handler in retirement.registered.instances() {
                let elsewhere = list.iter().any(|retirement| retirement.has(handler))
                    || closed.iter().any(|other| other.is(handler));
                if !elsewhere && !serves(handler) {
                    closed.push(handler.clone());
                    retirement.to_close.push(handler.clone());
                }
            }
        }
        ended
    }

    /// Ends all waits for retirements after expiry, because no handler is entered from now on.
    pub(crate) fn end_all(&self) {
        for retirement in &*self.list.lock() {
            retirement.retired.end();
        }
    }
}
