//! The interpreter as the host of drain threads.

use pyo3::prelude::*;

use super::item::PyItem;
use crate::Host;

pub(crate) struct Interpreter;

impl Host<PyItem> for Interpreter {
    /// One thread state for the thread's whole life: attaching afresh for each batch would cost several times more.
    fn live(&self, body: &mut (dyn FnMut() + Send)) {
        Python::try_attach(|py| py.detach(body));
    }

    fn enter(&self, body: &mut dyn FnMut()) {
        if Python::try_attach(|_| body()).is_none() {
            // The interpreter finalizes. The queue was closed before, so this thread was given up: it must not return
            // to code that believes in the interpreter, and the process ends without it.
            loop {
                std::thread::park();
            }
        }
    }

    fn leave(&self, wait: &mut (dyn FnMut() + Send)) {
        Python::attach(|py| py.detach(wait));
    }

    fn type_name(&self, item: &PyItem) -> String {
        Python::attach(|py| {
            let class = item.object.bind(py).get_type();
            class.fully_qualified_name().map_or_else(|_| "an unnamed class".to_owned(), |name| name.to_string())
        })
    }
}
