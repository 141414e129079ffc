//! The interpreter as the host of drain threads.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::flow::batch::Batch;
use crate::flow::handler::Host;
use crate::item::TypeKey;
use crate::python::future::Submissions;
use crate::python::handler::py_handler::end_unhandled;
use crate::python::handler::registry::Entries;
use crate::python::interpreter::{
    CALLBACKS, ask_of_thread, call_in, log, run_thread, thread_number,
};
use crate::python::item::PyItem;
use crate::threads::pool::ThreadBody;

pub(crate) struct Interpreter {
    /// The handlers of the queue, for hints.
    pub(crate) entries: Arc<Mutex<Entries>>,
    pub(crate) submissions: Arc<Submissions>,
}

thread_local! {
    /// Whether this drain thread was attached by `enter` or `stay`.
    static ATTACHED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` with `ATTACHED` set to `attached`.
fn marked<R>(attached: bool, body: impl FnOnce() -> R) -> R {
    let before = ATTACHED.replace(attached);
    let result = body();
    ATTACHED.set(before);
    result
}

impl Interpreter {
    /// Returns the name of an abstract class that has a handler and that `class` is registered
    /// with.
    fn virtual_base(&self, class: &Bound<'_, PyType>) -> Option<String> {
        let py = class.py();
        let handled = self.entries.lock().handled_classes(py);
        // If a user's hook raises, no base is known either.
        call_in(py, CALLBACKS, "virtual_base", (class, handled)).ok()?.extract().ok()?
    }
}

impl Host<PyItem> for Interpreter {
    /// Keeps one thread state for the thread's whole life: creating one per batch would cost
    /// several times more.
    fn live(&self, body: ThreadBody) {
        run_thread(body);
    }

    fn enter(&self, body: &mut dyn FnMut()) {
        if Python::try_attach(|_| marked(true, body)).is_none() {
            // The interpreter is finalizing. The queue was closed before and gave this thread up,
            // which must not return to code that relies on the interpreter; the process ends
            // without it.
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

    fn thread_number(&self) -> u64 {
        thread_number()
    }

    fn thread_name(&self, number: u64) -> Option<String> {
        ask_of_thread("name_of", number)
    }

    fn thread_stack(&self, number: u64) -> Option<String> {
        ask_of_thread("stack_of", number)
    }

    fn unhandled_hint(
        &self,
        item: &PyItem,
        has_handler: &dyn Fn(TypeKey) -> bool,
    ) -> Option<String> {
        Python::attach(|py| {
            let name = item.type_name(py);
            self.entries.lock().note_unhandled(name);
            let class = item.class(py)?;
            let bases = class.mro();
            let base =
                bases.iter().skip(1).find(|base| has_handler(TypeKey(base.as_ptr() as usize)));
            if let Some(base) = base {
                let name = base.cast::<PyType>().ok()?.fully_qualified_name().ok()?;
                return Some(format!(
                    "it is a subclass of {name}, which has one, but types match exactly: register \
                     it too, or register {name} with subclasses=True"
                ));
            }
            if let Some(name) = self.virtual_base(&class) {
                return Some(format!(
                    "it is a virtual subclass of {name}, which has one, but only the bases of a \
                     class statement count: register it too"
                ));
            }
            let name = class.name().ok()?.to_string();
            let entries = self.entries.lock();
            let what = if entries.has_tag(&name) {
                format!("the tag {name:?} has one")
            } else if entries.has_only_tags() {
                "all handlers are those of tags".to_owned()
            } else {
                return None;
            };
            Some(format!(
                "{what}, and a tag is for rows of produce_arrow: register the class itself"
            ))
        })
    }

    fn note_unhandled(&self, items: &Batch<PyItem>, were_tried: bool) {
        if self.submissions.is_used() {
            Python::attach(|py| end_unhandled(py, self.submissions.queue(), items, were_tried));
        }
    }

    fn note_abandoned(&self) {
        if self.submissions.is_used() {
            Python::try_attach(|py| self.submissions.abandon(py));
        }
    }

    fn type_name(&self, item: &PyItem) -> String {
        Python::attach(|py| item.type_name(py))
    }
}
