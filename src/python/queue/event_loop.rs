//! A queue used from an event loop: calls that do not wait, and how the loop is notified of room.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::flow::partition::space::Listener;
use crate::flow::produce::pending::{Line, Listening, PendingItem, TryProduceError};
use crate::item::TypeKey;
use crate::python::errors::{flushed, forked};
use crate::python::future::{FutureBase, Mail};
use crate::python::handler::py_handler::HandlerCall;
use crate::python::interpreter::{
    GuardedRef, NoPause, StoppablePause, Timeout, deadline_of, error_value, generation,
};
use crate::python::item::{ItemType, PyItem, refused};
use crate::python::queue::Queue;
use crate::python::queue::sequence::Sequence;
use crate::sync::locks;

// The calls of `AsyncBatchQueue`: those that do not wait, and those in which a separate thread
// waits.

/// Enqueue one item without waiting.
///
/// Args:
///     queue: The queue.
///     item: Any object.
///     notifier: The lines that tasks of the loop wait in. There the item waits as well, behind
///         them.
///     turn_at: The line where it is the caller's turn.
///     call: The handler call that the caller belongs to.
///
/// Returns:
///     True if the item was accepted, False if it was refused, or a `PendingItem` to try again.
#[pyfunction]
#[pyo3(signature = (
    queue, item, notifier, turn_at: "tuple[int, int] | None", call
) -> "bool | PendingItem")]
pub(crate) fn try_produce(
    queue: &Queue,
    item: Bound<'_, PyAny>,
    notifier: Option<&RoomNotifier>,
    turn_at: Option<(usize, usize)>,
    call: Option<&HandlerCall>,
) -> PyResult<Attempted> {
    let life = queue.life()?;
    let core = life.core()?;
    let py = item.py();
    let given = queue.selector.given(core, &item)?;
    let _assumed = HandlerCall::assume(call);
    let is_awaited = |line| RoomNotifier::is_awaited(notifier, turn_at, line);
    let result = core.try_produce(life.item(item)?, given, &is_awaited);
    Attempted::of(py, core.name(), result, 0)
}

/// Enqueue one item whose result is wanted, without waiting.
///
/// Args:
///     queue: The queue.
///     item: Any object.
///     notifier: As in `try_produce`.
///     call: As in `try_produce`.
///     mailbox: Its `deliver` gets a list of pairs when items are done: `destination`, and the
///         future of the item.
///     destination: Any object.
///
/// Returns:
///     The future of the item; and False, or a `PendingItem` to try again. A refused item has its
///     error in the future.
#[pyfunction]
#[pyo3(signature = (
    queue, item, notifier, call, mailbox, destination
) -> "tuple[Any, bool | PendingItem]")]
pub(crate) fn try_submit<'py>(
    queue: &Queue,
    item: Bound<'py, PyAny>,
    notifier: Option<&RoomNotifier>,
    call: Option<&HandlerCall>,
    mailbox: Py<PyAny>,
    destination: Py<PyAny>,
) -> PyResult<(Bound<'py, FutureBase>, Attempted)> {
    let life = queue.life()?;
    let core = life.core()?;
    let py = item.py();
    let given = queue.selector.given(core, &item)?;
    let (future, item) = Queue::submitted(life, item)?;
    let (mailbox, destination) = (GuardedRef::new(mailbox), GuardedRef::new(destination));
    future.get().send_to(Mail { mailbox, destination });
    let _assumed = HandlerCall::assume(call);
    let is_awaited = |line| RoomNotifier::is_awaited(notifier, None, line);
    let attempted = Attempted::of(py, core.name(), core.try_produce(item, given, &is_awaited), 0);
    Ok((future, attempted.unwrap_or(Attempted::Done(Some(false)))))
}

/// Enqueue the items of a list or a tuple from `start` on, without waiting.
///
/// Args:
///     queue: The queue.
///     items: All items of the call.
///     start: Index of the first item to enqueue.
///     notifier: As in `try_produce`.
///     turn_at: As in `try_produce`.
///     call: As in `try_produce`.
///
/// Returns:
///     The number of items accepted so far, those before `start` included, and the result for the
///     next item: True if there is none, None if the loop should get a turn first, else as in
///     `try_produce`.
#[pyfunction]
#[pyo3(signature = (
    queue, items: "list[Any] | tuple[Any, ...]", start: "int", notifier,
    turn_at: "tuple[int, int] | None", call
) -> "tuple[int, bool | PendingItem | None]")]
pub(crate) fn try_produce_many(
    py: Python<'_>,
    queue: &Queue,
    items: &Bound<'_, PyAny>,
    start: usize,
    notifier: Option<&RoomNotifier>,
    turn_at: Option<(usize, usize)>,
    call: Option<&HandlerCall>,
) -> PyResult<(usize, Attempted)> {
    let life = queue.life()?;
    let core = life.core()?;
    let Some(items) = Sequence::of(items) else {
        return Err(PyTypeError::new_err("items must be a list or a tuple"));
    };
    let _assumed = HandlerCall::assume(call);
    let is_awaited = |line| RoomNotifier::is_awaited(notifier, turn_at, line);
    let awaits_any = RoomNotifier::is_any_awaited(notifier, turn_at);
    let (accepted, result) =
        items.try_produce(core, &life.registry, start, &is_awaited, awaits_any)?;
    let attempted = match result {
        Some(result) => Attempted::of(py, core.name(), result, accepted)?,
        None => Attempted::Done(None),
    };
    Ok((accepted, attempted))
}

/// Return the number of items of a line that there is room for now; `buffer_size` once its
/// partition accepts no more items.
#[pyfunction]
#[pyo3(signature = (queue, line: "tuple[int, int]"))]
pub(crate) fn room(queue: &Queue, line: (usize, usize)) -> PyResult<usize> {
    Ok(queue.core()?.room(line_of(line)))
}

/// `Queue.flush`, whose wait also ends when the event `stop` is set.
#[pyfunction]
pub(crate) fn flush_until(
    queue: &Queue,
    timeout: Option<Timeout>,
    stop: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    flushed(queue.core()?.flush(deadline_of(timeout)?, &mut StoppablePause(stop)))
}

/// `Queue.produce_arrow`, which also ends when the event `stop` is set.
///
/// Args:
///     queue: The queue.
///     batch: As in `Queue.produce_arrow`.
///     type_column: As in `Queue.produce_arrow`.
///     timeout: As in `Queue.produce_arrow`.
///     stop: A `threading.Event`.
///     call: The handler call that the caller belongs to.
#[pyfunction]
#[pyo3(signature = (queue, batch, type_column: "str", timeout, stop, call))]
pub(crate) fn produce_arrow_until(
    queue: &Queue,
    batch: &Bound<'_, PyAny>,
    type_column: &Bound<'_, PyAny>,
    timeout: Option<Timeout>,
    stop: &Bound<'_, PyAny>,
    call: Option<&HandlerCall>,
) -> PyResult<usize> {
    let _assumed = HandlerCall::assume(call);
    queue.produce_rows(batch, type_column, timeout, Some(stop))
}

/// `Queue.shutdown`, whose wait also ends when the event `stop` is set.
///
/// Args:
///     queue: The queue.
///     timeout: As in `Queue.shutdown`.
///     stop: A `threading.Event`.
///     call: The handler call that the caller belongs to.
#[pyfunction]
pub(crate) fn shutdown_until(
    queue: &Queue,
    timeout: Option<Timeout>,
    stop: &Bound<'_, PyAny>,
    call: Option<&HandlerCall>,
) -> PyResult<u64> {
    let (core, deadline) = (queue.core_to_close()?, deadline_of(timeout)?);
    let _assumed = HandlerCall::assume(call);
    core.shutdown_with(deadline, &mut StoppablePause(stop))
}

/// `Queue.remove_handler` without the wait.
#[pyfunction]
pub(crate) fn remove_handler_soon(queue: &Queue, item_type: ItemType<'_>) -> PyResult<bool> {
    // An error means that there was a handler, and that this call did not wait for it.
    let life = queue.life()?;
    Ok(life.registry.remove(life.core()?, &item_type, None, &mut NoPause).unwrap_or(true))
}

// `PendingItem`: an item that found no room, and that a coroutine may try again.

/// The result of an attempt to enqueue, for Python: True, False, None or `PendingItem`.
#[derive(IntoPyObject)]
pub(crate) enum Attempted {
    /// Accepted, refused, or not tried in this turn of the loop.
    Done(Option<bool>),
    Pending(PyPendingItem),
}

impl Attempted {
    pub(crate) fn of(
        py: Python<'_>,
        queue: &str,
        result: Result<(), TryProduceError<PyItem>>,
        accepted: usize,
    ) -> PyResult<Self> {
        match result {
            Ok(()) => Ok(Self::Done(Some(true))),
            Err(TryProduceError::Pending(item)) => Ok(Self::Pending(PyPendingItem {
                item: Mutex::new(Some(item)),
                generation: generation(),
            })),
            Err(TryProduceError::Refused(refusal)) => {
                refused(py, queue, refusal, accepted).map_or(Ok(Self::Done(Some(false))), Err)
            }
        }
    }
}

/// An item whose partition is full.
///
/// It is refused when the caller gives it up, at the latest when this object is destroyed.
#[pyclass(name = "PendingItem", frozen, module = "batchqueue._core")]
pub(crate) struct PyPendingItem {
    /// `None` once the item is settled: accepted or refused.
    item: Mutex<Option<PendingItem<PyItem>>>,
    generation: u32,
}

impl PyPendingItem {
    /// Takes the item out, so that no lock is held during its use: logging a refusal may run any
    /// Python code.
    fn take(&self) -> PyResult<Option<PendingItem<PyItem>>> {
        if self.generation != generation() {
            return Err(forked());
        }
        Ok(self.item.lock().take())
    }

    /// Calls a function with the item, or returns `None` if the item is settled.
    fn with_item<R>(
        &self,
        call: impl FnOnce(&mut PendingItem<PyItem>) -> R,
    ) -> PyResult<Option<R>> {
        let mut item = self.take()?;
        let result = item.as_mut().map(call);
        *self.item.lock() = item;
        Ok(result)
    }
}

#[pymethods]
impl PyPendingItem {
    /// The line that the item waits in: its partition, and a number for its type; or None if it is
    /// settled.
    #[getter]
    fn line(&self) -> Option<(usize, usize)> {
        let line = self.item.lock().as_ref().map(PendingItem::line);
        line.map(|line| (line.partition, line.key.0))
    }

    /// Wait without a deadline from now on: if the call is a handler's and the wait can never end,
    /// it may be given up.
    ///
    /// Args:
    ///     call: The handler call that the caller belongs to.
    fn begin_wait(&self, call: Option<&HandlerCall>) -> PyResult<()> {
        let _assumed = HandlerCall::assume(call);
        self.with_item(PendingItem::begin_wait).map(drop)
    }

    /// Whether the wait is given up: the next attempt raises the error.
    #[getter]
    fn is_given_up(&self) -> PyResult<bool> {
        Ok(self.with_item(|item| item.is_given_up())?.unwrap_or(false))
    }

    /// Try to enqueue the item.
    ///
    /// Args:
    ///     call: The handler call that the caller belongs to.
    ///
    /// Returns:
    ///     True if the item was accepted, False if the queue is shut down, None if the partition is
    ///     still full.
    fn try_again(&self, py: Python<'_>, call: Option<&HandlerCall>) -> PyResult<Option<bool>> {
        let Some(item) = self.take()? else { return Ok(Some(false)) };
        let _assumed = HandlerCall::assume(call);
        let queue = item.queue().to_owned();
        match Attempted::of(py, &queue, item.try_again(), 0)? {
            Attempted::Done(done) => Ok(done),
            Attempted::Pending(pending) => {
                *self.item.lock() = pending.take()?;
                Ok(None)
            }
        }
    }

    /// Give up because time ran out.
    ///
    /// Args:
    ///     accepted: Items of the same call that were accepted before.
    ///
    /// Returns:
    ///     The error to raise, or None if the item is settled.
    #[pyo3(signature = (accepted: "int") -> "BaseException | None")]
    fn time_out<'py>(
        &self,
        py: Python<'py>,
        accepted: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let error = self.take()?.and_then(|item| {
            let queue = item.queue().to_owned();
            refused(py, &queue, item.time_out(), accepted)
        });
        Ok(error.map(|error| error_value(py, error)))
    }

    /// Give up. A settled item is left as it is.
    fn refuse(&self) -> PyResult<()> {
        self.take().map(drop)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(item) = self.item.try_lock() else { return Ok(()) };
        let item = item.as_ref().and_then(PendingItem::item);
        item.map_or(Ok(()), |object| object.traverse(&visit))
    }
}

impl Drop for PyPendingItem {
    fn drop(&mut self) {
        if self.generation != generation() {
            // In a forked child, threads that do not exist here may hold the locks inside.
            std::mem::forget(self.item.lock().take());
        }
    }
}

// `RoomNotifier`: notifies an event loop of room through a file descriptor that the loop watches.

/// A channel from drain threads to the loop. Writing neither needs the interpreter nor waits.
struct Notifications {
    write: UnixStream,
    read: UnixStream,
    /// The partitions that got room since the loop last took them. While there are any, a byte is
    /// on its way, or the loop is about to take them.
    partitions: locks::Mutex<HashSet<usize>>,
}

impl Listener for Notifications {
    fn hear(&self, partition: usize) {
        let mut partitions = self.partitions.lock();
        if partitions.is_empty() {
            // The socket cannot be full: the loop drains it before it takes the partitions.
            let _ = (&self.write).write(&[1]);
        }
        partitions.insert(partition);
    }
}

/// A partition with tasks that wait for room.
struct Watched {
    types: HashSet<TypeKey>,
    _listening: Listening<PyItem>,
}

/// Converts a line from its Python form: the partition, and a number for the type.
pub(crate) fn line_of((partition, key): (usize, usize)) -> Line {
    Line { partition, key: TypeKey(key) }
}

fn lines(listening: &HashMap<usize, Watched>) -> impl Iterator<Item = Line> {
    listening.iter().flat_map(|(&partition, watched)| {
        watched.types.iter().map(move |&key| Line { partition, key })
    })
}

/// The lines of one queue that tasks of one event loop wait in.
#[pyclass(frozen, module = "batchqueue._core")]
pub(crate) struct RoomNotifier {
    notifications: Arc<Notifications>,
    /// By partition, with the types that are awaited there. Taken out and leaked only by the
    /// destructor in a forked child.
    listening: Mutex<HashMap<usize, Watched>>,
    generation: u32,
}

impl RoomNotifier {
    /// Whether tasks other than the caller wait in `line`. `turn_at` is the line in which it is the
    /// caller's turn.
    pub(crate) fn is_awaited(
        notifier: Option<&Self>,
        turn_at: Option<(usize, usize)>,
        line: Line,
    ) -> bool {
        let is_watched = |notifier: &Self| {
            let listening = notifier.listening.lock();
            listening.get(&line.partition).is_some_and(|watched| watched.types.contains(&line.key))
        };
        turn_at.map(line_of) != Some(line) && notifier.is_some_and(is_watched)
    }

    /// Whether tasks other than the caller wait in any line.
    pub(crate) fn is_any_awaited(notifier: Option<&Self>, turn_at: Option<(usize, usize)>) -> bool {
        let is_other = |line: Line| Some(line) != turn_at.map(line_of);
        notifier.is_some_and(|notifier| lines(&notifier.listening.lock()).any(is_other))
    }

    fn is_of_parent(&self) -> bool {
        self.generation != generation()
    }
}

#[pymethods]
impl RoomNotifier {
    #[new]
    fn new() -> PyResult<Self> {
        let (write, read) = UnixStream::pair()?;
        write.set_nonblocking(true)?;
        read.set_nonblocking(true)?;
        let notifications =
            Arc::new(Notifications { write, read, partitions: locks::Mutex::default() });
        Ok(Self { notifications, listening: Mutex::default(), generation: generation() })
    }

    /// Return the file descriptor, which is readable when a partition has room.
    fn fileno(&self) -> i32 {
        self.notifications.read.as_raw_fd()
    }

    /// Watch the line that an item waits in, from now on.
    fn watch(&self, pending: &PyPendingItem) -> PyResult<()> {
        let listener = self.notifications.clone();
        let waiting = pending.with_item(|item| (item.line(), item.listen(listener)))?;
        let Some((line, listening)) = waiting else { return Ok(()) };
        let mut all = self.listening.lock();
        let more = match all.entry(line.partition) {
            Entry::Occupied(mut watched) => {
                watched.get_mut().types.insert(line.key);
                Some(listening)
            }
            Entry::Vacant(free) => {
                let types = HashSet::from([line.key]);
                free.insert(Watched { types, _listening: listening });
                None
            }
        };
        // Dropped after the lock is released.
        drop(all);
        drop(more);
        Ok(())
    }

    /// Stop watching a line.
    fn unwatch(&self, line: (usize, usize)) {
        if !self.is_of_parent() {
            let (line, mut all) = (line_of(line), self.listening.lock());
            let is_last = all.get_mut(&line.partition).is_some_and(|watched| {
                watched.types.remove(&line.key);
                watched.types.is_empty()
            });
            let gone = if is_last { all.remove(&line.partition) } else { None };
            // Dropped after the lock is released.
            drop(all);
            drop(gone);
        }
    }

    /// Return the watched lines of the partitions that got room since the last call, or that accept
    /// no more items.
    fn take_notified(&self) -> Vec<(usize, usize)> {
        // In a forked child, the bytes in the socket are the parent's.
        if self.is_of_parent() {
            return Vec::new();
        }
        let mut bytes = [0; 16];
        while (&self.notifications.read).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
        // Taken after the bytes: a later notification finds the set empty, and writes another byte.
        let partitions = std::mem::take(&mut *self.notifications.partitions.lock());
        let listening = self.listening.lock();
        let notified = lines(&listening).filter(|line| partitions.contains(&line.partition));
        notified.map(|line| (line.partition, line.key.0)).collect()
    }
}

impl Drop for RoomNotifier {
    fn drop(&mut self) {
        if self.is_of_parent() {
            // Threads that do not exist here may hold the locks inside.
            std::mem::forget(std::mem::take(&mut *self.listening.lock()));
        }
    }
}
