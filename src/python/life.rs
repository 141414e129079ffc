//! The life of a queue in one process. A forked child cannot use that of its parent, whose drain
//! threads do not exist there and whose locks may be held for ever. With `restart_after_fork` it
//! gets its own at the first use, from the recipe: the same settings and handlers, and no items.
//!
//! Everything that is read of the parent's life in a child was written before the fork, by threads
//! that were attached to the interpreter: no lock of it is taken.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::config::{CoreSettings, PyAssign, Settings};
use super::errors::{forked, too_late};
use super::handler::{HandlerMethods, HandlerOptions, HandlerRegistry, Interpreter};
use super::interpreter::{
    InterpreterPause, Timeout, deadline_of, generation, use_stacks_of_python,
};
use super::item::{ItemType, PyItem, refused};
use super::process::register;
use super::results::Submissions;
use crate::arrow::Buffers;
use crate::{BatchQueue, Selector};

/// How long a thread sleeps that waits for another one to restart a queue.
const MOMENT: Duration = Duration::from_millis(1);

/// Whether a thread of this process restarts a queue.
static RESTARTING: AtomicBool = AtomicBool::new(false);

/// In a forked child: the thread that restarted a queue does not exist here.
pub(super) fn forget_restarts() {
    // Relaxed: this is the only thread.
    RESTARTING.store(false, Ordering::Relaxed);
}

/// A queue in the process with one generation.
pub(super) struct Life {
    /// Taken out, and leaked, only by the destructor in a forked child.
    core: Option<BatchQueue<PyItem>>,
    pub(super) generation: u32,
    pub(super) registry: HandlerRegistry,
    /// The function of a custom balancer, which the core holds as well.
    assign: Option<Arc<PyAssign>>,
    /// For `produce_arrow`.
    pub(super) buffers: Buffers,
    /// For `submit`.
    pub(super) submissions: Arc<Submissions>,
    shutdown_timeout: Option<f64>,
    /// That of a child, in the child.
    next: OnceLock<Box<Life>>,
}

impl Life {
    pub(super) fn core(&self) -> PyResult<&BatchQueue<PyItem>> {
        self.core.as_ref().ok_or_else(forked)
    }

    /// An object as an item of this queue, with the key of the class whose handler it goes to.
    #[inline]
    pub(super) fn item(&self, object: Bound<'_, PyAny>) -> PyResult<PyItem> {
        if self.registry.resolves() { self.resolved_item(object) } else { Ok(PyItem::new(object)) }
    }

    #[cold]
    fn resolved_item(&self, object: Bound<'_, PyAny>) -> PyResult<PyItem> {
        let key = self.registry.key_of(&object.get_type())?;
        Ok(PyItem::with_key(object, key))
    }

    /// The same as `Queue::produce`, if items are resolved or no thread drains the queue.
    #[cold]
    pub(super) fn produce_resolved(
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

    pub(super) fn name(&self) -> &str {
        // Works in a forked child too: it locks nothing.
        self.core.as_ref().map_or("", BatchQueue::name)
    }

    /// The life in this process, if it has begun.
    pub(super) fn current(&self) -> Option<&Self> {
        let mut life = self;
        while life.generation != generation() {
            life = life.next.get()?;
        }
        Some(life)
    }

    /// The last one that has begun.
    fn last(&self) -> &Self {
        let mut life = self;
        while let Some(next) = life.next.get() {
            life = next;
        }
        life
    }

    /// Whether the queue was shut down before the fork. Locks nothing.
    pub(super) fn was_closed(&self) -> bool {
        let core = self.last().core.as_ref();
        core.is_none_or(|core| core.flow.ending.is_closing())
    }

    /// Begins the life in a forked child, unless another thread does.
    ///
    /// `number`: the place of the queue in the order of creation.
    /// `closed`: it ends immediately, and calls no handler.
    pub(super) fn restart(
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
            // Acquire: pairs with the Release in `Restarting`; the life is in its place.
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

    /// Visits what only this queue holds, if its threads have ended.
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<bool, PyTraverseError> {
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

/// Ends a queue without threads that is dropped, in the time of its settings. A signal handler that
/// raises ends it earlier.
fn end_inline(py: Python<'_>, core: &BatchQueue<PyItem>, shutdown_timeout: Option<f64>) {
    let shut_down = deadline_of(shutdown_timeout.map(Timeout))
        .and_then(|deadline| core.shutdown_with(deadline, &mut InterpreterPause(py)));
    if let Err(error) = shut_down {
        error.write_unraisable(py, None);
        py.detach(|| core.shutdown(Some(Instant::now())));
    }
}

/// While it lives, no other thread restarts a queue.
struct Restarting;

impl Drop for Restarting {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `restart`.
        RESTARTING.store(false, Ordering::Release);
    }
}

/// What a queue is made of.
pub(super) struct Recipe {
    pub(super) name: String,
    pub(super) config: Py<PyAny>,
    pub(super) consumers: Py<PyAny>,
    /// Whether there is one consumer per drain thread.
    pub(super) per_thread: bool,
    pub(super) dead_letter: Py<PyAny>,
    pub(super) default_handler: Py<PyAny>,
    /// The handlers that the queue has now. Locked while attached, and never across a wait, so no
    /// fork finds it locked.
    pub(super) handlers: Mutex<Registrations>,
}

/// The handlers that a queue has.
#[derive(Default)]
pub(super) struct Registrations {
    by_type: HashMap<KnownType, Registration>,
    /// How many were ever noted.
    noted: u64,
}

/// The handlers of one type: what `add_handlers` was given.
struct Registration {
    order: u64,
    item_type: Py<PyAny>,
    handlers: Py<PyAny>,
    options: Py<PyAny>,
}

impl Recipe {
    /// Starts a queue of this recipe, with its handlers or without any.
    ///
    /// `number`: its place in the order of creation.
    pub(super) fn start(
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
        let registry = HandlerRegistry::new(&self.name, common, submissions.clone());
        if is_inline {
            registry.resolve();
        }
        let host = Interpreter { entries: registry.entries(), submissions: submissions.clone() };
        let mut builder =
            BatchQueue::builder(self.name.clone(), settings).host(host).inline(is_inline);
        if with_handlers {
            let dead_letter: Option<HandlerMethods<'_>> = self.dead_letter.extract(py)?;
            if let Some(keeper) = dead_letter {
                builder = builder.dead_letter(registry.add_keeper(keeper)?);
            }
            let consumers: Vec<HandlerMethods<'_>> = self.consumers.extract(py)?;
            let consumers = registry.add_consumers(consumers)?;
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

    /// Notes the handlers of a type, in place of those before.
    pub(super) fn note(&self, item_type: &ItemType<'_>, handlers: Py<PyAny>, options: Py<PyAny>) {
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
    pub(super) fn forget(&self, item_type: &ItemType<'_>) {
        let former = self.handlers.lock().by_type.remove(&KnownType::of(item_type));
        drop(former);
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
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

/// A class, by its address, which the registration keeps; or a tag.
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

/// If no thread drains the queue: handles what was accepted, or ends the queue if it is closed.
/// What waits when the deadline has come stays in the queue. So a call that puts items in begins
/// with this as well: nothing else would make room.
///
/// # Errors
/// A signal handler raised while a batch waited for its next attempt, or for another caller.
#[inline]
pub(super) fn run_inline(
    py: Python<'_>,
    queue: &BatchQueue<PyItem>,
    deadline: Option<Instant>,
) -> PyResult<()> {
    if !queue.is_inline() {
        return Ok(());
    }
    queue.run_inline(deadline, &mut InterpreterPause(py))
}
