//! The exceptions after which a batch is tried again: those of its type, or else of the queue.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::python::interpreter::GuardedRef;
use crate::python::item::PyItem;
use crate::{Batch, Item, TypeKey};

/// Tuples of exception classes, for one handler.
pub(crate) struct RetryOn {
    of_queue: Option<Arc<GuardedRef>>,
    /// For the types whose policy differs.
    of_types: Mutex<HashMap<TypeKey, Arc<GuardedRef>>>,
}

impl RetryOn {
    pub(super) fn new(of_queue: Option<Py<PyAny>>) -> Self {
        let of_queue = of_queue.map(|kinds| Arc::new(GuardedRef::new(kinds)));
        Self { of_queue, of_types: Mutex::default() }
    }

    /// `None`: those of the queue. Returns those before.
    pub(super) fn set(
        &self,
        key: TypeKey,
        kinds: Option<Arc<GuardedRef>>,
    ) -> Option<Arc<GuardedRef>> {
        let mut of_types = self.of_types.lock();
        match kinds {
            Some(kinds) => of_types.insert(key, kinds),
            None => of_types.remove(&key),
        }
    }

    /// `None` if the batch is not tried again.
    #[inline]
    pub(super) fn of(&self, batch: &Batch<PyItem>) -> Option<Arc<GuardedRef>> {
        if batch.is_last_attempt() { None } else { self.of_type(batch) }
    }

    #[cold]
    fn of_type(&self, batch: &Batch<PyItem>) -> Option<Arc<GuardedRef>> {
        let key = batch.iter().next().map(Item::type_key);
        let own = key.and_then(|key| self.of_types.lock().get(&key).cloned());
        own.or_else(|| self.of_queue.clone())
    }

    /// Visits those of the types only while no other thread has them locked.
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.of_queue.as_deref().map(|kinds| &**kinds))?;
        let Some(of_types) = self.of_types.try_lock() else { return Ok(()) };
        of_types.values().try_for_each(|kinds| visit.call(&***kinds))
    }
}
