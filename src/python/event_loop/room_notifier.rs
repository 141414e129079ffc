//! `RoomNotifier`: notifies an event loop of room through a file descriptor that the loop watches.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;

use super::pending_item::PyPendingItem;
use crate::python::interpreter::generation;
use crate::python::item::PyItem;
use crate::sync;
use crate::{Line, Listener, Listening, TypeKey};

/// What drain threads write to. They neither need the interpreter for it nor wait for it.
struct Notifications {
    write: UnixStream,
    read: UnixStream,
    /// The partitions with room since the loop last took them. While there are any, a byte is on
    /// its way, or the loop is about to take them.
    partitions: sync::Mutex<HashSet<usize>>,
}

impl Listener for Notifications {
    fn hear(&self, partition: usize) {
        let mut partitions = self.partitions.lock();
        if partitions.is_empty() {
            // The socket cannot be full: the loop reads it empty before it takes the partitions.
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

/// A line, as Python has it: the partition, and a number for the type.
pub(super) fn line_of((partition, key): (usize, usize)) -> Line {
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
    /// By partition, with the types that are awaited there. Taken out, and leaked, only by the
    /// destructor in a forked child.
    listening: Mutex<HashMap<usize, Watched>>,
    generation: u32,
}

impl RoomNotifier {
    /// Whether tasks other than the caller wait in `line`. It is the caller's turn in the line
    /// `turn_at`.
    pub(super) fn is_awaited(
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

    /// Whether such tasks wait in any line.
    pub(super) fn is_any_awaited(notifier: Option<&Self>, turn_at: Option<(usize, usize)>) -> bool {
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
            Arc::new(Notifications { write, read, partitions: sync::Mutex::default() });
        Ok(Self { notifications, listening: Mutex::default(), generation: generation() })
    }

    /// Return the file descriptor, which is readable when a partition has room.
    fn fileno(&self) -> i32 {
        self.notifications.read.as_raw_fd()
    }

    /// Watch the line that an item waits in, from now on.
    fn watch(&self, pending: &PyPendingItem) -> PyResult<()> {
        let Some((line, listening)) = pending.listen(self.notifications.clone())? else {
            return Ok(());
        };
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
        // After the lock is released.
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
            // After the lock is released.
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
        // After the bytes: a later notification finds the set empty, and writes one more.
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
