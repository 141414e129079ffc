//! The types and handlers that a queue was given.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::desks::desk_of;
use super::py_handler::PyHandler;
use super::retry_on::RetryOn;
use super::spec::{HandlerMethods, HandlerOptions, HandlerSpec};
use crate::arrow::Tags;
use crate::control::departure::Knowledge;
use crate::python::config::{RetrySettings, millis};
use crate::python::exceptions::{ConfigError, QueueClosedError};
use crate::python::interpreter::{GuardedRef, InterpreterPause, NoPause};
use crate::python::item::{ItemType, PyItem};
use crate::{AddHandlerError, BatchQueue, HandledType, HandlerRef, Handlers, Pause, TypeKey};

/// How many types that may have gone, and handlers that may be unused, a call checks.
const CHECKS: usize = 8;

/// What all handlers of a queue share.
pub(crate) struct CommonCallbacks {
    /// For handlers without `on_error`.
    pub(crate) error_handler: Option<Py<PyAny>>,
    /// The exceptions that the retry policy applies to, as a tuple.
    pub(crate) retry_on: Option<Py<PyAny>>,
}

/// The types and handlers of one queue, for identity and for the garbage collector.
pub(crate) struct HandlerRegistry {
    common: CommonCallbacks,
    entries: Mutex<Entries>,
    /// The name of the queue.
    queue: Arc<str>,
}

impl HandlerRegistry {
    pub(crate) fn new(queue: &str, common: CommonCallbacks) -> Self {
        Self { common, entries: Mutex::default(), queue: queue.into() }
    }

    /// The handler of a queue's dead letters.
    pub(crate) fn add_keeper(&self, keeper: HandlerMethods<'_>) -> PyResult<HandlerRef<PyItem>> {
        let spec = HandlerSpec::new(keeper)?;
        Ok(self.entries.lock().handler(spec, self).1)
    }

    /// The consumers of a queue, which get the items of all types.
    pub(crate) fn add_consumers(
        &self,
        consumers: Vec<HandlerMethods<'_>>,
    ) -> PyResult<Vec<HandlerRef<PyItem>>> {
        let specs = HandlerSpec::all(consumers)?;
        let mut entries = self.entries.lock();
        Ok(specs.into_iter().map(|spec| entries.handler(spec, self).1).collect())
    }

    /// Gives a type one handler, or several, one for each of as many partitions. With `wait`,
    /// returns when no thread is inside a handler that the type had before.
    pub(crate) fn add(
        &self,
        py: Python<'_>,
        queue: &BatchQueue<PyItem>,
        item_type: &ItemType<'_>,
        handlers: Vec<HandlerMethods<'_>>,
        options: HandlerOptions<'_>,
        wait: bool,
    ) -> PyResult<()> {
        let HandlerOptions { weight, max_batch_items, max_delay_ms, retry, dead_letter } = options;
        let max_delay = max_delay_ms.map(|delay| millis("max_delay_ms", delay)).transpose()?;
        let (retry, retry_on) = retry.map(RetrySettings::into_core).transpose()?.unzip();
        let specs = HandlerSpec::all(handlers)?;
        let keeper = dead_letter.map(HandlerSpec::new).transpose()?;
        let name = item_type.name()?;
        let text = format!("queue {:?}: {name}", queue.name());
        let addresses: Vec<_> = specs.iter().chain(&keeper).map(HandlerSpec::address).collect();
        let kinds = retry_on.map(|kinds| Arc::new(GuardedRef::new(kinds)));
        let (former, before);
        let (key, handlers) = {
            let mut entries = self.entries.lock();
            let mut handler = |spec| entries.handler(spec, self);
            let handlers: Vec<_> = specs.into_iter().map(&mut handler).collect();
            let dead_letter = keeper.map(handler).map(|(_, reference)| reference);
            let key = entries.keep_type(item_type);
            former = entries.handlers_of(key);
            before = handlers
                .iter()
                .map(|(handler, _)| (handler.clone(), handler.set_retry_on(key, kinds.clone())))
                .collect::<Vec<_>>();
            let instances = handlers.into_iter().map(|(_, reference)| reference).collect();
            (key, Handlers { instances, dead_letter })
        };
        let handled = HandledType { key, name, weight, max_batch_items, max_delay, retry };
        let added = if wait {
            queue.add_handler_with(handled, handlers, &mut InterpreterPause(py))
        } else {
            queue.add_handler_with(handled, handlers, &mut NoPause).or_else(|error| match error {
                // The wait ended before it began.
                AddHandlerError::Interrupted(()) => Ok(()),
                AddHandlerError::Closed(closed) => Err(AddHandlerError::Closed(closed)),
                AddHandlerError::Config(problem) => Err(AddHandlerError::Config(problem)),
            })
        };
        let is_refused =
            matches!(added, Err(AddHandlerError::Closed(_) | AddHandlerError::Config(_)));
        self.entries.lock().note_added(key, addresses, is_refused);
        if is_refused {
            for (handler, kinds) in before {
                handler.set_retry_on(key, kinds);
            }
        } else {
            let stays =
                |former: &Arc<PyHandler>| before.iter().any(|(now, _)| Arc::ptr_eq(now, former));
            for handler in former.iter().filter(|handler| !stays(handler)) {
                handler.set_retry_on(key, None);
            }
            // Not used by this call any more.
            drop((former, before));
        }
        self.forget(queue);
        added.map_err(|error| match error {
            AddHandlerError::Closed(_) => QueueClosedError::new_err(format!(
                "{text} was not registered, the queue is shut down; make a new BatchQueue"
            )),
            AddHandlerError::Config(problem) => {
                ConfigError::new_err(format!("queue {:?}: {problem}", queue.name()))
            }
            AddHandlerError::Interrupted(interrupt) => interrupt,
        })
    }

    /// Returns `false` if the type had no handler, or if the deadline came before its end.
    pub(crate) fn remove<P: Pause>(
        &self,
        queue: &BatchQueue<PyItem>,
        item_type: &ItemType<'_>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<bool, P::Interrupt> {
        let key = item_type.known_to(&self.entries.lock().tags);
        let removed = queue.remove_handler_with(key, deadline, pause);
        let former = {
            let mut entries = self.entries.lock();
            let former = entries.handlers_of(key);
            entries.note_removed(key);
            former
        };
        for handler in former {
            handler.set_retry_on(key, None);
        }
        self.forget(queue);
        removed
    }

    /// Drops the handlers that no type uses any more, and the types that have gone.
    pub(crate) fn forget(&self, queue: &BatchQueue<PyItem>) {
        let forgotten = {
            let mut entries = self.entries.lock();
            (entries.take_unused(), entries.take_gone(|key| queue.shared.knowledge_of(key)))
        };
        // Python objects die after the lock is free.
        drop(forgotten);
    }

    /// The registered tags, as of now.
    pub(crate) fn tags(&self) -> Arc<Tags> {
        self.entries.lock().tags.clone()
    }

    /// The entries, locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock()
    }

    /// Visits nothing while another thread has the entries locked.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(entries) = self.entries.try_lock() else { return Ok(()) };
        for known in entries.handlers.values() {
            known.handler.traverse(visit)?;
        }
        for known in entries.types.values() {
            visit.call(&known.object)?;
        }
        visit.call(&self.common.error_handler)?;
        visit.call(&self.common.retry_on)
    }
}

/// A handler instance.
struct KnownHandler {
    handler: Arc<PyHandler>,
    reference: HandlerRef<PyItem>,
    /// How often it is among the handlers of the types.
    types: usize,
    /// Whether it is in the list of those that may be unused.
    is_listed: bool,
}

impl KnownHandler {
    /// Whether no type has it, and the core has no reference.
    fn is_unused(&self) -> bool {
        // Both of these two are here.
        self.types == 0 && Arc::strong_count(&self.handler) <= 2
    }
}

/// A class or a tag.
struct KnownType {
    object: Py<PyAny>,
    /// The text, if it is a tag.
    tag: Option<Box<str>>,
    /// The addresses of its handler instances.
    handlers: Vec<usize>,
    /// How many calls are about to give it handlers.
    adding: usize,
}

/// The types and the handlers. A class that is kept here keeps its address, which is the core's
/// key, from being used again. It is kept until the core knows nothing of it; what may be queued
/// even then keeps it alive as well, because an item holds its class.
#[derive(Default)]
pub(crate) struct Entries {
    types: HashMap<TypeKey, KnownType>,
    /// The tags among the types.
    tags: Arc<Tags>,
    /// By the address of the instance, which the handler keeps alive.
    handlers: HashMap<usize, KnownHandler>,
    /// Instances that lost their last type. The core may still have one: it may be in its last
    /// call, or two threads registered handlers of the same type concurrently.
    perhaps_unused: VecDeque<usize>,
    /// How many of these, the first ones, were not checked yet.
    unchecked: usize,
    /// Types that have lost their handlers, or never got any; the core may still know of them.
    perhaps_gone: VecDeque<TypeKey>,
}

impl Entries {
    /// Returns the `HandlerRef` of an instance. There is one per instance, so that `on_idle` and
    /// `on_close` are called once.
    fn handler(
        &mut self,
        spec: HandlerSpec<'_>,
        registry: &HandlerRegistry,
    ) -> (Arc<PyHandler>, HandlerRef<PyItem>) {
        let address = spec.address();
        if let Some(known) = self.handlers.get(&address) {
            return (known.handler.clone(), known.reference.clone());
        }
        let HandlerSpec { methods, name, aggregating } = spec;
        let common = &registry.common;
        let (instance, protected, consume, on_idle, on_error, on_close, works_elsewhere) = methods;
        let py = instance.py();
        // An aggregator that emits nothing has nothing to do when idle.
        let on_idle =
            on_idle.filter(|_| aggregating.as_ref().is_none_or(|aggregating| aggregating.emits()));
        let handler = Arc::new(PyHandler {
            name,
            works_elsewhere,
            desk: desk_of(&protected),
            protected: GuardedRef::new(protected.unbind()),
            instance: GuardedRef::new(instance.unbind()),
            consume: GuardedRef::new(consume),
            aggregating,
            on_idle: on_idle.map(GuardedRef::new),
            on_error: on_error.map(GuardedRef::new),
            on_close: on_close.map(GuardedRef::new),
            error_handler: common
                .error_handler
                .as_ref()
                .map(|handler| GuardedRef::new(handler.clone_ref(py))),
            queue: registry.queue.clone(),
            retry_on: RetryOn::new(common.retry_on.as_ref().map(|kinds| kinds.clone_ref(py))),
        });
        let reference = HandlerRef::with_desk(handler.clone(), handler.desk.clone());
        let known = KnownHandler {
            handler: handler.clone(),
            reference: reference.clone(),
            types: 0,
            is_listed: false,
        };
        self.handlers.insert(address, known);
        (handler, reference)
    }

    /// The instances that handle a type.
    fn handlers_of(&self, key: TypeKey) -> Vec<Arc<PyHandler>> {
        let addresses = self.types.get(&key).map_or(&[][..], |known| &known.handlers);
        let known = addresses.iter().filter_map(|address| self.handlers.get(address));
        known.map(|known| known.handler.clone()).collect()
    }

    /// The class or the tag with this key.
    pub(crate) fn type_of(&self, py: Python<'_>, key: TypeKey) -> Option<Py<PyAny>> {
        self.types.get(&key).map(|known| known.object.clone_ref(py))
    }

    /// Returns the key of a type that is about to get handlers. A new tag gets its key.
    fn keep_type(&mut self, item_type: &ItemType<'_>) -> TypeKey {
        let key = item_type.known_to(&self.tags);
        let key = match item_type {
            ItemType::Tag(tag, _) if key == Tags::UNKNOWN => Arc::make_mut(&mut self.tags).add(tag),
            _ => key,
        };
        let known = self.types.entry(key).or_insert_with(|| KnownType {
            object: item_type.object().clone().unbind(),
            tag: item_type.tag().map(Into::into),
            handlers: Vec::new(),
            adding: 0,
        });
        known.adding += 1;
        key
    }

    /// After the core was given the handlers at these addresses for a type, unless it refused them.
    fn note_added(&mut self, key: TypeKey, handlers: Vec<usize>, is_refused: bool) {
        for address in &handlers {
            self.count(*address, |types| types + usize::from(!is_refused));
        }
        let Some(known) = self.types.get_mut(&key) else { return };
        known.adding -= 1;
        if is_refused {
            self.perhaps_gone.push_back(key);
        } else {
            let before = std::mem::replace(&mut known.handlers, handlers);
            self.note_unused(&before);
        }
    }

    /// After the core was asked to remove the handlers of a type.
    fn note_removed(&mut self, key: TypeKey) {
        let known = self.types.get_mut(&key);
        let before = known.map(|known| std::mem::take(&mut known.handlers));
        if let Some(before) = before {
            self.note_unused(&before);
            self.perhaps_gone.push_back(key);
        }
    }

    fn note_unused(&mut self, handlers: &[usize]) {
        for address in handlers {
            self.count(*address, |types| types - 1);
        }
    }

    /// Changes how often an instance is among the handlers of the types.
    fn count(&mut self, address: usize, change: impl FnOnce(usize) -> usize) {
        let Some(known) = self.handlers.get_mut(&address) else { return };
        known.types = change(known.types);
        if known.types == 0 && !known.is_listed {
            known.is_listed = true;
            self.perhaps_unused.push_front(address);
            self.unchecked += 1;
        }
    }

    /// Takes the handlers that no type uses. Checks those that lost their last type since the last
    /// call, and a few of the others.
    fn take_unused(&mut self) -> Vec<KnownHandler> {
        let mut unused = Vec::new();
        let checks = std::mem::take(&mut self.unchecked) + CHECKS;
        for _ in 0..self.perhaps_unused.len().min(checks) {
            let Some(address) = self.perhaps_unused.pop_front() else { break };
            let Some(known) = self.handlers.get_mut(&address) else { continue };
            if known.is_unused() {
                unused.extend(self.handlers.remove(&address));
            } else if known.types == 0 {
                self.perhaps_unused.push_back(address);
            } else {
                known.is_listed = false;
            }
        }
        unused
    }

    /// Takes the types of which the core knows nothing. Checks a few.
    fn take_gone(&mut self, knowledge_of: impl Fn(TypeKey) -> Knowledge) -> Vec<KnownType> {
        let mut gone = Vec::new();
        for _ in 0..self.perhaps_gone.len().min(CHECKS) {
            let Some(key) = self.perhaps_gone.pop_front() else { break };
            // Without an entry, it was listed twice.
            let Some(known) = self.types.get(&key) else { continue };
            let knowledge = if known.adding > 0 { Knowledge::Leaving } else { knowledge_of(key) };
            match knowledge {
                Knowledge::Handled => (),
                Knowledge::Leaving => self.perhaps_gone.push_back(key),
                Knowledge::Nothing => gone.extend(self.types.remove(&key)),
            }
        }
        for tag in gone.iter().filter_map(|known: &KnownType| known.tag.as_deref()) {
            Arc::make_mut(&mut self.tags).remove(tag);
        }
        gone
    }
}
