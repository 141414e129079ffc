//! Ends many futures, then wakes and calls what waits for them.
//!
//! First all futures of a batch get their results; then the threads, callbacks and event loops that
//! wait are notified. So a loop is woken once for a batch, and a thread that waits for the first
//! result finds the others as well.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::future::FutureBase;
use super::state::{Ending, Mail, Standard, Watch};
use crate::python::interpreter::{GuardedRef, describe_error, guarded_call, log, release};
use crate::thread_context::drained_log;

pub(crate) struct Settler<'py> {
    py: Python<'py>,
    watched: Vec<(Bound<'py, FutureBase>, Watch)>,
    /// Futures whose state may change only while their condition is held.
    conditional: Vec<(Bound<'py, FutureBase>, Standard, Ending)>,
    /// For each event loop the pairs of its future and ours.
    mail: Vec<(GuardedRef, Bound<'py, PyList>)>,
}

impl<'py> Settler<'py> {
    pub(crate) fn new(py: Python<'py>) -> Self {
        Self { py, watched: Vec::new(), conditional: Vec::new(), mail: Vec::new() }
    }

    /// Ends a future, unless it is done. Returns whether it was not.
    pub(crate) fn end(&mut self, future: &Bound<'py, FutureBase>, ending: Ending) -> bool {
        match future.get().end(self.py, ending) {
            Ended::Now(watch) => {
                if let Some(watch) = watch {
                    self.watched.push((future.clone(), *watch));
                }
                true
            }
            Ended::Before(ending) => {
                drop(ending);
                false
            }
            Ended::Conditional(standard, ending) => {
                self.conditional.push((future.clone(), standard, ending));
                true
            }
        }
    }

    /// Wakes and calls what waits, as a drop does.
    pub(crate) fn finish(self) {
        drop(self);
    }

    fn notify(&mut self) {
        for (future, standard, ending) in std::mem::take(&mut self.conditional) {
            if let Err(error) = self.end_under_condition(&future, &standard, ending) {
                log_error(self.py, "a wait for a result failed", error);
            }
        }
        let mut called = Vec::new();
        for (future, watch) in std::mem::take(&mut self.watched) {
            let Watch { sleepers, callbacks, mail } = watch;
            for sleeper in sleepers {
                sleeper.call();
            }
            if let Some(mail) = mail
                && let Err(error) = self.post(&future, mail)
            {
                log_error(self.py, "a result found no event loop", error);
            }
            if !callbacks.is_empty() {
                called.push((future, callbacks));
            }
        }
        for (mailbox, letters) in std::mem::take(&mut self.mail) {
            let delivered = mailbox
                .bind(self.py)
                .getattr("deliver")
                .and_then(|deliver| guarded_call(&deliver, &PyTuple::new(self.py, [letters])?));
            match delivered {
                Ok(nothing) => release(nothing),
                Err(error) => log_error(self.py, "a result found no event loop", error),
            }
        }
        // Last: they are the user's code, and may take long.
        for (future, callbacks) in called {
            for callback in callbacks {
                call_back(&future, callback.bind(self.py));
            }
        }
    }

    fn post(&mut self, future: &Bound<'py, FutureBase>, mail: Mail) -> PyResult<()> {
        let Mail { mailbox, destination } = mail;
        let letter = PyTuple::new(self.py, [destination.bind(self.py), future.as_any()])?;
        if let Some((_, letters)) = self.mail.iter().find(|(other, _)| other.is(&*mailbox)) {
            return letters.append(letter);
        }
        self.mail.push((mailbox, PyList::new(self.py, [letter])?));
        Ok(())
    }

    /// As `concurrent.futures` does it: what `wait` and `as_completed` read under the condition
    /// does not change meanwhile.
    fn end_under_condition(
        &mut self,
        future: &Bound<'py, FutureBase>,
        standard: &Standard,
        ending: Ending,
    ) -> PyResult<()> {
        let py = self.py;
        let (condition, nothing) = (standard.condition.bind(py), PyTuple::empty(py));
        let add = match ending {
            Ending::Cancelled => "add_cancelled",
            Ending::Result(_) => "add_result",
            Ending::Error(..) => "add_exception",
        };
        guarded_call(&condition.getattr("acquire")?, &nothing)?;
        let told = (|| {
            let Ended::Now(watch) = future.get().end_held(ending) else { return Ok(()) };
            self.watched.extend(watch.map(|watch| (future.clone(), *watch)));
            for waiter in standard.waiters.bind(py).try_iter()? {
                guarded_call(&waiter?.getattr(add)?, &PyTuple::new(py, [future])?)?;
            }
            guarded_call(&condition.getattr("notify_all")?, &nothing).map(release)
        })();
        guarded_call(&condition.getattr("release")?, &nothing)?;
        told
    }
}

/// Whatever happens between two futures of a batch: those that have ended are heard of.
impl Drop for Settler<'_> {
    fn drop(&mut self) {
        self.notify();
    }
}

/// What an attempt to end a future did.
pub(super) enum Ended {
    Now(Option<Box<Watch>>),
    /// It was done.
    Before(Ending),
    /// Its condition must be held.
    Conditional(Standard, Ending),
}

/// Calls a callback. What it raises is logged.
pub(super) fn call_back(future: &Bound<'_, FutureBase>, callback: &Bound<'_, PyAny>) {
    let py = future.py();
    let called =
        PyTuple::new(py, [future]).and_then(|args| guarded_call(callback, &args).map(release));
    if let Err(error) = called {
        log_error(py, "a callback of a future failed", error);
    }
}

fn log_error(py: Python<'_>, what: &str, error: PyErr) {
    let error = describe_error(py, error_value(py, error));
    let line = format!("{what}: {error}");
    match drained_log() {
        // A drain thread must not wait for the log.
        Some(of_queue) => of_queue.warn(line),
        None => log("warn", &line),
    }
}

pub(crate) fn error_value(py: Python<'_>, error: PyErr) -> Bound<'_, PyAny> {
    error.into_value(py).into_bound(py).into_any()
}
