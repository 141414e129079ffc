//! The future of a queued item.

use pyo3::prelude::*;

use super::future::FutureBase;
use super::settler::{Settler, error_value};
use super::state::Ending;
use crate::python::interpreter::release;

/// The future of an item, as the item carries it. If it is dropped and the future is not done, the
/// future ends with an error: no caller waits for an item that is gone.
pub(crate) struct Ticket(Option<Py<FutureBase>>);

impl Ticket {
    pub(crate) fn new(future: Py<FutureBase>) -> Self {
        Self(Some(future))
    }

    pub(crate) fn future<'a, 'py>(&'a self, py: Python<'py>) -> &'a Bound<'py, FutureBase> {
        match &self.0 {
            Some(future) => future.bind(py),
            None => unreachable!("only the drop takes it"),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(future) = self.0.take() else { return };
        Python::try_attach(|py| {
            let future = future.into_bound(py);
            if let Some(error) = future.get().lost_error() {
                let mut settler = Settler::new(py);
                settler.end(&future, Ending::error(&error_value(py, error)));
                settler.finish();
            }
            release(future.into_any());
        });
    }
}
