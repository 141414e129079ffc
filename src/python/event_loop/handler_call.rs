//! `HandlerCall`: that a coroutine runs inside a handler, which the loop's thread does not know of
//! itself.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use crate::thread_context::{AssumedContext, ThreadContext};

/// One call into a handler, from the drain thread that makes it and waits for a coroutine. What the
/// coroutine asks of a queue meanwhile is answered as if the drain thread had asked.
#[pyclass(name = "Inside", frozen, module = "batchqueue._core")]
pub(crate) struct HandlerCall {
    marks: ThreadContext,
    /// Set by the drain thread before it goes on, or by the coroutine at its end.
    ended: AtomicBool,
}

impl HandlerCall {
    /// While the result lives, the calling thread passes for the drain thread, if the call has not
    /// ended.
    pub(crate) fn assume(inside: Option<&Self>) -> Option<AssumedContext> {
        inside.filter(|one| one.active()).map(|one| one.marks.assume())
    }
}

#[pymethods]
impl HandlerCall {
    /// On the drain thread, inside the handler.
    #[new]
    fn new() -> Self {
        Self { marks: ThreadContext::of_this_thread(), ended: AtomicBool::new(false) }
    }

    /// Whether the drain thread still waits.
    #[getter]
    fn active(&self) -> bool {
        // Relaxed: nothing else is published by it. A call that meets the end counts as inside or
        // not.
        !self.ended.load(Ordering::Relaxed)
    }

    /// The call has ended.
    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
