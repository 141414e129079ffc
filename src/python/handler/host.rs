//! The interpreter as the host of drain threads.

use std::cell::Cell;

use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::python::interpreter::log;
use crate::python::item::PyItem;
use crate::{Host, TypeKey};

pub(crate) struct Interpreter;

thread_local! {
    /// Whether this drain thread was attached by `enter` or `stay`.
    static ATTACHED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` with the mark set.
fn marked<R>(attached: bool, body: impl FnOnce() -> R) -> R {
    let before = ATTACHED.replace(attached);
    let result = body();
    ATTACHED.set(before);
    result
}

impl Host<PyItem> for Interpreter {
    /// Keeps one thread state for the thread's whole life: to make a new one for each batch would
    /// cost several times more.
    fn live(&self, body: &mut (dyn FnMut() + Send)) {
        Python::try_attach(|py| py.detach(body));
    }

    fn enter(&self, body: &mut dyn FnMut()) {
        if Python::try_attach(|_| marked(true, body)).is_none() {
            // The interpreter finalizes. The queue was closed before and gave this thread up. It
            // must not return to code that relies on the interpreter; the process ends without it.
            loop {
                std::thread::park();
            }
        }
    }

    fn stay(&self, body: &mut dyn FnMut()) {
        Python::try_attach(|_| marked(true, body));
    }

    fn leave(&self, wait: &mut (dyn FnMut() + Send)) {
        if ATTACHED.get() {
            Python::attach(|py| py.detach(|| marked(false, wait)));
        } else {
            wait();
        }
    }

    fn log(&self, line: &str) {
        log("warn", line);
    }

    fn inform(&self, line: &str) {
        log("inform", line);
    }

    fn unhandled_hint(
        &self,
        item: &PyItem,
        has_handler: &dyn Fn(TypeKey) -> bool,
    ) -> Option<String> {
        Python::attach(|py| {
            let bases = item.class(py)?.mro();
            let base =
                bases.iter().skip(1).find(|base| has_handler(TypeKey(base.as_ptr() as usize)))?;
            let name = base.cast::<PyType>().ok()?.fully_qualified_name().ok()?;
            Some(format!(
                "it is a subclass of {name}, which has one, but types match exactly: register it \
                 too"
            ))
        })
    }

    fn type_name(&self, item: &PyItem) -> String {
        Python::attach(|py| item.type_name(py))
    }
}
