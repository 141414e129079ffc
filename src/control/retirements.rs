//! Retirements: the handlers that were replaced or removed, and the threads that have to pass a
//! quiescent point before their last call.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `list` | control side, threads that pass | the same |
//! | `pending` | the same, under `list`'s lock | drain threads |

use crate::flow::handler::HandlerRef;
use crate::flow::pause::{Pause, slice};
use crate::flow::route::TypeHandlers;
use crate::rules::{Rule, rule_off};
use crate::sync::{Arc, AtomicUsize, Condvar, Duration, Mutex, Ordering, wait_for};

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

    fn is_ended(&self) -> bool {
        *self.ended.lock()
    }

    /// Waits for the end. Not called on a drain thread, which might have to pass first.
    pub(crate) fn wait_for_end<P: Pause>(&self, pause: &mut P) -> Result<(), P::Interrupt> {
        while !self.is_ended() && !rule_off(Rule::WaitForRetired) {
            pause.pause(&mut |limit| self.wait(slice(limit, None)))?;
        }
        Ok(())
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

/// A retired handler, or the retired handlers of one factory.
pub(crate) struct Retirement<T> {
    registered: Arc<TypeHandlers<T>>,
    /// The drain threads that have not passed a quiescent point since.
    waiting: Vec<usize>,
    /// The instances whose last call is next; known when every thread has passed.
    pub(crate) to_close: Vec<HandlerRef<T>>,
    retired: Arc<Retired>,
}

impl<T> Retirement<T> {
    fn has(&self, handler: &HandlerRef<T>) -> bool {
        self.registered.handlers.iter().any(|instance| instance.is(handler))
    }

    /// After `on_close`. Drops the handlers before it notifies the callers that wait.
    pub(crate) fn end(self) {
        let Self { registered, to_close, retired, .. } = self;
        drop((registered, to_close));
        retired.end();
    }
}

pub(crate) struct Retirements<T> {
    list: Mutex<Vec<Retirement<T>>>,
    pending: AtomicUsize,
}

impl<T> Retirements<T> {
    pub(crate) fn new() -> Self {
        Self { list: Mutex::new(Vec::new()), pending: AtomicUsize::new(0) }
    }

    /// Whether a retirement waits for `thread` to pass. The caller has fenced.
    pub(crate) fn wait_for(&self, thread: usize) -> bool {
        // Relaxed: ordered by the caller's fence, which pairs with the one in `retire`.
        self.pending.load(Ordering::Relaxed) > 0
            && self.list.lock().iter().any(|retirement| retirement.waiting.contains(&thread))
    }

    /// At a quiescent point of `thread`. Returns whether every thread has passed for some
    /// retirement.
    pub(super) fn pass(&self, thread: usize) -> bool {
        // Relaxed: as in `wait_for`.
        if self.pending.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut list = self.list.lock();
        for retirement in &mut *list {
            retirement.waiting.retain(|&waiting| waiting != thread);
        }
        list.iter().any(|retirement| retirement.waiting.is_empty())
    }

    /// Begins the retirement of `registered`, which ends when every thread in `waiting` has passed.
    /// Returns the threads that have to pass, each once. Under the control lock; the caller fences
    /// before it wakes them.
    pub(super) fn begin(
        &self,
        registered: Arc<TypeHandlers<T>>,
        mut waiting: Vec<usize>,
    ) -> (Arc<Retired>, Vec<usize>) {
        let retired = Arc::new(Retired::new());
        let mut list = self.list.lock();
        // An instance may have lost another type just now: its batches may still be in hand
        // elsewhere.
        let related = list
            .iter()
            .filter(|retirement| registered.handlers.iter().any(|handler| retirement.has(handler)));
        waiting.extend(related.flat_map(|retirement| &retirement.waiting));
        waiting.sort_unstable();
        waiting.dedup();
        list.push(Retirement {
            registered,
            waiting: waiting.clone(),
            to_close: Vec::new(),
            retired: retired.clone(),
        });
        // Relaxed: ordered by the caller's fence.
        self.pending.store(list.len(), Ordering::Relaxed);
        (retired, waiting)
    }

    /// Takes the retirements off the list that wait for no thread any more. Each gets the instances
    /// to close: those that are in no other retirement, and for which `serves` does not hold. Under
    /// the control lock.
    pub(super) fn take_ended(&self, serves: impl Fn(&HandlerRef<T>) -> bool) -> Vec<Retirement<T>> {
        let mut list = self.list.lock();
        let (mut ended, left): (Vec<_>, Vec<_>) =
            list.drain(..).partition(|retirement| retirement.waiting.is_empty());
        *list = left;
        // Relaxed: a thread that has to see it takes the lock.
        self.pending.store(list.len(), Ordering::Relaxed);
        let mut closed: Vec<HandlerRef<T>> = Vec::new();
        for retirement in &mut ended {
            for handler in &retirement.registered.handlers {
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

    /// The queue's time ran out: no caller has to wait any longer, because no handler is entered
    /// from now on.
    pub(crate) fn end_all(&self) {
        for retirement in &*self.list.lock() {
            retirement.retired.end();
        }
    }
}
