//! The types and handlers that a queue was given.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::known::Entries;
use super::py_handler::PyHandler;
use super::resolution::{DEFAULT, Resolution};
use super::spec::{HandlerMethods, HandlerOptions, HandlerSpec};
use crate::arrow::Tags;
use crate::python::config::{RetrySettings, millis};
use crate::python::exceptions::{ConfigError, QueueClosedError};
use crate::python::interpreter::{GuardedRef, InterpreterPause, NoPause};
use crate::python::item::{ItemType, PyItem};
use crate::python::results::Submissions;
use crate::{AddHandlerError, BatchQueue, HandledType, HandlerRef, Handlers, Pause, TypeKey};

/// What all handlers of a queue share.
pub(crate) struct CommonCallbacks {
    /// For handlers without `on_error`.
    pub(crate) error_handler: Option<Py<PyAny>>,
    /// The exceptions that the retry policy applies to, as a tuple.
    pub(crate) retry_on: Option<Py<PyAny>>,
}

/// The types and handlers of one queue, for identity and for the garbage collector.
pub(crate) struct HandlerRegistry {
    pub(super) common: CommonCallbacks,
    entries: Arc<Mutex<Entries>>,
    resolution: Resolution,
    /// The name of the queue.
    pub(super) queue: Arc<str>,
    pub(super) submissions: Arc<Submissions>,
}

impl HandlerRegistry {
    pub(crate) fn new(queue: &str, common: CommonCallbacks, submissions: Arc<Submissions>) -> Self {
        Self {
            common,
            entries: Arc::default(),
            resolution: Resolution::default(),
            queue: queue.into(),
            submissions,
        }
    }

    /// The entries, for the queue's host.
    pub(crate) fn entries(&self) -> Arc<Mutex<Entries>> {
        self.entries.clone()
    }

    /// Whether the items of a class may go to the handler of another, or the threads that put items
    /// also handle them. One flag for both, because each put reads it.
    #[inline]
    pub(crate) fn resolves(&self) -> bool {
        self.resolution.is_needed()
    }

    /// From here on items are resolved.
    pub(crate) fn resolve(&self) {
        self.resolution.need();
    }

    /// The key of the items of a class: that of the class whose handler they go to.
    pub(crate) fn key_of(&self, class: &Bound<'_, PyType>) -> PyResult<TypeKey> {
        self.resolution.key_of(class, &self.entries)
    }

    /// Gives the queue a handler for the types that have none.
    pub(crate) fn add_default(
        &self,
        queue: &BatchQueue<PyItem>,
        handler: HandlerMethods<'_>,
    ) -> PyResult<()> {
        let spec = HandlerSpec::new(handler)?;
        let reference = self.entries.lock().handler(spec, self).1;
        // The rows of all tags without a handler have one key.
        for (key, weight) in [(DEFAULT, 1.0), (Tags::UNKNOWN, 0.001)] {
            let item_type = HandledType {
                key,
                name: "default".to_owned(),
                weight,
                max_batch_items: None,
                max_delay: None,
                retry: None,
            };
            let handlers = Handlers { instances: vec![reference.clone()], dead_letter: None };
            let added = queue.add_handler_with(item_type, handlers, &mut NoPause);
            if let Err(AddHandlerError::Config(problem)) = added {
                return Err(problem.into());
            }
        }
        self.entries.lock().note_default();
        self.resolution.need();
        Ok(())
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
        let HandlerOptions {
            weight,
            max_batch_items,
            max_delay_ms,
            retry,
            dead_letter,
            replace,
            subclasses,
        } = options;
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
        self.entries.lock().note_added(key, addresses, subclasses, is_refused);
        if subclasses && !is_refused {
            self.resolution.need();
        }
        self.resolution.forget();
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
        self.resolution.forget();
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
            (entries.take_unused(), entries.take_gone(|key| queue.control.knowledge_of(key)))
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
