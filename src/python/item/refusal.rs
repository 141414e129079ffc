//! What becomes of an item that was refused.

use std::fmt::Display;

use pyo3::prelude::*;

use super::py_item::PyItem;
use crate::ProduceError;
use crate::python::exceptions::{ProduceTimeoutError, QueueClosedError, ReentrantProduceError};
use crate::python::results::{Ending, Settler, Ticket, error_value};

/// A refusal by a queue as an exception, or `None` if the return value of the call reports it. The
/// future of the item, if it has one, ends with the error in either case.
pub(crate) fn refused<E: Into<PyErr> + Display>(
    py: Python<'_>,
    queue: &str,
    refusal: ProduceError<PyItem, E>,
    accepted: usize,
) -> Option<PyErr> {
    let (item, refusal) = refusal.into_parts();
    let error = match refusal {
        ProduceError::Full(()) | ProduceError::Closed(()) => {
            if let Some(ticket) = item.ticket() {
                end_refused(py, ticket, error_of_future(queue, &refusal));
            }
            return None;
        }
        ProduceError::TimedOut { .. } => {
            ProduceTimeoutError::new_err((said(queue, &refusal), accepted))
        }
        ProduceError::Interrupted((), interrupt) => {
            let interrupt = interrupt.into();
            // An exception that refuses attributes is still the one to raise.
            let _ = interrupt.value(py).setattr("accepted", accepted);
            interrupt
        }
        ProduceError::Reentrant { .. } => {
            let reentrant = ReentrantProduceError::new_err(said(queue, &refusal));
            let _ = reentrant.value(py).setattr("accepted", accepted);
            reentrant
        }
    };
    if let Some(ticket) = item.ticket() {
        end_refused(py, ticket, error.clone_ref(py));
    }
    Some(error)
}

fn error_of_future<E: Display>(queue: &str, refusal: &ProduceError<(), E>) -> PyErr {
    match refusal {
        ProduceError::Full(()) => ProduceTimeoutError::new_err((said(queue, refusal), 0)),
        _ => QueueClosedError::new_err(format!(
            "queue {queue} is shut down and takes no more items; submit before its shutdown, or \
             make a new queue"
        )),
    }
}

fn said<E: Display>(queue: &str, refusal: &ProduceError<(), E>) -> String {
    format!("queue {queue}: {refusal}")
}

fn end_refused(py: Python<'_>, ticket: &Ticket, error: PyErr) {
    let mut settler = Settler::new(py);
    settler.end(ticket.future(py), Ending::error(&error_value(py, error)));
    settler.finish();
}
