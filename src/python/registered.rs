//! What a queue was given: its types and its handlers.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;

use super::aggregator::{Aggregating, aggregating_of};
use super::call::Held;
use super::handler::{PyHandler, token_of};
use super::item::PyItem;
use super::item_type::ItemType;
use crate::arrow::Tags;
use crate::{HandlerRef, TypeKey};

/// A handler's methods, in the order of the facade's `HandlerMethods`.
pub(super) type Methods<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Py<PyAny>,
    Option<Py<PyAny>>,
    Option<Py<PyAny>>,
    Option<Py<PyAny>>,
    bool,
);

/// A handler on its way in, with what had to be asked for: the answer may be found by Python code.
pub(super) struct Given<'py> {
    methods: Methods<'py>,
    name: String,
    aggregating: Option<Arc<Aggregating>>,
}

impl<'py> Given<'py> {
    pub(super) fn new(methods: Methods<'py>) -> PyResult<Self> {
        let (name, aggregating) = (name_of(&methods.0)?, aggregating_of(&methods.0)?);
        Ok(Self { methods, name, aggregating })
    }
}

/// What all handlers of a queue share.
pub(super) struct CommonCallbacks {
    /// For handlers without `on_error`.
    pub(super) error_handler: Option<Py<PyAny>>,
    /// The exceptions that the retry policy is for, as a tuple.
    pub(super) retry_on: Option<Py<PyAny>>,
}

/// What the queue was given, for identity and for the garbage collector. The types keep their
/// addresses, which are the core's keys, from being used again.
#[derive(Default)]
pub(super) struct Registered {
    pub(super) types: HashMap<TypeKey, Py<PyAny>>,
    /// The tags among them.
    pub(super) tags: Arc<Tags>,
    pub(super) handlers: Vec<(Arc<PyHandler>, HandlerRef<PyItem>)>,
}

impl Registered {
    /// One `HandlerRef` per instance, so that `on_idle` and `on_close` are called once for it.
    pub(super) fn handler(
        &mut self,
        given: Given<'_>,
        common: &CommonCallbacks,
    ) -> HandlerRef<PyItem> {
        let Given { methods, name, aggregating } = given;
        let (instance, protected, consume, on_idle, on_error, on_close, works_elsewhere) = methods;
        if let Some((_, known)) =
            self.handlers.iter().find(|(handler, _)| handler.instance.is(&instance))
        {
            return known.clone();
        }
        let py = instance.py();
        // An aggregator that hands nothing on has nothing to do when idle.
        let on_idle = on_idle.filter(|_| aggregating.as_ref().is_none_or(|one| one.hands_on()));
        let handler = Arc::new(PyHandler {
            name,
            works_elsewhere,
            token: token_of(&protected),
            protected: Held::new(protected.unbind()),
            instance: Held::new(instance.unbind()),
            consume: Held::new(consume),
            aggregating,
            on_idle: on_idle.map(Held::new),
            on_error: on_error.map(Held::new),
            on_close: on_close.map(Held::new),
            error_handler: common
                .error_handler
                .as_ref()
                .map(|handler| Held::new(handler.clone_ref(py))),
            retry_on: common.retry_on.as_ref().map(|kinds| Held::new(kinds.clone_ref(py))),
        });
        let reference = HandlerRef::with_token(handler.clone(), handler.token.clone());
        self.handlers.push((handler, reference.clone()));
        reference
    }

    /// The class or the tag with this key.
    pub(super) fn type_of(&self, py: Python<'_>, key: TypeKey) -> Option<Py<PyAny>> {
        self.types.get(&key).map(|one| one.clone_ref(py))
    }

    /// Remembers a class, for as long as the queue may hold its address, or gives a tag its key.
    pub(super) fn keep_type(&mut self, item_type: &ItemType<'_>) -> TypeKey {
        let key = item_type.known_to(&self.tags);
        let key = match item_type {
            ItemType::Tag(tag, _) if key == Tags::UNKNOWN => Arc::make_mut(&mut self.tags).add(tag),
            _ => key,
        };
        self.types.entry(key).or_insert_with(|| item_type.object().clone().unbind());
        key
    }

    /// The handlers that no type uses, or none any more: held here twice, and nowhere else.
    pub(super) fn take_unused(&mut self) -> Vec<(Arc<PyHandler>, HandlerRef<PyItem>)> {
        let all = std::mem::take(&mut self.handlers);
        let (used, unused) =
            all.into_iter().partition(|(handler, _)| Arc::strong_count(handler) > 2);
        self.handlers = used;
        unused
    }
}

/// A function's own name, or the name of an object's class.
fn name_of(instance: &Bound<'_, PyAny>) -> PyResult<String> {
    let own = instance.getattr("__qualname__").and_then(|name| name.extract());
    own.or_else(|_| instance.get_type().qualname()?.extract())
}
