//! The futures of a queue that are not done: a shutdown that runs out of time ends them, wherever
//! their items are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;

use super::future::FutureBase;
use super::settler::{Settler, error_value};
use super::state::Ending;
use crate::python::exceptions::QueueClosedError;

/// The futures of one queue that are not done.
pub(crate) struct Submissions {
    queue: Box<str>,
    /// Set with the first submit: no batch of a queue that gets none is searched.
    used: AtomicBool,
    /// The address of the core's queue; 0 until it has started.
    core: AtomicUsize,
    /// Whether other queues share its drain threads.
    pub(super) is_pooled: bool,
    /// Locked while attached, like the state of a future.
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    /// A future, or the next free place.
    all: Vec<Result<Py<FutureBase>, usize>>,
    /// `all.len()`: none is free.
    free: usize,
}

impl Submissions {
    pub(crate) fn new(queue: &str, is_pooled: bool) -> Self {
        Self {
            queue: queue.into(),
            used: AtomicBool::new(false),
            core: AtomicUsize::new(0),
            is_pooled,
            places: Mutex::default(),
        }
    }

    pub(crate) fn set_core(&self, address: usize) {
        // Relaxed: read by handlers, which get their items later.
        self.core.store(address, Ordering::Relaxed);
    }

    pub(super) fn core(&self) -> usize {
        self.core.load(Ordering::Relaxed)
    }

    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    /// Whether an item was ever submitted.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        // Relaxed: set before an item is enqueued, and read after it was taken; the partition's
        // lock orders the two.
        self.used.load(Ordering::Relaxed)
    }

    /// Makes the future of an item that is about to be enqueued.
    pub(crate) fn add<'py>(
        self: &Arc<Self>,
        class: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, FutureBase>> {
        let future = class.call0()?.cast_into::<FutureBase>()?;
        self.used.store(true, Ordering::Relaxed);
        let place = {
            let mut places = self.places.lock();
            let place = places.free;
            let entry = Ok(future.clone().unbind());
            if let Some(free) = places.all.get_mut(place) {
                let next = std::mem::replace(free, entry);
                places.free = next.err().unwrap_or(usize::MAX);
            } else {
                places.all.push(entry);
                places.free = places.all.len();
            }
            place
        };
        future.get().list(self.clone(), place);
        Ok(future)
    }

    /// Takes a future off the list, unless all were taken meanwhile.
    pub(super) fn remove(&self, place: usize, future: &FutureBase) -> Option<Py<FutureBase>> {
        let mut places = self.places.lock();
        let free = places.free;
        let entry = places.all.get_mut(place)?;
        if !matches!(entry, Ok(listed) if std::ptr::eq(listed.get(), future)) {
            return None;
        }
        let removed = std::mem::replace(entry, Err(free)).ok();
        places.free = place;
        removed
    }

    /// After a shutdown ran out of time: all that is not done ends with an error.
    pub(crate) fn abandon(&self, py: Python<'_>) {
        let places = std::mem::take(&mut *self.places.lock());
        let abandoned: Vec<_> = places.all.into_iter().filter_map(Result::ok).collect();
        if abandoned.is_empty() {
            return;
        }
        let error = Ending::error(&error_value(py, self.abandoned_error()));
        let mut settler = Settler::new(py);
        for future in &abandoned {
            settler.end(future.bind(py), error.share(py));
        }
        settler.finish();
    }

    pub(super) fn abandoned_error(&self) -> PyErr {
        QueueClosedError::new_err(format!(
            "queue {:?}: the shutdown ran out of time and abandoned this item; give it a longer \
             timeout",
            self.queue
        ))
    }
}

impl Drop for Submissions {
    fn drop(&mut self) {
        // What is left belongs to the parent of a forked child, or the interpreter has ended.
        std::mem::forget(std::mem::take(self.places.get_mut()));
    }
}
