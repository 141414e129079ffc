//! Retirement: what becomes of a handler that was replaced or removed (rule 12 of
//! `ownership/README.md`).
//!
//! A drain thread may be inside it, or hold a batch for it, when its type already goes elsewhere.
//! Each thread that can be in that position passes a quiescent point first; the last of them calls
//! `on_close` and ends the retirement. Nobody else waits, unless it asked to.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `list` | whoever retires (under the control lock), threads that pass | the same |
//! | `pending` | the same, under `list`'s lock | drain threads at their quiescent point and before they sleep |

use crate::control::ownership::Owner;
use crate::flow::handler::{HandlerRef, Item};
use crate::flow::partition::Signal;
use crate::flow::produce::{Pause, slice};
use crate::flow::route::{TypeHandlers, TypeRoute};
use crate::rules::{Rule, rule_off};
use crate::shared::{Consumption, Shared};
use crate::sync::{Arc, AtomicUsize, Condvar, Duration, Mutex, Ordering, fence, wait_for};

/// Says when a retirement has ended.
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

    /// Waits for the end. Not on a drain thread, which might have to pass for it.
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

/// One handler, or one factory's handlers, on the way out.
pub(crate) struct Retirement<T> {
    registered: Arc<TypeHandlers<T>>,
    /// The drain threads that have not passed a quiescent point since.
    waiting: Vec<usize>,
    /// The instances whose last call is next; known when nobody is waited for any more.
    pub(crate) to_close: Vec<HandlerRef<T>>,
    retired: Arc<Retired>,
}

impl<T> Retirement<T> {
    fn has(&self, handler: &HandlerRef<T>) -> bool {
        self.registered.handlers.iter().any(|instance| instance.is(handler))
    }

    /// After `on_close`, when nothing of it is held any more.
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

    /// Whether `thread` has to pass for somebody. The caller has fenced.
    pub(crate) fn wait_for(&self, thread: usize) -> bool {
        // Relaxed: ordered by the caller's fence, which pairs with the one in `retire`.
        self.pending.load(Ordering::Relaxed) > 0
            && self.list.lock().iter().any(|retirement| retirement.waiting.contains(&thread))
    }

    /// At a quiescent point of `thread`. Whether some retirement waits for nobody any more.
    fn pass(&self, thread: usize) -> bool {
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

    /// The queue's time ran out: nobody has to wait any longer, because no handler is entered from
    /// now on.
    pub(crate) fn give_up(&self) {
        for retirement in &*self.list.lock() {
            retirement.retired.end();
        }
    }
}

impl<T: Item> Shared<T> {
    /// After the type was published without `registered`, under the control lock.
    pub(crate) fn retire(
        &self,
        registered: Arc<TypeHandlers<T>>,
        partitions: &[usize],
    ) -> Arc<Retired> {
        let gone: Vec<HandlerRef<T>> =
            registered.handlers.iter().filter(|handler| !self.serves(handler)).cloned().collect();
        let homes: Vec<usize> = self
            .route
            .idle_handlers()
            .iter()
            .filter(|idle| gone.iter().any(|gone| gone.is(&idle.handler)))
            .map(|idle| idle.home)
            .collect();
        self.route.drop_idle_handlers(&gone);
        // SeqCst: pairs with the fence of a take, between its look at the owner word and its look
        // at the handler. A thread that becomes the owner after this looks at the word finds the
        // handler gone.
        fence(Ordering::SeqCst);
        let mut waiting: Vec<usize> = if self.any_thread_delivers() {
            (0..self.threads.len()).collect()
        } else {
            let owners = partitions
                .iter()
                .chain(&homes)
                .map(|&partition| self.route.owner(partition).load());
            let inside =
                if rule_off(Rule::WaitForThreadInside) { Owner::wanted } else { Owner::inside };
            owners.map(inside).collect()
        };
        let retired = Arc::new(Retired::new());
        {
            let mut list = self.retirements.list.lock();
            // Of an instance that lost another type just now: its batches may still be in hand
            // elsewhere.
            let related = list.iter().filter(|retirement| {
                registered.handlers.iter().any(|handler| retirement.has(handler))
            });
            waiting.extend(related.flat_map(|retirement| &retirement.waiting));
            waiting.sort_unstable();
            waiting.dedup();
            let (waiting, retired) = (waiting.clone(), retired.clone());
            list.push(Retirement { registered, waiting, to_close: Vec::new(), retired });
            // Relaxed: ordered by the fence below.
            self.retirements.pending.store(list.len(), Ordering::Relaxed);
        }
        // SeqCst: pairs with the fence in `Sleeper::prepare`.
        fence(Ordering::SeqCst);
        for thread in waiting {
            self.threads[thread].waker.wake(Signal::Pressure);
        }
        retired
    }

    /// At a quiescent point of `thread`: the retirements that waited for it alone.
    pub(crate) fn ended_retirements(&self, thread: usize) -> Vec<Retirement<T>> {
        if !self.retirements.pass(thread) {
            return Vec::new();
        }
        // Under the control lock nobody loses a type: an instance that serves none, and is in no
        // other retirement, has had its last batch, and nobody else will find so.
        let _control = self.control.lock();
        let mut list = self.retirements.list.lock();
        let (mut ended, left): (Vec<_>, Vec<_>) =
            list.drain(..).partition(|retirement| retirement.waiting.is_empty());
        *list = left;
        // Relaxed: who has to see it takes the lock.
        self.retirements.pending.store(list.len(), Ordering::Relaxed);
        let mut closed: Vec<HandlerRef<T>> = Vec::new();
        for retirement in &mut ended {
            for handler in &retirement.registered.handlers {
                let elsewhere = list.iter().any(|retirement| retirement.has(handler))
                    || closed.iter().any(|other| other.is(handler));
                if !elsewhere && !self.serves(handler) {
                    closed.push(handler.clone());
                    retirement.to_close.push(handler.clone());
                }
            }
        }
        ended
    }

    /// Whether a handler instance still serves some type of this queue.
    pub(crate) fn serves(&self, handler: &HandlerRef<T>) -> bool {
        let has = |registered: Arc<TypeHandlers<T>>| {
            registered.handlers.iter().any(|other| other.is(handler))
        };
        self.consumes_all(handler) || self.route.types().filter_map(TypeRoute::registered).any(has)
    }

    /// Whether a handler instance is the queue's consumer, or one of them.
    pub(crate) fn consumes_all(&self, handler: &HandlerRef<T>) -> bool {
        match &self.consumption {
            Consumption::ByHandler => false,
            Consumption::OneConsumer(consumer) => consumer.handlers[0].is(handler),
            Consumption::PerThread(consumers) => {
                consumers.iter().any(|consumer| consumer.handlers[0].is(handler))
            }
        }
    }
}
