//! What a registry knows of each type and each handler instance.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::desks::desk_of;
use super::opening::Opening;
use super::py_handler::PyHandler;
use super::registry::HandlerRegistry;
use super::resolution::DEFAULT;
use super::retry_on::RetryOn;
use super::spec::HandlerSpec;
use crate::arrow::Tags;
use crate::python::interpreter::GuardedRef;
use crate::python::item::{ItemType, PyItem};
use crate::shared::Knowledge;
use crate::{HandlerRef, TypeKey};

/// How many types that may have gone, and handlers that may be unused, a call checks.
const CHECKS: usize = 8;

/// How many types without a handler are named.
const MOST_UNHANDLED: usize = 8;

/// A handler instance.
pub(super) struct KnownHandler {
    pub(super) handler: Arc<PyHandler>,
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
pub(super) struct KnownType {
    pub(super) object: Py<PyAny>,
    /// The text, if it is a tag.
    tag: Option<Box<str>>,
    /// The addresses of its handler instances.
    handlers: Vec<usize>,
    /// How many calls are about to give it handlers.
    adding: usize,
    /// Whether the handlers take the items of subclasses, too.
    subclasses: bool,
}

/// The types and the handlers. A class that is kept here keeps its address, which is the core's
/// key, from being used again. It is kept until the core knows nothing of it; what may be queued
/// even then keeps it alive as well, because an item holds its class.
#[derive(Default)]
pub(crate) struct Entries {
    pub(super) types: HashMap<TypeKey, KnownType>,
    /// The tags among the types.
    pub(super) tags: Arc<Tags>,
    /// By the address of the instance, which the handler keeps alive.
    pub(super) handlers: HashMap<usize, KnownHandler>,
    /// Instances that lost their last type. The core may still have one: it may be in its last
    /// call, or two threads registered handlers of the same type concurrently.
    perhaps_unused: VecDeque<usize>,
    /// How many of these, the first ones, were not checked yet.
    unchecked: usize,
    /// Whether the queue has a default handler.
    has_default: bool,
    /// The names of the first types without a handler of which the queue got items.
    unhandled: Vec<String>,
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
            desk: desk_of(&protected),
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
            queue: registry.queue.clone(),
            submissions: registry.submissions.clone(),
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

    /// The classes that have handlers.
    pub(super) fn handled_classes(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let handled = |known: &&KnownType| known.tag.is_none() && !known.handlers.is_empty();
        self.types.values().filter(handled).map(|known| known.object.clone_ref(py)).collect()
    }

    /// Whether a type has handlers, or is about to get some.
    pub(super) fn is_handled(&self, item_type: &ItemType<'_>) -> bool {
        let known = self.types.get(&item_type.known_to(&self.tags));
        known.is_some_and(|known| known.adding > 0 || !known.handlers.is_empty())
    }

    /// The instances that handle a type.
    pub(super) fn handlers_of(&self, key: TypeKey) -> Vec<Arc<PyHandler>> {
        let addresses = self.types.get(&key).map_or(&[][..], |known| &known.handlers);
        let known = addresses.iter().filter_map(|address| self.handlers.get(address));
        known.map(|known| known.handler.clone()).collect()
    }

    /// The queue has got items of a type without a handler.
    pub(super) fn note_unhandled(&mut self, name: String) {
        if self.unhandled.len() < MOST_UNHANDLED && !self.unhandled.contains(&name) {
            self.unhandled.push(name);
        }
    }

    /// The names of the first types without a handler of which the queue got items.
    pub(crate) fn unhandled(&self) -> Vec<String> {
        self.unhandled.clone()
    }

    /// The queue has a default handler from here on.
    pub(super) fn note_default(&mut self) {
        self.has_default = true;
    }

    /// Whether the queue has a default handler.
    pub(super) fn has_default(&self) -> bool {
        self.has_default
    }

    /// Whether the class with this key has a handler that takes its items, or those of subclasses.
    pub(super) fn takes(&self, key: TypeKey, is_subclass: bool) -> bool {
        let known = self.types.get(&key).filter(|known| !known.handlers.is_empty());
        known.is_some_and(|known| known.subclasses || !is_subclass)
    }

    /// Whether all types that have handlers are tags, of which there is one at least.
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

    /// The class or the tag with this key; of the default handler, its name.
    pub(crate) fn type_of(&self, py: Python<'_>, key: TypeKey) -> Option<Py<PyAny>> {
        let name = match key {
            DEFAULT => "default",
            Tags::UNKNOWN => "default rows",
            _ => return self.types.get(&key).map(|known| known.object.clone_ref(py)),
        };
        self.has_default.then(|| PyString::new(py, name).into_any().unbind())
    }

    /// Returns the key of a type that is about to get handlers. A new tag gets its key.
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

    /// After the core was given the handlers at these addresses for a type, unless it refused them.
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

    /// After the core was asked to remove the handlers of a type.
    pub(super) fn note_removed(&mut self, key: TypeKey) {
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

    /// Takes the types of which the core knows nothing. Checks a few.
    pub(super) fn take_gone(
        &mut self,
        knowledge_of: impl Fn(TypeKey) -> Knowledge,
    ) -> Vec<KnownType> {
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
