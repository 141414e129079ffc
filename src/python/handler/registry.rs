//! The types and handlers that a queue was given.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType, PyWeakrefMethods, PyWeakrefReference};

use crate::arrow::Tags;
use crate::control::state::Knowledge;
use crate::error::AddHandlerError;
use crate::flow::handler::lock::HandlerLock;
use crate::flow::handler::{HandlerRef, Handlers};
use crate::item::{HandledType, TypeKey};
use crate::python::aggregator::{Aggregating, aggregating_of};
use crate::python::config::{CommonCallbacks, RetrySettings, millis};
use crate::python::errors::{ConfigError, QueueClosedError};
use crate::python::future::Submissions;
use crate::python::handler::py_handler::{Opening, PyHandler, RetryOn};
use crate::python::interpreter::{GuardedRef, InterpreterPause, NoPause};
use crate::python::item::{ItemType, PyItem};
use crate::queue::BatchQueue;
use crate::threads::waits::Pause;

/// The types and handlers of one queue, for identity and for the garbage collector.
pub(crate) struct HandlerRegistry {
    pub(super) common: CommonCallbacks,
    pub(crate) entries: Arc<Mutex<Entries>>,
    /// See [`resolves`](Self::resolves).
    resolves: AtomicBool,
    cache: Mutex<Cache>,
    pub(super) submissions: Arc<Submissions>,
}

impl HandlerRegistry {
    pub(crate) fn new(common: CommonCallbacks, submissions: Arc<Submissions>) -> Self {
        let (entries, resolves, cache) = Default::default();
        Self { common, entries, resolves, cache, submissions }
    }

    /// Adds a handler for the types that have none.
    pub(crate) fn add_default(
        &self,
        queue: &BatchQueue<PyItem>,
        handler: HandlerMethods<'_>,
    ) -> PyResult<()> {
        let reference = self.reference(handler)?;
        // The rows of all tags without a handler share one key.
        for (key, weight) in [(DEFAULT, 1.0), (Tags::UNKNOWN, 0.001)] {
            let item_type = HandledType { name: "default".to_owned(), weight, ..key.into() };
            let handlers = Handlers { instances: vec![reference.clone()], dead_letter: None };
            let added = queue.add_handler_with(item_type, handlers, &mut NoPause);
            if let Err(AddHandlerError::Config(problem)) = added {
                return Err(problem.into());
            }
        }
        self.entries.lock().has_default = true;
        self.resolve();
        Ok(())
    }

    /// Returns a handler for the core: of dead letters, or a consumer, which gets the items of all
    /// types.
    pub(crate) fn reference(&self, handler: HandlerMethods<'_>) -> PyResult<HandlerRef<PyItem>> {
        let spec = HandlerSpec::new(handler)?;
        Ok(self.entries.lock().handler(spec, self).1)
    }

    /// Gives a type one handler, or several with a partition each. With `wait`, returns once no
    /// thread is inside a previous handler of the type.
    pub(crate) fn add(
        &self,
        py: Python<'_>,
        queue: &BatchQueue<PyItem>,
        item_type: &ItemType<'_>,
        handlers: Vec<HandlerMethods<'_>>,
        options: HandlerOptions<'_>,
        wait: bool,
    ) -> PyResult<()> {
        let HandlerOptions { weight, max_batch_items, replace, subclasses, .. } = options;
        let max_delay =
            options.max_delay_ms.map(|delay| millis("max_delay_ms", delay)).transpose()?;
        let (retry, retry_on) = options.retry.map(RetrySettings::into_core).transpose()?.unzip();
        // Before the registry is locked: reading an attribute may run Python code.
        let specs: Vec<_> = handlers.into_iter().map(HandlerSpec::new).collect::<PyResult<_>>()?;
        let keeper = options.dead_letter.map(HandlerSpec::new).transpose()?;
        let name = item_type.name()?;
        let text = format!("queue {:?}: {name}", queue.name());
        let addresses: Vec<_> = specs.iter().chain(&keeper).map(HandlerSpec::address).collect();
        let kinds = retry_on.map(|kinds| Arc::new(GuardedRef::new(kinds)));
        let (former, before);
        let (key, handlers) = {
            let mut entries = self.entries.lock();
            if !replace && queue.is_running() && entries.is_handled(item_type) {
                return Err(ConfigError::new_err(format!(
                    "{text} has a handler already; pass replace=True to replace it, or call \
                     remove_handler first"
                )));
            }
            let mut handler = |spec| entries.handler(spec, self);
            let handlers: Vec<_> = specs.into_iter().map(&mut handler).collect();
            let dead_letter = keeper.map(handler).map(|(_, reference)| reference);
            let key = entries.keep_type(item_type);
            former = entries.handlers_of(key);
            before = handlers
                .iter()
                .map(|(handler, _)| (handler.clone(), handler.retry_on.set(key, kinds.clone())))
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
        self.entries.lock().note_added(key, addresses, subclasses, is_refused);
        if subclasses && !is_refused {
            self.resolve();
        }
        self.forget_keys();
        if is_refused {
            for (handler, kinds) in before {
                handler.retry_on.set(key, kinds);
            }
        } else {
            let stays =
                |former: &Arc<PyHandler>| before.iter().any(|(now, _)| Arc::ptr_eq(now, former));
            for handler in former.iter().filter(|handler| !stays(handler)) {
                handler.retry_on.set(key, None);
            }
            // Dropped so that `forget` can find them unused.
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

    /// Removes the handlers of a type. Returns `false` if it had none, or if the deadline came
    /// first.
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
        self.forget_keys();
        for handler in former {
            handler.retry_on.set(key, None);
        }
        self.forget(queue);
        removed
    }

    /// Drops the handlers that no type uses, and the types that the core no longer knows.
    pub(crate) fn forget(&self, queue: &BatchQueue<PyItem>) {
        let forgotten = {
            let mut entries = self.entries.lock();
            (entries.take_unused(), entries.take_gone(|key| queue.control.knowledge_of(key)))
        };
        // Python objects are dropped after the lock is released.
        drop(forgotten);
    }

    /// Visits the entries unless another thread has them locked.
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

// The entries of a registry: its types and handler instances.

/// The number of types in `perhaps_gone`, and of handlers in `perhaps_unused`, that a call checks.
const CHECKS: usize = 8;

/// The most types without a handler that are named.
const MOST_UNHANDLED: usize = 8;

/// A handler instance.
pub(super) struct KnownHandler {
    pub(super) handler: Arc<PyHandler>,
    reference: HandlerRef<PyItem>,
    /// The number of times that it is among the handlers of the types.
    types: usize,
    /// Whether it is in `perhaps_unused`.
    is_listed: bool,
}

impl KnownHandler {
    /// Whether no type uses the handler, and the core has no reference to it.
    fn is_unused(&self) -> bool {
        // This struct holds both: `handler` and `reference`.
        self.types == 0 && Arc::strong_count(&self.handler) <= 2
    }
}

/// A class or a tag.
pub(super) struct KnownType {
    pub(super) object: Py<PyAny>,
    /// The text, if it is a tag.
    tag: Option<Box<str>>,
    /// The addresses of its handler instances.
    handlers: Vec<usize>,
    /// The number of calls that are about to give it handlers.
    adding: usize,
    /// Whether the handlers also take the items of subclasses.
    subclasses: bool,
}

/// The types and the handlers. A class that is kept here keeps its address, which is the core's
/// key, from being reused. It is kept until the core no longer knows it; items that may be queued
/// even then keep their class alive themselves.
#[derive(Default)]
pub(crate) struct Entries {
    pub(super) types: HashMap<TypeKey, KnownType>,
    /// The tags among the types.
    pub(crate) tags: Arc<Tags>,
    /// By the address of the instance, which the handler keeps alive.
    pub(super) handlers: HashMap<usize, KnownHandler>,
    /// Instances that lost their last type. The core may still have one: its last call may be under
    /// way, or two threads may have registered handlers of the same type concurrently.
    perhaps_unused: VecDeque<usize>,
    /// The number of instances at the front of `perhaps_unused` that were not checked yet.
    unchecked: usize,
    /// Whether the queue has a default handler.
    has_default: bool,
    /// The names of the first few types without a handler of which the queue got items.
    pub(crate) unhandled: Vec<String>,
    /// Types that have lost their handlers, or never got any; the core may still know of them.
    perhaps_gone: VecDeque<TypeKey>,
}

impl Entries {
    /// Returns the `HandlerRef` of an instance. There is one per instance, so that `on_idle` and
    /// `on_close` are called once.
    pub(super) fn handler(
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
        let (instance, protected, consume, on_idle, on_error, on_close, works_elsewhere, on_open) =
            methods;
        let py = instance.py();
        // An aggregator that emits nothing has nothing to do when idle.
        let on_idle =
            on_idle.filter(|_| aggregating.as_ref().is_none_or(|aggregating| aggregating.emits()));
        let handler = Arc::new(PyHandler {
            name,
            works_elsewhere,
            lock: lock_of(&protected),
            protected: GuardedRef::new(protected.unbind()),
            instance: GuardedRef::new(instance.unbind()),
            consume: GuardedRef::new(consume),
            opening: Opening::new(on_open.map(GuardedRef::new)),
            aggregating,
            on_idle: on_idle.map(GuardedRef::new),
            on_error: on_error.map(GuardedRef::new),
            on_close: on_close.map(GuardedRef::new),
            error_handler: common
                .error_handler
                .as_ref()
                .map(|handler| GuardedRef::new(handler.clone_ref(py))),
            submissions: registry.submissions.clone(),
            retry_on: RetryOn::new(common.retry_on.as_ref().map(|kinds| kinds.clone_ref(py))),
        });
        let reference = HandlerRef::with_lock(handler.clone(), handler.lock.clone());
        let known = KnownHandler {
            handler: handler.clone(),
            reference: reference.clone(),
            types: 0,
            is_listed: false,
        };
        self.handlers.insert(address, known);
        (handler, reference)
    }

    /// Returns the classes that have handlers.
    pub(super) fn handled_classes(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let handled = |known: &&KnownType| known.tag.is_none() && !known.handlers.is_empty();
        self.types.values().filter(handled).map(|known| known.object.clone_ref(py)).collect()
    }

    /// Whether a type has handlers, or is about to get some.
    pub(super) fn is_handled(&self, item_type: &ItemType<'_>) -> bool {
        let known = self.types.get(&item_type.known_to(&self.tags));
        known.is_some_and(|known| known.adding > 0 || !known.handlers.is_empty())
    }

    /// Returns the instances that handle a type.
    pub(super) fn handlers_of(&self, key: TypeKey) -> Vec<Arc<PyHandler>> {
        let addresses = self.types.get(&key).map_or(&[][..], |known| &known.handlers);
        let known = addresses.iter().filter_map(|address| self.handlers.get(address));
        known.map(|known| known.handler.clone()).collect()
    }

    /// Notes that the queue got items of a type without a handler.
    pub(super) fn note_unhandled(&mut self, name: String) {
        if self.unhandled.len() < MOST_UNHANDLED && !self.unhandled.contains(&name) {
            self.unhandled.push(name);
        }
    }

    /// Whether the class with this key has a handler that takes its items, or those of subclasses.
    pub(super) fn takes(&self, key: TypeKey, is_subclass: bool) -> bool {
        let known = self.types.get(&key).filter(|known| !known.handlers.is_empty());
        known.is_some_and(|known| known.subclasses || !is_subclass)
    }

    /// Whether at least one type has handlers, and all such types are tags.
    pub(super) fn has_only_tags(&self) -> bool {
        let mut handled = self.types.values().filter(|known| !known.handlers.is_empty());
        !self.has_default
            && handled.next().is_some_and(|first| first.tag.is_some())
            && handled.all(|known| known.tag.is_some())
    }

    /// Whether a tag has a handler.
    pub(super) fn has_tag(&self, tag: &str) -> bool {
        self.types.get(&self.tags.key(tag)).is_some_and(|known| !known.handlers.is_empty())
    }

    /// Returns the class or the tag with this key, or the name of a consumer or the default
    /// handler.
    pub(crate) fn type_of(&self, py: Python<'_>, key: TypeKey) -> Option<Py<PyAny>> {
        let name = match key {
            TypeKey::CONSUMER => "consumer",
            DEFAULT if self.has_default => "default",
            Tags::UNKNOWN if self.has_default => "default rows",
            _ => return self.types.get(&key).map(|known| known.object.clone_ref(py)),
        };
        Some(PyString::new(py, name).into_any().unbind())
    }

    /// Returns the key of a type that is about to get handlers. Assigns one to a new tag.
    pub(super) fn keep_type(&mut self, item_type: &ItemType<'_>) -> TypeKey {
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
            subclasses: false,
        });
        known.adding += 1;
        key
    }

    /// Notes that the core got the handlers at these addresses for a type, unless it refused them.
    pub(super) fn note_added(
        &mut self,
        key: TypeKey,
        handlers: Vec<usize>,
        subclasses: bool,
        is_refused: bool,
    ) {
        for address in &handlers {
            self.count(*address, |types| types + usize::from(!is_refused));
        }
        let Some(known) = self.types.get_mut(&key) else { return };
        known.adding -= 1;
        if is_refused {
            self.perhaps_gone.push_back(key);
        } else {
            known.subclasses = subclasses;
            let before = std::mem::replace(&mut known.handlers, handlers);
            self.note_unused(&before);
        }
    }

    /// Notes that the core was asked to remove the handlers of a type.
    pub(super) fn note_removed(&mut self, key: TypeKey) {
        let Some(known) = self.types.get_mut(&key) else { return };
        let before = std::mem::take(&mut known.handlers);
        self.note_unused(&before);
        self.perhaps_gone.push_back(key);
    }

    fn note_unused(&mut self, handlers: &[usize]) {
        for address in handlers {
            self.count(*address, |types| types - 1);
        }
    }

    /// Changes the number of times that an instance is among the handlers of the types.
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
    pub(super) fn take_unused(&mut self) -> Vec<KnownHandler> {
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

    /// Takes the types that the core no longer knows. Checks a few.
    pub(super) fn take_gone(
        &mut self,
        knowledge_of: impl Fn(TypeKey) -> Knowledge,
    ) -> Vec<KnownType> {
        let mut gone = Vec::new();
        for _ in 0..self.perhaps_gone.len().min(CHECKS) {
            let Some(key) = self.perhaps_gone.pop_front() else { break };
            // A key without an entry was listed twice.
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

// Resolves the handler of a class that is not simply its own: that of the nearest base class whose
// handler takes subclasses, or else the default handler.
//
// The choice is made when an item is enqueued, and kept as the item's type key: from there on, the
// core knows nothing of subclasses. Choices are cached per class, and forgotten when handlers come
// and go.

/// The key of all items that go to the default handler. Not an address, and not the key of a tag.
pub(crate) const DEFAULT: TypeKey = TypeKey(2);

/// The most classes to cache; at this number, the cache is cleared.
const MOST_CACHED: usize = 1 << 16;

/// The keys that classes were resolved to.
#[derive(Default)]
struct Cache {
    /// The number of times that the cache was cleared.
    version: u64,
    /// By address. The reference shows whether another class has the address by now.
    keys: HashMap<usize, (Py<PyWeakrefReference>, TypeKey)>,
}

impl HandlerRegistry {
    /// Whether the items of a class may go to the handler of another, or the threads that enqueue
    /// items also handle them. One flag for both, because every enqueue reads it.
    #[inline]
    pub(crate) fn resolves(&self) -> bool {
        // Relaxed: a producer that is concurrent with the first registration may be before or after
        // it.
        self.resolves.load(Ordering::Relaxed)
    }

    /// Makes the queue resolve items from now on.
    pub(crate) fn resolve(&self) {
        self.resolves.store(true, Ordering::Relaxed);
    }

    /// Clears the cache after handlers came or went.
    fn forget_keys(&self) {
        if self.resolves() {
            let mut cache = self.cache.lock();
            cache.version += 1;
            let former = std::mem::take(&mut cache.keys);
            drop(cache);
            drop(former);
        }
    }

    /// Returns the key of the items of a class: that of the class whose handler they go to.
    pub(crate) fn key_of(&self, class: &Bound<'_, PyType>) -> PyResult<TypeKey> {
        let (address, version) = (class.as_ptr() as usize, {
            let cache = self.cache.lock();
            if let Some((known, key)) = cache.keys.get(&(class.as_ptr() as usize))
                && known.bind(class.py()).upgrade().is_some_and(|it| it.is(class))
            {
                return Ok(*key);
            }
            cache.version
        });
        let bases = class.mro();
        let key = {
            let entries = self.entries.lock();
            let mut bases = bases.iter().map(|base| TypeKey(base.as_ptr() as usize));
            let own = TypeKey(address);
            bases
                .find(|&base| entries.takes(base, base != own))
                .unwrap_or_else(|| if entries.has_default { DEFAULT } else { own })
        };
        let reference = PyWeakrefReference::new(class)?.unbind();
        let mut cache = self.cache.lock();
        // Handlers that came or went meanwhile may have changed the answer.
        if cache.version == version {
            let all = (cache.keys.len() >= MOST_CACHED).then(|| std::mem::take(&mut cache.keys));
            let former = cache.keys.insert(address, (reference, key));
            drop(cache);
            drop((all, former));
        }
        Ok(key)
    }
}

// A handler to register, as the facade describes it.

/// A handler's methods, in the order of the facade's `HandlerMethods`.
pub(crate) type HandlerMethods<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Py<PyAny>,
    Option<Py<PyAny>>,
    Option<Py<PyAny>>,
    Option<Py<PyAny>>,
    bool,
    Option<Py<PyAny>>,
);

/// A handler to register, with the values of its attributes.
pub(super) struct HandlerSpec<'py> {
    pub(super) methods: HandlerMethods<'py>,
    pub(super) name: String,
    pub(super) aggregating: Option<Arc<Aggregating>>,
}

impl<'py> HandlerSpec<'py> {
    pub(super) fn new(methods: HandlerMethods<'py>) -> PyResult<Self> {
        let (name, aggregating) = (name_of(&methods.0)?, aggregating_of(&methods.0)?);
        Ok(Self { methods, name, aggregating })
    }

    pub(super) fn address(&self) -> usize {
        self.methods.0.as_ptr() as usize
    }
}

/// The facade's `HandlerOptions`: the settings of one type.
#[derive(FromPyObject)]
pub(crate) struct HandlerOptions<'py> {
    pub(super) weight: f64,
    pub(super) max_batch_items: Option<usize>,
    pub(super) max_delay_ms: Option<f64>,
    pub(super) retry: Option<RetrySettings>,
    pub(super) dead_letter: Option<HandlerMethods<'py>>,
    pub(super) replace: bool,
    pub(super) subclasses: bool,
}

/// Returns the name of a function, or of an object's class.
fn name_of(instance: &Bound<'_, PyAny>) -> PyResult<String> {
    let own = instance.getattr("__qualname__").and_then(|name| name.extract());
    own.or_else(|_| instance.get_type().qualname()?.extract())
}

// The locks of handler instances, which keep P1 across types and queues.

/// The number of handler locks below which a sweep for those without a holder is not worthwhile.
const FEW: usize = 64;

/// The handler locks of all handler instances of the process, by address. A holder of a handler
/// lock also holds the object, so an address never stands for another object.
static HANDLER_LOCKS: Mutex<Option<HandlerLocks>> = Mutex::new(None);

#[derive(Default)]
struct HandlerLocks {
    by_address: HashMap<usize, Weak<HandlerLock>>,
    /// The number of handler locks at which the next sweep is due: twice what the last one left.
    sweep_at: usize,
}

impl HandlerLocks {
    fn of(&mut self, address: usize) -> Arc<HandlerLock> {
        if let Some(lock) = self.by_address.get(&address).and_then(Weak::upgrade) {
            return lock;
        }
        if self.by_address.len() >= self.sweep_at.max(FEW) {
            self.by_address.retain(|_, lock| lock.strong_count() > 0);
            self.by_address.shrink_to(2 * self.by_address.len());
            self.sweep_at = 2 * self.by_address.len();
        }
        let lock = Arc::new(HandlerLock::default());
        self.by_address.insert(address, Arc::downgrade(&lock));
        lock
    }
}

/// Returns the handler lock of `instance`, which P1 protects: the same lock for every queue and
/// type that the instance serves.
pub(crate) fn lock_of(instance: &Bound<'_, PyAny>) -> Arc<HandlerLock> {
    HANDLER_LOCKS.lock().get_or_insert_default().of(instance.as_ptr() as usize)
}

/// Forgets the handler locks in a forked child: threads that do not exist here may hold them.
pub(crate) fn forget_locks() {
    std::mem::forget(HANDLER_LOCKS.lock().take());
}
