//! A Python handler as the core sees it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyInt, PyList, PyTuple, PyType};

use crate::flow::batch::{Batch, Cause, DeadLetters, Failure};
use crate::flow::handler::Handler;
use crate::flow::handler::lock::HandlerLock;
use crate::item::{Item, TypeKey};
use crate::python::aggregator::Aggregating;
use crate::python::errors::{BatchFailed, BatchQueueError, ConfigError};
use crate::python::future::{Ending, Settler, Submissions};
use crate::python::interpreter::{
    CALLBACKS, GuardedRef, call_in, describe_error, error_value, guarded_call, release,
};
use crate::python::item::{Content, PyItem, RowBlock};
use crate::threads::context::{AssumedContext, ThreadContext};

/// One handler instance on one queue. Its methods were looked up at registration; those that it
/// does not define are `None`.
pub(crate) struct PyHandler {
    /// The object given as the handler.
    pub(crate) instance: GuardedRef,
    /// The object that at most one thread may be inside at a time: the handler, or the owner of a
    /// bound method.
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
    /// Whether the handler runs on an event loop while the drain thread waits.
    pub(crate) works_elsewhere: bool,
    pub(crate) name: String,
    pub(crate) lock: Arc<HandlerLock>,
    /// The futures of the queue.
    pub(crate) submissions: Arc<Submissions>,
}

impl PyHandler {
    /// Visits the references. None has another owner, so the garbage collector may count them.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for object in [&self.instance, &self.protected, &self.consume] {
            visit.call(&**object)?;
        }
        for object in [&self.on_idle, &self.on_error, &self.on_close, &self.error_handler] {
            visit.call(object.as_deref())?;
        }
        visit.call(self.opening.on_open.as_deref())?;
        self.retry_on.traverse(visit)
    }

    fn call0(method: Option<&GuardedRef>) -> Result<(), Failure> {
        let Some(method) = method else { return Ok(()) };
        Python::attach(|py| {
            let result = guarded_call(method.bind(py), ()).and_then(refuse_coroutine);
            result.map_err(|error| Failure::new(describe_error(py, error)))
        })
    }

    /// Calls `on_error(batch, error)` or `error_handler(batch, error)`. Without either, or if it
    /// raises, the queue logs the returned failure.
    fn report(
        &self,
        batch: &Bound<'_, PyList>,
        error: Bound<'_, PyAny>,
        has_dead_letter: bool,
    ) -> Failure {
        let py = batch.py();
        // For the dead letters of the items that failed.
        let cause = has_dead_letter.then(|| Cause::new(GuardedRef::new(error.clone().unbind())));
        let reported = self.on_error.as_ref().or(self.error_handler.as_ref()).map(|report| {
            guarded_call(report.bind(py), (batch, &error)).and_then(refuse_coroutine)
        });
        if let Some(Ok(())) = reported {
            release(error);
            return Failure { reported: true, cause, ..Failure::last("") };
        }
        let second = reported.and_then(Result::err).map(|second| describe_error(py, second));
        let mut text = describe_error(py, PyErr::from_value(error));
        if let Some(second) = second {
            text = format!("{text}\nthen its error handler failed: {second}");
        }
        Failure { cause, ..Failure::last(text) }
    }
}

/// Returns the type of a coroutine, looked up when the package is imported.
pub(crate) fn coroutine_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static COROUTINE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    COROUTINE.import(py, "types", "CoroutineType")
}

/// Returns the result of a handler's `consume`, or the error that it stands for.
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
    release(guarded_call(&result.getattr("close")?, ())?);
    Err(ConfigError::new_err(
        "the handler returned a coroutine, which is never awaited; give the `async def` itself to \
         an AsyncBatchQueue, or return something else",
    ))
}

/// Rejects results that mean that the work was not done: a generator, an awaitable, a failed
/// future.
fn check_result(result: &Bound<'_, PyAny>) -> PyResult<()> {
    if result.is_exact_instance_of::<PyInt>()
        || result.is_exact_instance_of::<PyBool>()
        || result.is_exact_instance_of::<PyList>()
    {
        return Ok(());
    }
    call_in(result.py(), CALLBACKS, "check_result", (result,)).map(release)
}

/// Rejects a coroutine from a method whose result is not used.
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

/// Copies the items of a batch, which keeps them, into a list.
pub(super) fn copy_of<'py>(py: Python<'py>, batch: &Batch<PyItem>) -> PyResult<Bound<'py, PyList>> {
    let objects = batch.iter().map(|item| item.to_object(py)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, objects)
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
                    Ok(list) => self.report(&list, error, kept),
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
            let has_submitted = self.submissions.is_used() && begin_submitted(py, batch);
            if batch.is_empty() {
                // All items were cancelled.
                return Ok(());
            }
            // The list belongs to the handler, so the batch keeps its items while another attempt
            // may follow. It also keeps blocks of rows, which are cut if a part of them fails, and
            // submitted items with their futures.
            let again = self.retry_on.of(batch);
            // Some item stands for several rows.
            let rows = batch.len() != batch.iter().count();
            let keeps = again.is_some() || rows || has_submitted || batch.has_dead_letter();
            let list = if keeps { copy_of(py, batch) } else { list_of(py, batch) };
            let list = list.map_err(|memory| Failure::last(memory.to_string()))?;
            let count = list.len();
            // If no item stands for several rows, the list has as many items as the batch has rows.
            let makes_blocks = rows || keeps && batch.iter().any(PyItem::is_rows);
            let given = Given { count, blocks: makes_blocks.then(|| list.get_slice(0, count)) };
            let opened = self.opening.open(py);
            let returned = opened.and_then(|()| guarded_call(self.consume.bind(py), (&list,)));
            let (handled, again) = match returned.and_then(value_of) {
                Ok(value) if has_submitted => {
                    // Wrong results would be wrong again, so there is no retry.
                    (end_with_results(py, &self.name, batch, value), None)
                }
                returned => (returned.map(release), again),
            };
            let result = match handled {
                Ok(()) => {
                    drop(batch.drain());
                    Ok(())
                }
                Err(error) => self.fail(py, batch, &list, &given, error, again.as_deref()),
            };
            release(list.into_any());
            result
        })
    }

    fn consume_dead_letters(&self, letters: &mut Vec<DeadLetters<PyItem>>) -> Result<(), Failure> {
        Python::attach(|py| {
            let kept = list_of_letters(py, self.submissions.queue(), letters).and_then(|list| {
                let opened = self.opening.open(py);
                let result = opened.and_then(|()| guarded_call(self.consume.bind(py), (&list,)));
                release(list.into_any());
                result.and_then(value_of)
            });
            kept.map(release).map_err(|error| Failure::last(describe_error(py, error)))
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

// A call that failed, perhaps only for part of its batch.

/// The original contents of a handler's list, which the handler may change.
pub(super) struct Given<'py> {
    /// The length of the list.
    pub(super) count: usize,
    /// A copy of the list, if its items are record batches.
    pub(super) blocks: Option<Bound<'py, PyList>>,
}

impl PyHandler {
    /// Returns the outcome of a call that raised `error`. `list` is the handler's list as the
    /// handler left it. `again` has the exceptions after which the batch is retried; if it is set,
    /// the batch has kept its items.
    #[cold]
    pub(super) fn fail(
        &self,
        py: Python<'_>,
        batch: &mut Batch<PyItem>,
        list: &Bound<'_, PyList>,
        given: &Given<'_>,
        error: PyErr,
        mut again: Option<&GuardedRef>,
    ) -> Result<(), Failure> {
        let (mut error, mut in_part, mut failed) = (error, false, list.clone());
        if error.is_instance_of::<BatchFailed>(py) {
            match keep_failed(py, batch, list, given, &error) {
                Ok(None) => {
                    drop(batch.drain());
                    release(error_value(py, error));
                    return Ok(());
                }
                Ok(Some(kept)) => {
                    (in_part, failed) = (true, kept);
                    again = again.filter(|_| !batch.is_last_for_a_part());
                }
                Err(wrong) => {
                    wrong.set_cause(py, Some(error));
                    error = wrong;
                }
            }
        }
        let failure = match again {
            Some(kinds) if is_one_of(py, &error, kinds) => {
                let brief = error.to_string();
                release(error_value(py, error));
                Failure::new(brief)
            }
            _ => {
                let error = error_value(py, error);
                end_with_error(py, batch, &error);
                self.report(&failed, error, batch.has_dead_letter())
            }
        };
        release(failed.into_any());
        Err(Failure { in_part, ..failure })
    }
}

/// Whether a retry policy covers this error, or the cause that a `BatchFailed` names.
fn is_one_of(py: Python<'_>, error: &PyErr, kinds: &GuardedRef) -> bool {
    let cause = error.cause(py).filter(|_| error.is_instance_of::<BatchFailed>(py));
    cause.as_ref().unwrap_or(error).is_instance(py, kinds.bind(py))
}

/// Keeps only the failed items in a batch, and returns them as a list, or `None` if nothing failed.
/// Fails if the error names anything else.
fn keep_failed<'py>(
    py: Python<'py>,
    batch: &mut Batch<PyItem>,
    list: &Bound<'py, PyList>,
    given: &Given<'py>,
    error: &PyErr,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let sizes: Option<Vec<usize>> =
        given.blocks.is_some().then(|| batch.iter().map(Item::weight).collect());
    // Without a next attempt, only the list has the objects.
    let original = match &given.blocks {
        Some(blocks) => Some(blocks.clone()),
        None if batch.is_empty() => None,
        None => Some(copy_of(py, batch)?),
    };
    let args = (error.value(py), list, &original, given.count, sizes);
    let positions: Vec<usize> = call_in(py, CALLBACKS, "failed_positions", args)?.extract()?;
    let is_in_batch = original.map(|original| release(original.into_any())).is_some();
    if is_in_batch {
        end_others(py, batch, &positions, error.value(py))?;
    }
    if positions.is_empty() {
        return Ok(None);
    }
    if is_in_batch {
        batch.keep(&positions);
    } else {
        for &position in &positions {
            batch.push(PyItem::new(list.get_item(position)?), 1, Vec::new);
        }
    }
    copy_of(py, batch).map(Some)
}

// The input of a handler of dead letters: a list of `DeadLetter`.

/// Moves the items of all letters into one list, in order. `queue` is the name of their queue.
pub(super) fn list_of_letters<'py>(
    py: Python<'py>,
    queue: &str,
    letters: &mut Vec<DeadLetters<PyItem>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for mut letter in letters.drain(..) {
        let types = letter.items.iter().map(|item| item.item_type(py));
        let types = PyList::new(py, types.collect::<Vec<_>>())?;
        let cause = letter.failure.cause.as_ref().and_then(Cause::downcast_ref::<GuardedRef>);
        let error = match cause {
            Some(error) => error.bind(py).clone(),
            // The core made this failure, without an exception.
            None => error_value(py, BatchQueueError::new_err(letter.failure.message.clone())),
        };
        let items = list_of(py, &mut letter.items)?;
        let args = (&list, items, types, error, letter.attempts, queue);
        release(call_in(py, CALLBACKS, "add_dead_letters", args)?);
    }
    Ok(list)
}

// `on_open` of a handler: called under its handler lock before the first batch, and again before
// the next one if it raised. `on_close` closes what it opened, and is called only while the handler
// is open.

pub(crate) struct Opening {
    on_open: Option<GuardedRef>,
    /// Changed under the handler lock, which orders the calls.
    is_open: AtomicBool,
}

impl Opening {
    pub(crate) fn new(on_open: Option<GuardedRef>) -> Self {
        let is_open = AtomicBool::new(on_open.is_none());
        Self { on_open, is_open }
    }

    /// Whether `on_open` has not returned yet.
    pub(crate) fn is_due(&self) -> bool {
        // Relaxed, here and below: ordered by the mutex of the handler lock.
        !self.is_open.load(Ordering::Relaxed)
    }

    /// Calls `on_open` if it is due.
    #[inline]
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<()> {
        match &self.on_open {
            Some(on_open) if self.is_due() => self.call(on_open.bind(py)),
            _ => Ok(()),
        }
    }

    #[cold]
    fn call(&self, on_open: &Bound<'_, PyAny>) -> PyResult<()> {
        guarded_call(on_open, ()).and_then(refuse_coroutine)?;
        self.is_open.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Marks the handler as closed, and returns whether it was open. A handler that is registered
    /// again is opened again.
    pub(crate) fn close(&self) -> bool {
        let was_open = !self.is_due();
        self.is_open.store(self.on_open.is_none(), Ordering::Relaxed);
        was_open
    }
}

// The exceptions after which a batch is tried again: those of its type, or else of the queue.

/// Tuples of exception classes, for one handler.
pub(crate) struct RetryOn {
    of_queue: Option<Arc<GuardedRef>>,
    /// For the types whose policy differs.
    of_types: Mutex<HashMap<TypeKey, Arc<GuardedRef>>>,
}

impl RetryOn {
    pub(super) fn new(of_queue: Option<Py<PyAny>>) -> Self {
        let of_queue = of_queue.map(|kinds| Arc::new(GuardedRef::new(kinds)));
        Self { of_queue, of_types: Mutex::default() }
    }

    /// Sets the exceptions, a tuple, after which the batches of a type are retried; `None` means
    /// those of the queue's policy. Returns the previous ones.
    pub(super) fn set(
        &self,
        key: TypeKey,
        kinds: Option<Arc<GuardedRef>>,
    ) -> Option<Arc<GuardedRef>> {
        let mut of_types = self.of_types.lock();
        match kinds {
            Some(kinds) => of_types.insert(key, kinds),
            None => of_types.remove(&key),
        }
    }

    /// Returns the exceptions after which a batch is retried, or `None` on its last attempt.
    #[inline]
    pub(super) fn of(&self, batch: &Batch<PyItem>) -> Option<Arc<GuardedRef>> {
        if batch.is_last_attempt() { None } else { self.of_type(batch) }
    }

    #[cold]
    fn of_type(&self, batch: &Batch<PyItem>) -> Option<Arc<GuardedRef>> {
        let key = batch.iter().next().map(Item::type_key);
        let own = key.and_then(|key| self.of_types.lock().get(&key).cloned());
        own.or_else(|| self.of_queue.clone())
    }

    /// Visits the exceptions of the types only if no other thread has them locked.
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.of_queue.as_deref().map(|kinds| &**kinds))?;
        let Some(of_types) = self.of_types.try_lock() else { return Ok(()) };
        of_types.values().try_for_each(|kinds| visit.call(&***kinds))
    }
}

// The results of a batch with submitted items: what the handler returned for each, or its error.

/// Marks the submitted items as running before a call, and removes the cancelled ones from the
/// batch. Returns whether there are submitted items.
#[cold]
fn begin_submitted(py: Python<'_>, batch: &mut Batch<PyItem>) -> bool {
    let (mut has_submitted, mut cancelled) = (false, Vec::new());
    for (index, item) in batch.iter().enumerate() {
        if let Some(ticket) = item.ticket() {
            if ticket.future(py).get().begin() {
                has_submitted = true;
            } else {
                cancelled.push(index);
            }
        }
    }
    if !cancelled.is_empty() {
        // Positions are by weight.
        let (mut kept, mut start) = (Vec::new(), 0);
        for (index, item) in batch.iter().enumerate() {
            let end = start + item.weight();
            if cancelled.binary_search(&index).is_err() {
                kept.extend(start..end);
            }
            start = end;
        }
        batch.withdraw_others(&kept);
    }
    has_submitted
}

/// Returns the result of a handler as a list or a tuple with one result for each item of its list.
fn results_of<'py>(
    name: &str,
    returned: Bound<'py, PyAny>,
    count: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let is_list = returned.cast_exact::<PyList>().is_ok_and(|list| list.len() == count);
    if is_list || returned.cast_exact::<PyTuple>().is_ok_and(|tuple| tuple.len() == count) {
        return Ok(returned);
    }
    call_in(returned.py(), CALLBACKS, "results_of", (name, returned, count))
}

/// Ends the futures of a batch with the results that its handler returned.
#[cold]
fn end_with_results(
    py: Python<'_>,
    name: &str,
    batch: &Batch<PyItem>,
    returned: Bound<'_, PyAny>,
) -> PyResult<()> {
    let results = results_of(name, returned, batch.iter().count())?;
    // Fails if another thread has shortened the list meanwhile.
    end_each(py, batch, |index, _| results.get_item(index).map(Some))?;
    release(results);
    Ok(())
}

/// Ends the futures of all items except those at `failed`, which are positions in order, with their
/// results, or with None if the handler gave none.
#[cold]
fn end_others(
    py: Python<'_>,
    batch: &Batch<PyItem>,
    failed: &[usize],
    error: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let results = error.getattr("results")?;
    end_each(py, batch, |index, position| {
        if failed.binary_search(&position).is_ok() {
            return Ok(None);
        }
        Some(if results.is_none() { Ok(results.clone()) } else { results.get_item(index) })
            .transpose()
    })
}

/// Ends the futures of a batch, each with the result for its item's index and position in rows. A
/// future without a result stays as it is.
fn end_each<'py>(
    py: Python<'py>,
    batch: &Batch<PyItem>,
    result_of: impl Fn(usize, usize) -> PyResult<Option<Bound<'py, PyAny>>>,
) -> PyResult<()> {
    let (mut settler, mut start) = (Settler::new(py), 0);
    for (index, item) in batch.iter().enumerate() {
        let position = start;
        start += item.weight();
        if let Some(ticket) = item.ticket()
            && let Some(result) = result_of(index, position)?
        {
            settler.end(ticket.future(py), Ending::result(result));
        }
    }
    Ok(())
}

/// Ends the futures of a batch that failed for good.
pub(super) fn end_with_error(py: Python<'_>, batch: &Batch<PyItem>, error: &Bound<'_, PyAny>) {
    let mut settler = Settler::new(py);
    for ticket in batch.iter().filter_map(PyItem::ticket) {
        settler.end(ticket.future(py), Ending::error(error));
    }
}

/// Ends the futures of a batch whose handler is missing or was removed.
pub(super) fn end_unhandled(py: Python<'_>, queue: &str, batch: &Batch<PyItem>, were_tried: bool) {
    let Some(first) = batch.iter().find(|item| item.ticket().is_some()) else { return };
    let name = first.type_name(py);
    let text = if were_tried {
        format!("queue {queue:?}: the handler of {name} was removed before the next attempt")
    } else {
        format!(
            "queue {queue:?}: there is no handler for items of {name}; call add_handler before the \
             first submit"
        )
    };
    end_with_error(py, batch, &error_value(py, BatchQueueError::new_err(text)));
}

// `HandlerCall`: carries a drain thread's call into a handler to the event loop, where the
// coroutine of the handler runs.

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
    /// Makes the calling thread pass for the drain thread while the result lives, unless the call
    /// has ended.
    pub(crate) fn assume(call: Option<&Self>) -> Option<AssumedContext> {
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
