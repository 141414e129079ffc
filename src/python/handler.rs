//! A Python handler as the core sees it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple, PyType};

use super::ConfigError;
use super::aggregator::Aggregating;
use super::block::Block;
use super::call::{Held, call_handler, release};
use super::item::PyItem;
use crate::{Batch, EntryToken, Failure, Handler};

/// The entry tokens of all handler instances of the process, by address. Whoever holds a token
/// holds the object, so an address is never looked up for another one.
static TOKENS: Mutex<Option<HashMap<usize, Weak<EntryToken>>>> = Mutex::new(None);

/// The token of `instance`, which is what P1 protects: the same one for every queue and type that
/// it serves.
pub(crate) fn token_of(instance: &Bound<'_, PyAny>) -> Arc<EntryToken> {
    let mut tokens = TOKENS.lock();
    let tokens = tokens.get_or_insert_with(HashMap::new);
    let address = instance.as_ptr() as usize;
    if let Some(token) = tokens.get(&address).and_then(Weak::upgrade) {
        return token;
    }
    tokens.retain(|_, token| token.strong_count() > 0);
    let token = Arc::new(EntryToken::default());
    tokens.insert(address, Arc::downgrade(&token));
    token
}

/// In a forked child: the tokens may be held by threads that do not exist here.
pub(crate) fn forget_tokens() {
    std::mem::forget(TOKENS.lock().take());
}

/// One handler instance on one queue. The methods were looked up when it was registered; `None`:
/// not defined.
pub(crate) struct PyHandler {
    /// The object given as the handler.
    pub(crate) instance: Held,
    /// Whom no two threads may be in: the handler, or the object that it is a method of.
    pub(crate) protected: Held,
    pub(crate) consume: Held,
    /// What an aggregator does instead, without the interpreter.
    pub(crate) aggregating: Option<Arc<Aggregating>>,
    pub(crate) on_idle: Option<Held>,
    pub(crate) on_error: Option<Held>,
    pub(crate) on_close: Option<Held>,
    /// The queue's `error_handler`, for handlers without `on_error`.
    pub(crate) error_handler: Option<Held>,
    /// The exceptions that the queue's retry policy is for, as a tuple.
    pub(crate) retry_on: Option<Held>,
    /// On an event loop.
    pub(crate) works_elsewhere: bool,
    pub(crate) name: String,
    pub(crate) token: Arc<EntryToken>,
}

impl PyHandler {
    /// Each of these references is owned here and nowhere else, so the garbage collector may count
    /// them.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for object in [&self.instance, &self.protected, &self.consume] {
            visit.call(&**object)?;
        }
        for object in
            [&self.on_idle, &self.on_error, &self.on_close, &self.error_handler, &self.retry_on]
        {
            visit.call(object.as_deref())?;
        }
        Ok(())
    }

    fn call0(method: Option<&Held>) -> Result<(), Failure> {
        let Some(method) = method else { return Ok(()) };
        Python::attach(|py| {
            let result =
                call_handler(method.bind(py), &PyTuple::empty(py)).and_then(refuse_coroutine);
            result.map_err(|error| {
                Failure::new(describe(py, error.into_value(py).into_bound(py).into_any()))
            })
        })
    }

    /// `on_error(batch, error)` or `error_handler(batch, error)`, or else the failure that the
    /// queue logs.
    fn report(&self, py: Python<'_>, batch: &Bound<'_, PyList>, error: PyErr) -> Failure {
        let error = error.into_value(py).into_bound(py).into_any();
        let Some(report) = self.on_error.as_ref().or(self.error_handler.as_ref()) else {
            return Failure::last(describe(py, error));
        };
        let args = match PyTuple::new(py, [batch.as_any(), &error]) {
            Ok(args) => args,
            Err(memory) => return Failure::last(memory.to_string()),
        };
        let reported = call_handler(report.bind(py), &args).and_then(refuse_coroutine);
        release(args.into_any());
        match reported {
            Ok(()) => {
                release(error);
                Failure { message: String::new(), reported: true, retry: false }
            }
            Err(second) => {
                let second = describe(py, second.into_value(py).into_bound(py).into_any());
                let first = describe(py, error);
                Failure::last(format!("{first}\nthen its error handler failed: {second}"))
            }
        }
    }
}

/// A handler that gives a coroutine back has done nothing yet, and nobody would await it.
fn refuse_coroutine(result: Bound<'_, PyAny>) -> PyResult<()> {
    static COROUTINE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = result.py();
    if result.is_none() || !result.get_type().is(COROUTINE.import(py, "types", "CoroutineType")?) {
        release(result);
        return Ok(());
    }
    // Closed, it does not warn that nobody awaited it.
    let closed =
        result.getattr("close").and_then(|close| call_handler(&close, &PyTuple::empty(py)));
    release(result);
    release(closed?);
    Err(ConfigError::new_err(
        "the handler returned a coroutine, which nobody awaits; give the `async def` itself to an AsyncBatchQueue, or return \
         something else",
    ))
}

/// All items of a batch, which gives them away.
fn list_of<'py>(py: Python<'py>, batch: &mut Batch<PyItem>) -> PyResult<Bound<'py, PyList>> {
    // One call fills the list, and each item then takes the place of a None: no iterator has to be
    // asked in between.
    let items = batch.iter().count();
    let list = PyList::new(py, [py.None()])?.as_sequence().repeat(items)?.cast_into::<PyList>()?;
    let (mut problem, mut index) = (Ok(()), 0);
    for segment in batch.drain_segments() {
        for item in segment {
            let set = match item.into_content() {
                Ok(object) => list.set_item(index, object),
                Err(rows) => set_rows(&list, index, &rows),
            };
            if set.is_err() {
                problem = set;
            }
            index += 1;
        }
    }
    problem.map(|()| list)
}

#[cold]
fn set_rows(list: &Bound<'_, PyList>, index: usize, rows: &Block) -> PyResult<()> {
    list.set_item(index, rows.to_record_batch(list.py())?)
}

impl PyHandler {
    /// A batch of rows, in Rust; its errors are reported in Python.
    fn aggregate(
        &self,
        aggregating: &Aggregating,
        batch: &mut Batch<PyItem>,
    ) -> Result<(), Failure> {
        let rows: Option<Vec<_>> = batch.iter().map(PyItem::batch).collect();
        let result = match rows {
            Some(rows) => aggregating.consume(&rows),
            None => Err(ConfigError::new_err(
                "an Aggregator takes rows of Arrow data, from produce_arrow, and this batch has other objects; give those a \
                 handler of their own",
            )),
        };
        result.map_err(|error| {
            let reported = Python::try_attach(|py| match list_of(py, batch) {
                Ok(list) => self.report(py, &list, error),
                Err(memory) => Failure::last(memory.to_string()),
            });
            reported.unwrap_or_else(|| Failure::last("the interpreter ended"))
        })
    }
}

impl Handler<PyItem> for PyHandler {
    fn needs_host(&self) -> bool {
        self.aggregating.is_none()
    }

    fn consume(&self, batch: &mut Batch<PyItem>) -> Result<(), Failure> {
        if let Some(aggregating) = &self.aggregating {
            return self.aggregate(aggregating, batch);
        }
        Python::attach(|py| {
            // While another try may follow, the batch keeps its items: the list belongs to the
            // handler.
            let again = self.retry_on.as_ref().filter(|_| !batch.is_last_attempt());
            let list = match again {
                Some(_) => {
                    let objects =
                        batch.iter().map(|item| item.to_object(py)).collect::<PyResult<Vec<_>>>();
                    objects.and_then(|objects| PyList::new(py, objects))
                }
                None => list_of(py, batch),
            };
            let (list, args) =
                match list.and_then(|list| Ok((list.clone(), PyTuple::new(py, [list])?))) {
                    Ok(made) => made,
                    Err(memory) => return Err(Failure::last(memory.to_string())),
                };
            let result = match call_handler(self.consume.bind(py), &args).and_then(refuse_coroutine)
            {
                Ok(()) => {
                    drop(batch.drain());
                    Ok(())
                }
                Err(error) => match again {
                    Some(kinds) if error.is_instance(py, kinds.bind(py)) => {
                        release(error.into_value(py).into_bound(py).into_any());
                        Err(Failure { message: String::new(), reported: false, retry: true })
                    }
                    _ => Err(self.report(py, &list, error)),
                },
            };
            release(args.into_any());
            release(list.into_any());
            result
        })
    }

    fn has_on_idle(&self) -> bool {
        self.on_idle.is_some()
    }

    fn on_idle(&self) -> Result<(), Failure> {
        Self::call0(self.on_idle.as_ref())
    }

    fn on_close(&self) -> Result<(), Failure> {
        Self::call0(self.on_close.as_ref())
    }

    fn works_elsewhere(&self) -> bool {
        self.works_elsewhere
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// The exception with its traceback, as Python would print it.
pub(super) fn describe(py: Python<'_>, error: Bound<'_, PyAny>) -> String {
    let text = py.import("batchqueue._callbacks").and_then(|module| {
        let args = PyTuple::new(py, [&error])?;
        let text = call_handler(&module.getattr("describe_error")?, &args)?;
        release(args.into_any());
        text.extract()
    });
    release(error);
    text.unwrap_or_else(|cause| format!("an exception that cannot be shown: {cause}"))
}
