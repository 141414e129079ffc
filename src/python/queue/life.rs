//! The life of a queue in one process. A forked child cannot use its parent's life, whose drain
//! threads do not exist there and whose locks may be held forever. With `restart_after_fork`, the
//! child gets its own life at the first use, from the recipe: the same settings and handlers, and
//! no items.
//!
//! Everything that a child reads from the parent's life was written before the fork by threads that
//! were attached to the interpreter. The child takes none of its locks.

use std::collections::HashMap;
use std::iter::successors;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::PyTypeInfo;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::arrow::Buffers;
use crate::config::Selector;
use crate::control::log_helper::PATIENCE;
use crate::control::rebalancer;
use crate::flow::segments::PutTime;
use crate::python::config::{CoreSettings, PyAssign, Settings};
use crate::python::errors;
use crate::python::errors::{forked, too_late};
use crate::python::future::{Submissions, future_class};
use crate::python::handler::{
    HandlerMethods, HandlerOptions, HandlerRegistry, Interpreter, coroutine_type, forget_locks,
};
use crate::python::interpreter::{
    InterpreterPause, Timeout, deadline_of, generation, has_gil, prepare_threads, run_fork_hooks,
    settle_in_child, use_stacks_of_python,
};
use crate::python::item::{ItemType, PyItem, prepare_arrow_data, refused};
use crate::queue::{BatchQueue, WeakQueue};
use crate::threads::agenda::{
    forget_helpers, forget_supervisor, wait_helpers_ended, wait_supervisor_ended,
};
use crate::threads::context::forget_drain_thread;
use crate::threads::pools::{forget_pools, live_pools};
use crate::threads::waits;
use crate::threads::waits::{Pause, slice};

/// The polling interval of a thread that waits for another one to restart a queue.
const MOMENT: Duration = Duration::from_millis(1);

/// Whether a thread of this process is restarting a queue.
static RESTARTING: AtomicBool = AtomicBool::new(false);

/// A queue in the process of one generation.
pub(crate) struct Life {
    /// Taken out, and leaked, only by the destructor in a forked child.
    core: Option<BatchQueue<PyItem>>,
    pub(crate) generation: u32,
    pub(crate) registry: HandlerRegistry,
    /// The function of a custom balancer, which the core also holds.
    assign: Option<Arc<PyAssign>>,
    /// For `produce_arrow`.
    pub(crate) buffers: Buffers,
    /// For `submit`.
    pub(crate) submissions: Arc<Submissions>,
    shutdown_timeout: Option<f64>,
    /// The life in a forked child.
    next: OnceLock<Box<Life>>,
}

impl Life {
    pub(crate) fn core(&self) -> PyResult<&BatchQueue<PyItem>> {
        self.core.as_ref().ok_or_else(forked)
    }

    /// Wraps an object as an item of this queue, with the key of the class whose handler it goes
    /// to.
    #[inline]
    pub(crate) fn item(&self, object: Bound<'_, PyAny>) -> PyResult<PyItem> {
        if self.registry.resolves() { self.resolved_item(object) } else { Ok(PyItem::new(object)) }
    }

    #[cold]
    fn resolved_item(&self, object: Bound<'_, PyAny>) -> PyResult<PyItem> {
        let key = self.registry.key_of(&object.get_type())?;
        Ok(PyItem::with_key(object, key))
    }

    /// Does what `Queue::produce` does if items are resolved or no thread drains the queue.
    #[cold]
    pub(crate) fn produce_resolved(
        &self,
        object: Bound<'_, PyAny>,
        given: Option<usize>,
        deadline: Option<Instant>,
    ) -> PyResult<bool> {
        let (queue, py) = (self.core()?, object.py());
        run_inline(py, queue, deadline)?;
        let item = self.resolved_item(object)?;
        match queue.produce_with(item, given, deadline, &mut InterpreterPause(py)) {
            Ok(()) => {
                run_inline(py, queue, deadline)?;
                Ok(true)
            }
            Err(refusal) => refused(py, queue.name(), refusal, 0).map_or(Ok(false), Err),
        }
    }

    pub(crate) fn name(&self) -> &str {
        // Locks nothing, so it works in a forked child too.
        self.core.as_ref().map_or("", BatchQueue::name)
    }

    /// Returns the life in this process, if it has begun.
    pub(crate) fn current(&self) -> Option<&Self> {
        self.lives().find(|life| life.generation == generation())
    }

    /// Returns the lives that have begun, from this one on.
    fn lives(&self) -> impl Iterator<Item = &Self> {
        successors(Some(self), |life| life.next.get().map(Box::as_ref))
    }

    /// Returns the last life that has begun.
    fn last(&self) -> &Self {
        self.lives().last().unwrap_or(self)
    }

    /// Whether the queue was shut down before the fork. Locks nothing.
    pub(crate) fn was_closed(&self) -> bool {
        let core = self.last().core.as_ref();
        core.is_none_or(|core| core.flow.ending.is_closing())
    }

    /// Begins the life in a forked child, unless another thread does.
    ///
    /// `number` is the place of the queue in the order of creation. If `closed`, the life ends
    /// immediately and calls no handler.
    pub(crate) fn restart(
        &self,
        py: Python<'_>,
        recipe: &Recipe,
        selector: Selector,
        number: u64,
        closed: bool,
    ) -> PyResult<&Self> {
        loop {
            if let Some(life) = self.current() {
                return Ok(life);
            }
            // Acquire: pairs with the Release in `Restarting`, after which the life is in its
            // place.
            if !RESTARTING.swap(true, Ordering::Acquire) {
                break;
            }
            py.detach(|| std::thread::sleep(MOMENT));
            py.check_signals()?;
        }
        let _restarting = Restarting;
        if let Some(life) = self.current() {
            return Ok(life);
        }
        let closed = closed || self.was_closed();
        let life = recipe.start(py, selector, number, !closed)?;
        if closed {
            let core = life.core()?;
            core.close();
            run_inline(py, core, None)?;
        }
        py.import("batchqueue.queues.callbacks")?.call_method0("queue_restarted")?;
        Ok(self.last().next.get_or_init(|| Box::new(life)))
    }

    /// Visits what only this queue holds if its threads have ended, and returns whether they have.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<bool, PyTraverseError> {
        let Some(life) = self.current() else { return Ok(false) };
        let ended = life.core.as_ref().is_some_and(BatchQueue::has_ended);
        if ended {
            life.registry.traverse(visit)?;
            if let Some(assign) = &life.assign {
                assign.traverse(visit)?;
            }
        }
        Ok(ended)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if self.generation != generation() {
            // In a forked child, threads that do not exist here may hold the locks inside.
            std::mem::forget(self.core.take());
            std::mem::forget(self.buffers.clone());
            std::mem::forget(self.submissions.clone());
        } else if let Some(core) = self.core.as_ref().filter(|core| core.is_inline()) {
            Python::try_attach(|py| end_inline(py, core, self.shutdown_timeout));
        }
    }
}

/// Ends a queue without threads when it is dropped, within the time of its settings. A signal
/// handler that raises ends it earlier.
fn end_inline(py: Python<'_>, core: &BatchQueue<PyItem>, shutdown_timeout: Option<f64>) {
    let shut_down = deadline_of(shutdown_timeout.map(Timeout))
        .and_then(|deadline| core.shutdown_with(deadline, &mut InterpreterPause(py)));
    if let Err(error) = shut_down {
        error.write_unraisable(py, None);
        py.detach(|| core.shutdown(Some(Instant::now())));
    }
}

/// Keeps other threads from restarting a queue until dropped.
struct Restarting;

impl Drop for Restarting {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `restart`.
        RESTARTING.store(false, Ordering::Release);
    }
}

/// Everything needed to start a queue.
pub(crate) struct Recipe {
    pub(crate) name: String,
    pub(crate) config: Py<PyAny>,
    pub(crate) consumers: Py<PyAny>,
    /// Whether there is one consumer per drain thread.
    pub(crate) per_thread: bool,
    pub(crate) dead_letter: Py<PyAny>,
    pub(crate) default_handler: Py<PyAny>,
    /// The handlers that the queue has now. Locked while attached, and never across a wait, so no
    /// fork finds it locked.
    pub(crate) handlers: Mutex<Registrations>,
}

/// The handlers that a queue has.
#[derive(Default)]
pub(crate) struct Registrations {
    by_type: HashMap<KnownType, Registration>,
    /// The number of registrations ever noted.
    noted: u64,
}

/// The handlers of one type, as passed to `add_handlers`.
struct Registration {
    order: u64,
    item_type: Py<PyAny>,
    handlers: Py<PyAny>,
    options: Py<PyAny>,
}

impl Recipe {
    /// Starts a queue from this recipe, with its handlers or without any.
    ///
    /// `number` is its place in the order of creation.
    pub(crate) fn start(
        &self,
        py: Python<'_>,
        selector: Selector,
        number: u64,
        with_handlers: bool,
    ) -> PyResult<Life> {
        let config: Settings<'_> = self.config.bind(py).extract()?;
        let shared_scheduler =
            config.shared_scheduler.as_ref().map(|(pool, threads)| (pool.clone(), threads.0));
        let (shutdown_timeout, is_inline) = (config.shutdown_timeout, config.inline);
        let CoreSettings { settings, common, assign } = config.into_core(selector)?;
        let submissions = Arc::new(Submissions::new(&self.name, shared_scheduler.is_some()));
        let registry = HandlerRegistry::new(common, submissions.clone());
        if is_inline {
            registry.resolve();
        }
        let host =
            Interpreter { entries: registry.entries.clone(), submissions: submissions.clone() };
        let mut builder =
            BatchQueue::builder(self.name.clone(), settings).host(host).inline(is_inline);
        if with_handlers {
            let dead_letter: Option<HandlerMethods<'_>> = self.dead_letter.extract(py)?;
            if let Some(keeper) = dead_letter {
                builder = builder.dead_letter(registry.reference(keeper)?);
            }
            let consumers: Vec<HandlerMethods<'_>> = self.consumers.extract(py)?;
            let consumers = consumers.into_iter().map(|consumer| registry.reference(consumer));
            let consumers = consumers.collect::<PyResult<Vec<_>>>()?;
            if self.per_thread {
                builder = builder.consumer_per_thread(move |thread| consumers[thread].clone());
            } else if let Some(consumer) = consumers.into_iter().next() {
                builder = builder.consumer(consumer);
            }
        }
        if let Some((pool, threads)) = shared_scheduler {
            builder = builder.shared_scheduler(pool, threads);
        }
        use_stacks_of_python(py)?;
        // Detached: a new drain thread attaches first of all, and a warning may be logged.
        let core = py.detach(move || builder.start())?;
        submissions.set_core(Arc::as_ptr(&core.flow) as usize);
        if with_handlers {
            self.add_handlers(py, &core, &registry)?;
        }
        if !register(py, number, core.downgrade(), shutdown_timeout)? {
            core.shutdown_with(
                deadline_of(shutdown_timeout.map(Timeout))?,
                &mut InterpreterPause(py),
            )?;
            return Err(too_late(core.name()));
        }
        Ok(Life {
            core: Some(core),
            generation: generation(),
            registry,
            assign,
            buffers: Buffers::default(),
            submissions,
            shutdown_timeout,
            next: OnceLock::new(),
        })
    }

    fn add_handlers(
        &self,
        py: Python<'_>,
        core: &BatchQueue<PyItem>,
        registry: &HandlerRegistry,
    ) -> PyResult<()> {
        if let Some(handler) = self.default_handler.extract(py)? {
            registry.add_default(core, handler)?;
        }
        let mut registrations: Vec<_> = {
            let handlers = self.handlers.lock();
            let bind = |it: &Registration| {
                let bound = |object: &Py<PyAny>| object.bind(py).clone();
                (it.order, bound(&it.item_type), bound(&it.handlers), bound(&it.options))
            };
            handlers.by_type.values().map(bind).collect()
        };
        registrations.sort_by_key(|(order, ..)| *order);
        for (_, item_type, handlers, options) in registrations {
            let (item_type, options): (ItemType<'_>, HandlerOptions<'_>) =
                (item_type.extract()?, options.extract()?);
            registry.add(py, core, &item_type, handlers.extract()?, options, false)?;
        }
        Ok(())
    }

    /// Notes the handlers of a type in place of the previous ones.
    pub(crate) fn note(&self, item_type: &ItemType<'_>, handlers: Py<PyAny>, options: Py<PyAny>) {
        let mut known = self.handlers.lock();
        known.noted += 1;
        let item_type_object = item_type.object().clone().unbind();
        let order = known.noted;
        let registration = Registration { order, item_type: item_type_object, handlers, options };
        let former = known.by_type.insert(KnownType::of(item_type), registration);
        drop(known);
        drop(former);
    }

    /// Forgets the handlers of a type.
    pub(crate) fn forget(&self, item_type: &ItemType<'_>) {
        let former = self.handlers.lock().by_type.remove(&KnownType::of(item_type));
        drop(former);
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for object in [&self.config, &self.consumers, &self.dead_letter, &self.default_handler] {
            visit.call(object)?;
        }
        let Some(handlers) = self.handlers.try_lock() else { return Ok(()) };
        for it in handlers.by_type.values() {
            visit.call(&it.item_type)?;
            visit.call(&it.handlers)?;
            visit.call(&it.options)?;
        }
        Ok(())
    }
}

/// A class by its address, which the registration protects from reuse; or a tag.
#[derive(PartialEq, Eq, Hash)]
enum KnownType {
    Class(usize),
    Tag(String),
}

impl KnownType {
    fn of(item_type: &ItemType<'_>) -> Self {
        match item_type.tag() {
            Some(tag) => Self::Tag(tag.to_owned()),
            None => Self::Class(item_type.object().as_ptr() as usize),
        }
    }
}

/// Does nothing if threads drain the queue. Otherwise handles the accepted items, or ends the queue
/// if it is closed. Items that still wait at the deadline stay in the queue. A call that enqueues
/// items begins with this too, because nothing else would make room.
///
/// # Errors
/// A signal handler raised while a batch waited for its next attempt, or for another caller.
#[inline]
pub(crate) fn run_inline(
    py: Python<'_>,
    queue: &BatchQueue<PyItem>,
    deadline: Option<Instant>,
) -> PyResult<()> {
    if queue.is_inline() { queue.run_inline(deadline, &mut InterpreterPause(py)) } else { Ok(()) }
}

// Exit and forks of the process.

/// The time for the workers of shared pools and the control thread to end after the last queue.
const LAST_STEPS: Duration = Duration::from_secs(1);

/// The callbacks of ended queues, besides one per live queue, that `atexit` keeps before they are
/// removed.
const ENDED_CALLBACKS: usize = 256;

struct LiveQueue {
    /// The queue's place in the order of creation. A queue that a forked child restarts keeps the
    /// place of its original.
    number: u64,
    queue: WeakQueue<PyItem>,
    shutdown_timeout: Option<f64>,
}

/// All queues that have drain threads, and the progress of the interpreter's exit.
struct LiveQueues {
    /// In order of creation.
    queues: Vec<LiveQueue>,
    /// The number of callbacks that `atexit` has.
    callbacks: usize,
    /// The time that the exit has spent on ending queues.
    spent: Duration,
    /// The time that the exit has waited for the log.
    spent_on_log: Duration,
    /// Whether Ctrl-C has ended the wait for a queue.
    is_interrupted: bool,
    /// Set by the last callback: a queue made later would stay open.
    is_over: bool,
}

/// Locked while attached and never across a wait: a fork happens while no other thread is attached,
/// with a GIL or without, and so never finds the lock held.
static LIVE: Mutex<LiveQueues> = Mutex::new(LiveQueues {
    queues: Vec::new(),
    callbacks: 0,
    spent: Duration::ZERO,
    spent_on_log: Duration::ZERO,
    is_interrupted: false,
    is_over: false,
});

/// Set when the exit of the interpreter ends the first queue.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Whether the exit of the interpreter has begun to close the queues.
#[pyfunction]
pub(crate) fn is_exiting() -> bool {
    // Relaxed: the answer may be out of date when it is returned.
    EXITING.load(Ordering::Relaxed)
}

/// Whether the exit has closed all queues, and would not close another.
pub(crate) fn is_exit_over() -> bool {
    LIVE.lock().is_over
}

/// Registers a queue to be ended at the exit of the interpreter. Returns `false` if the exit has
/// already ended the last queue.
///
/// `atexit` calls the last callback first, so what the application registered earlier is called
/// after the queue has delivered.
pub(crate) fn register(
    py: Python<'_>,
    number: u64,
    queue: WeakQueue<PyItem>,
    shutdown_timeout: Option<f64>,
) -> PyResult<bool> {
    let has_ended_callbacks = {
        let mut live = LIVE.lock();
        if live.is_over {
            return Ok(false);
        }
        live.queues.retain(|other| !other.queue.is_gone());
        let place = live.queues.partition_point(|other| other.number < number);
        live.queues.insert(place, LiveQueue { number, queue, shutdown_timeout });
        live.callbacks += 1;
        live.callbacks > 2 * live.queues.len() + ENDED_CALLBACKS
    };
    let atexit = py.import("atexit")?;
    if has_ended_callbacks {
        // One pass for many queues: it compares all callbacks of the process, each by its own
        // `__eq__`.
        if let Err(error) = atexit.call_method1("unregister", (EndedQueues,)) {
            error.write_unraisable(py, None);
        }
        let mut live = LIVE.lock();
        live.callbacks = live.queues.len();
    }
    atexit.call_method1("register", (QueueExit { number },))?;
    Ok(true)
}

/// What `atexit` has of a queue. It ends the queue and all that were made after it, the newest
/// first.
#[pyclass(frozen, module = "batchqueue._core")]
struct QueueExit {
    number: u64,
}

#[pymethods]
impl QueueExit {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        forget_parent(py, false)?;
        let queues = {
            let mut live = LIVE.lock();
            let first = live.queues.partition_point(|other| other.number < self.number);
            live.queues.split_off(first)
        };
        end(py, &queues)
    }
}

/// Equals the callback of each queue that is gone.
#[pyclass(frozen, module = "batchqueue._core")]
struct EndedQueues;

#[pymethods]
impl EndedQueues {
    #[allow(clippy::unused_self)] // as Python calls it
    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<QueueExit>().is_ok_and(|callback| {
            let (live, number) = (LIVE.lock(), callback.get().number);
            live.queues.binary_search_by_key(&number, |queue| queue.number).is_err()
        })
    }
}

/// End every queue that is left, in reverse order of creation: the last callback of the exit.
/// Accepted items are delivered, within each queue's `shutdown_timeout`.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) -> PyResult<()> {
    forget_parent(py, false)?;
    let queues = {
        let mut live = LIVE.lock();
        live.is_over = true;
        std::mem::take(&mut live.queues)
    };
    let ended = end(py, &queues);
    wait_for_threads(py).and(ended)
}

/// Ends queues, the last one first, within what is left of their time. After Ctrl-C, queues abandon
/// their remaining items; handlers that have none left are closed as usual.
fn end(py: Python<'_>, queues: &[LiveQueue]) -> PyResult<()> {
    // Relaxed: as in `is_exiting`.
    EXITING.store(true, Ordering::Relaxed);
    let deadline_after = |spent: Duration, shutdown_timeout: Option<f64>| {
        // Less the time that earlier queues took, so that the exit as a whole takes no longer than
        // the longest timeout.
        let left = shutdown_timeout.map(|timeout| (timeout - spent.as_secs_f64()).max(0.0));
        deadline_of(left.map(Timeout))
    };
    let spent = LIVE.lock().spent;
    for LiveQueue { queue, shutdown_timeout, .. } in queues {
        queue.close_to_outside(deadline_after(spent, *shutdown_timeout)?);
    }
    let mut ended = Ok(());
    for LiveQueue { queue, shutdown_timeout, .. } in queues.iter().rev() {
        let began = Instant::now();
        let (spent, is_interrupted) = {
            let live = LIVE.lock();
            (live.spent, live.is_interrupted)
        };
        let deadline = if is_interrupted && !queue.is_all_handled() {
            Some(began)
        } else {
            deadline_after(spent, *shutdown_timeout)?
        };
        let mut result = queue.end_with(deadline, &mut InterpreterPause(py));
        if result.is_err() {
            let _ = queue.end_with(Some(began), &mut InterpreterPause(py));
        }
        LIVE.lock().spent += began.elapsed();
        result = result.and(wait_logged(py, queue));
        if let Err(interrupt) = result {
            LIVE.lock().is_interrupted = true;
            ended = ended.and(Err(interrupt));
        }
    }
    ended
}

/// Waits for the log lines of a queue. If the log hangs, many queues delay the exit no longer than
/// one of them.
fn wait_logged(py: Python<'_>, queue: &WeakQueue<PyItem>) -> PyResult<()> {
    let began = Instant::now();
    let left = PATIENCE.saturating_sub(LIVE.lock().spent_on_log);
    let waited = queue.wait_logged(began + left, &mut InterpreterPause(py));
    LIVE.lock().spent_on_log += began.elapsed();
    waited
}

/// Waits for the threads that queues share, none of which may return into a finalizing interpreter.
/// A thread that is stuck in a handler is left to the guard in `interpreter.rs`.
fn wait_for_threads(py: Python<'_>) -> PyResult<()> {
    let deadline = Some(Instant::now() + LAST_STEPS);
    for pool in live_pools() {
        while !pool.has_ended() && deadline.is_some_and(|deadline| Instant::now() < deadline) {
            InterpreterPause(py).pause(&mut |limit| {
                pool.wait_ended(slice(limit, deadline));
            })?;
        }
    }
    py.detach(|| {
        rebalancer::wait_ended(deadline);
        wait_supervisor_ended(deadline);
        wait_helpers_ended(deadline);
    });
    Ok(())
}

/// Fill the lazy statics of the bindings that every part of the package reaches, as soon as the
/// core is loaded. A fork during an initialization would leave the child waiting for a thread that
/// does not exist there.
#[pyfunction]
pub(crate) fn fill_statics(py: Python<'_>) -> PyResult<()> {
    errors::import_own(py)?;
    has_gil(py);
    prepare_arrow_data(py)?;
    PutTime::start();
    // The statics of PyO3 itself that producers, drain threads and aggregators reach.
    let class = py.get_type::<PyString>();
    class.fully_qualified_name()?;
    class.mro();
    PyList::empty(py).try_iter()?.size_hint();
    // A thread that is already attached would not check that the interpreter is initialized.
    py.detach(|| Python::try_attach(|_| ()));
    Ok(())
}

/// Fill the lazy statics of the bindings that need classes of the package, before the first queue.
/// The others are filled by `fill_statics`.
///
/// Args:
///     config: A `BatchQueueConfig` with a retry policy and a balancer. Reading it fills the
///         statics that hold the names of its attributes.
///     options: A `HandlerOptions`, likewise.
#[pyfunction]
pub(crate) fn prepare_for_forks(
    py: Python<'_>,
    config: &Bound<'_, PyAny>,
    options: &Bound<'_, PyAny>,
) -> PyResult<()> {
    config.extract::<Settings<'_>>()?;
    options.extract::<HandlerOptions<'_>>()?;
    errors::import_futures(py)?;
    coroutine_type(py)?;
    future_class(py)?;
    prepare_threads(py);
    QueueExit::type_object(py);
    EndedQueues::type_object(py);
    Ok(())
}

/// Forget, in a forked child, all queues of the parent: their drain threads do not exist here, and
/// their locks may be held forever. Do nothing in any other process, or for the second time.
///
/// Python's hook for forks calls this. In the child of a host written in C that forks without those
/// hooks, every entry into the package whose state a parent may have left calls it, and it runs
/// them.
///
/// Args:
///     in_hook: Whether the hook calls.
#[pyfunction]
#[pyo3(signature = (in_hook=false))]
pub(crate) fn forget_parent(py: Python<'_>, in_hook: bool) -> PyResult<()> {
    let is_new = settle_in_child(|| {
        {
            let mut live = LIVE.lock();
            std::mem::forget(std::mem::take(&mut live.queues));
            (live.spent, live.spent_on_log) = (Duration::ZERO, Duration::ZERO);
            live.is_interrupted = false;
        }
        forget_pools();
        rebalancer::forget();
        forget_supervisor();
        forget_helpers();
        waits::forget();
        forget_locks();
        forget_drain_thread();
        // The thread that restarted a queue does not exist here. Relaxed: this is the only thread.
        RESTARTING.store(false, Ordering::Relaxed);
    });
    if is_new && !in_hook && has_gil(py) { run_fork_hooks(py) } else { Ok(()) }
}
