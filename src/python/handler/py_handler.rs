//! A Python handler as the core sees it.

use std::sync::Arc;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyInt, PyList, PyTuple, PyType};

use super::failed_part::Given;
use super::letters::{cause_of, list_of_letters};
use super::opening::Opening;
use super::results::{begin, end_with_error, end_with_results};
use super::retry_on::RetryOn;
use crate::python::aggregating::Aggregating;
use crate::python::exceptions::{BatchFailed, ConfigError};
use crate::python::interpreter::{GuardedRef, describe_error, guarded_call, release};
use crate::python::item::{Content, PyItem, RowBlock};
use crate::python::results::{Submissions, error_value};
use crate::{Batch, DeadLetters, Desk, Failure, Handler, TypeKey};

/// One handler instance on one queue. Its methods were looked up when it was registered; those that
/// it does not define are `None`.
pub(crate) struct PyHandler {
    /// The object given as the handler.
    pub(crate) instance: GuardedRef,
    /// The object that at most one thread may be inside: the handler, or the owner of a bound
    /// method.
    pub(crate) protected: GuardedRef,
    pub(crate) consume: GuardedRef,
    pub(crate) opening: Opening,
    /// Called instead of `consume`, without the interpreter, if the handler is an aggregator.
    pub(crate) aggregating: Option<Arc<Aggregating>>,
    pub(crate) on_idle: Option<GuardedRef>,
    pub(crate) on_error: Option<GuardedRef>,
    pub(crate) on_close: Option<GuardedRef>,
    /// The queue's `error_handler`, for handlers without `on_error`.
    pub(crate) error_handler: Option<GuardedRef>,
    pub(crate) retry_on: RetryOn,
    /// The name of the queue.
    pub(crate) queue: Arc<str>,
    /// Whether the handler runs on an event loop while the drain thread waits.
    pub(crate) works_elsewhere: bool,
    pub(crate) name: String,
    pub(crate) desk: Arc<Desk>,
    /// The futures of the queue.
    pub(crate) submissions: Arc<Submissions>,
}

impl PyHandler {
    /// Each of these references has no other owner, so the garbage collector may count it.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for object in [&self.instance, &self.protected, &self.consume] {
            visit.call(&**object)?;
        }
        for object in [&self.on_idle, &self.on_error, &self.on_close, &self.error_handler] {
            visit.call(object.as_deref())?;
        }
        self.opening.traverse(visit)?;
        self.retry_on.traverse(visit)
    }

    /// The batches of a type are tried again after these exceptions, a tuple; `None`: after those
    /// of the queue's policy. Returns those before.
    pub(crate) fn set_retry_on(
        &self,
        key: TypeKey,
        kinds: Option<Arc<GuardedRef>>,
    ) -> Option<Arc<GuardedRef>> {
        self.retry_on.set(key, kinds)
    }

    fn call0(method: Option<&GuardedRef>) -> Result<(), Failure> {
        let Some(method) = method else { return Ok(()) };
        Python::attach(|py| {
            let result =
                guarded_call(method.bind(py), &PyTuple::empty(py)).and_then(refuse_coroutine);
            result.map_err(|error| {
                Failure::new(describe_error(py, error.into_value(py).into_bound(py).into_any()))
            })
        })
    }

    /// Calls `on_error(batch, error)` or `error_handler(batch, error)`. Without either, the queue
    /// logs the failure that is returned.
    pub(super) fn report(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyList>,
        error: Bound<'_, PyAny>,
        has_dead_letter: bool,
    ) -> Failure {
        let cause = has_dead_letter.then(|| cause_of(&error));
        Failure { cause, ..self.report_error(py, batch, error) }
    }

    fn report_error(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyList>,
        error: Bound<'_, PyAny>,
    ) -> Failure {
        let Some(report) = self.on_error.as_ref().or(self.error_handler.as_ref()) else {
            return Failure::last(describe_error(py, error));
        };
        let args = match PyTuple::new(py, [batch.as_any(), &error]) {
            Ok(args) => args,
            Err(memory) => return Failure::last(memory.to_string()),
        };
        let reported = guarded_call(report.bind(py), &args).and_then(refuse_coroutine);
        release(args.into_any());
        match reported {
            Ok(()) => {
                release(error);
                Failure { reported: true, ..Failure::last("") }
            }
            Err(second) => {
                let second = describe_error(py, second.into_value(py).into_bound(py).into_any());
                let first = describe_error(py, error);
                Failure::last(format!("{first}\nthen its error handler failed: {second}"))
            }
        }
    }
}

/// The type of a coroutine, looked up when the package is imported.
pub(crate) fn coroutine_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static COROUTINE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    COROUTINE.import(py, "types", "CoroutineType")
}

/// What a handler's `consume` returned as an error, if it is one.
fn failure_of(result: Bound<'_, PyAny>) -> PyResult<()> {
    value_of(result).map(release)
}

/// What a handler's `consume` returned, unless it is an error.
fn value_of(result: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    if !result.is_none() && result.is_instance_of::<BatchFailed>() {
        return Err(PyErr::from_value(result));
    }
    reject_coroutine(&result)?;
    Ok(result)
}

/// Rejects a coroutine: the handler that returned it has not run yet, and nothing would await it.
fn reject_coroutine(result: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = result.py();
    if result.is_none() {
        return Ok(());
    }
    if !result.get_type().is(coroutine_type(py)?) {
        return check_result(result);
    }
    // A closed coroutine does not warn that it was never awaited.
    let closed =
        result.getattr("close").and_then(|close| guarded_call(&close, &PyTuple::empty(py)));
    release(closed?);
    Err(ConfigError::new_err(
        "the handler returned a coroutine, which is never awaited; give the `async def` itself to \
         an AsyncBatchQueue, or return something else",
    ))
}

/// Rejects what says that the work has not been done: a generator, an awaitable, a failed future.
fn check_result(result: &Bound<'_, PyAny>) -> PyResult<()> {
    if result.is_exact_instance_of::<PyInt>()
        || result.is_exact_instance_of::<PyBool>()
        || result.is_exact_instance_of::<PyList>()
    {
        return Ok(());
    }
    let py = result.py();
    let args = PyTuple::new(py, [result])?;
    let check = py.import("batchqueue.queues.callbacks")?.getattr("check_result")?;
    let checked = guarded_call(&check, &args);
    release(args.into_any());
    checked.map(release)
}

/// The same for a method whose result is not used.
pub(super) fn refuse_coroutine(result: Bound<'_, PyAny>) -> PyResult<()> {
    let rejected = reject_coroutine(&result);
    release(result);
    rejected
}

/// Moves all items of a batch into a list.
pub(super) fn list_of<'py>(
    py: Python<'py>,
    batch: &mut Batch<PyItem>,
) -> PyResult<Bound<'py, PyList>> {
    // One call fills the list with None, and each item then replaces a None: no iterator is called
    // in between.
    let items = batch.iter().count();
    let list = PyList::new(py, [py.None()])?.as_sequence().repeat(items)?.cast_into::<PyList>()?;
    let (mut problem, mut index) = (Ok(()), 0);
    for segment in batch.drain_segments() {
        for item in segment {
            let set = match item.into_content() {
                Content::Object(object) => list.set_item(index, object),
                Content::Rows(rows) => set_rows(&list, index, &rows),
                Content::Submitted(submitted) => list.set_item(index, submitted.object),
            };
            if set.is_err() {
                problem = set;
            }
            index += 1;
        }
    }
    problem.map(|()| list)
}

/// A list of the items of a batch, which keeps them.
pub(super) fn copy_of<'py>(py: Python<'py>, batch: &Batch<PyItem>) -> PyResult<Bound<'py, PyList>> {
    let objects = batch.iter().map(|item| item.to_object(py)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, objects)
}

/// Whether a batch has an item that stands for several rows.
pub(super) fn has_rows(batch: &Batch<PyItem>) -> bool {
    batch.len() != batch.iter().count()
}

#[cold]
fn set_rows(list: &Bound<'_, PyList>, index: usize, rows: &RowBlock) -> PyResult<()> {
    list.set_item(index, rows.to_record_batch(list.py())?)
}

impl PyHandler {
    /// Aggregates a batch of rows in Rust. Errors are reported in Python.
    fn aggregate(
        &self,
        aggregating: &Aggregating,
        batch: &mut Batch<PyItem>,
    ) -> Result<(), Failure> {
        let rows: Option<Vec<_>> = batch.iter().map(PyItem::batch).collect();
        let result = match rows {
            Some(rows) => aggregating.consume(&rows),
            None => Err(ConfigError::new_err(
                "an Aggregator takes rows of Arrow data, from produce_arrow, and this batch has \
                 other objects; give those another handler",
            )),
        };
        result.map_err(|error| {
            let kept = batch.has_dead_letter();
            let reported = Python::try_attach(|py| {
                let error = error_value(py, error);
                end_with_error(py, batch, &error);
                let list = if kept { copy_of(py, batch) } else { list_of(py, batch) };
                match list {
                    Ok(list) => self.report(py, &list, error, kept),
                    Err(memory) => Failure::last(memory.to_string()),
                }
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
            let has_submitted = begin(py, &self.submissions, batch);
            if batch.is_empty() {
                // All were cancelled.
                return Ok(());
            }
            // While another attempt may follow, the batch keeps its items: the list belongs to the
            // handler. It also keeps blocks of rows, which are cut if a part of them fails, and
            // what was submitted, with its futures.
            let again = self.retry_on.of(batch);
            let rows = has_rows(batch);
            let keeps = again.is_some() || rows || has_submitted || batch.has_dead_letter();
            let list = if keeps { copy_of(py, batch) } else { list_of(py, batch) };
            let (list, args) =
                match list.and_then(|list| Ok((list.clone(), PyTuple::new(py, [list])?))) {
                    Ok(made) => made,
                    Err(memory) => return Err(Failure::last(memory.to_string())),
                };
            let count = list.len();
            // Rows one by one are as many as the items of the list.
            let makes_blocks = rows || keeps && batch.iter().any(PyItem::is_rows);
            let given = Given { count, blocks: makes_blocks.then(|| list.get_slice(0, count)) };
            let opened = self.opening.open(py);
            let returned = opened.and_then(|()| guarded_call(self.consume.bind(py), &args));
            let (handled, again) = match returned.and_then(value_of) {
                Ok(value) if has_submitted => {
                    // Results that are wrong would be wrong again.
                    (end_with_results(py, &self.name, batch, value), None)
                }
                Ok(value) => {
                    release(value);
                    (Ok(()), None)
                }
                Err(error) => (Err(error), again),
            };
            let result = match handled {
                Ok(()) => {
                    drop(batch.drain());
                    Ok(())
                }
                Err(error) => self.fail(py, batch, &list, &given, error, again.as_deref()),
            };
            release(args.into_any());
            release(list.into_any());
            result
        })
    }

    fn consume_dead_letters(&self, letters: &mut Vec<DeadLetters<PyItem>>) -> Result<(), Failure> {
        Python::attach(|py| {
            let kept = list_of_letters(py, &self.queue, letters).and_then(|list| {
                let args = PyTuple::new(py, [list])?;
                let opened = self.opening.open(py);
                let result = opened.and_then(|()| guarded_call(self.consume.bind(py), &args));
                let result = result.and_then(failure_of);
                release(args.into_any());
                result
            });
            kept.map_err(|error| {
                let error = error.into_value(py).into_bound(py).into_any();
                Failure::last(describe_error(py, error))
            })
        })
    }

    fn has_on_idle(&self) -> bool {
        self.on_idle.is_some()
    }

    fn on_idle(&self) -> Result<(), Failure> {
        if self.opening.is_due() { Ok(()) } else { Self::call0(self.on_idle.as_ref()) }
    }

    fn has_on_close(&self) -> bool {
        self.on_close.is_some()
    }

    fn on_close(&self) -> Result<(), Failure> {
        if self.opening.close() { Self::call0(self.on_close.as_ref()) } else { Ok(()) }
    }

    fn works_elsewhere(&self) -> bool {
        self.works_elsewhere
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
