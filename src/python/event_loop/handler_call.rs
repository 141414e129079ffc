//! `HandlerCall`: carries a drain thread's call into a handler to the event loop, where the
//! coroutine of the handler runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use crate::thread_context::{AssumedContext, ThreadContext};

/// One call into a handler, made by a drain thread that waits for a coroutine.
///
/// Meanwhile the queue answers the coroutine as it would answer the drain thread.
#[pyclass(frozen, module = "batchqueue._core")]
pub(crate) struct HandlerCall {
    context: ThreadContext,
    /// Set by the drain thread before it continues, or by the coroutine when it ends.
    ended: Arc<AtomicBool>,
}

impl HandlerCall {
    /// Unless the call has ended, the calling thread passes for the drain thread while the result
    /// lives.
    pub(super) fn assume(call: Option<&Self>) -> Option<AssumedContext> {
        call.filter(|call| call.active()).map(|call| call.context.assume())
    }
}

#[pymethods]
impl HandlerCall {
    /// Begin a call: on the drain thread, inside the handler.
    #[new]
    fn new() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        Self { context: ThreadContext::of_call(ended.clone()), ended }
    }

    /// Whether the drain thread still waits.
    #[getter]
    fn active(&self) -> bool {
        // Relaxed: the flag publishes nothing else. A request that races with the end counts as
        // inside or outside.
        !self.ended.load(Ordering::Relaxed)
    }

    /// End the call.
    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
