//! `RoomNotifier`: notifies an event loop of room through a file descriptor that the loop watches.

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
use crate::{Listener, Listening};

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

/// The partitions of one queue that tasks of one event loop wait for.
#[pyclass(frozen, module = "batchqueue._core")]
pub(crate) struct RoomNotifier {
    notifications: Arc<Notifications>,
    /// Taken out, and leaked, only by the destructor in a forked child.
    listening: Mutex<HashMap<usize, Listening<PyItem>>>,
    generation: u32,
}

impl RoomNotifier {
    /// Whether tasks other than the caller wait for `partition`. It is the caller's turn in the
    /// partition `turn_at`.
    pub(super) fn is_awaited(
        notifier: Option<&Self>,
        turn_at: Option<usize>,
        partition: usize,
    ) -> bool {
        turn_at != Some(partition)
            && notifier.is_some_and(|notifier| notifier.listening.lock().contains_key(&partition))
    }

    /// Whether such tasks wait for any partition.
    pub(super) fn is_any_awaited(notifier: Option<&Self>, turn_at: Option<usize>) -> bool {
        let others = |partition: &usize| Some(*partition) != turn_at;
        notifier.is_some_and(|notifier| notifier.listening.lock().keys().any(others))
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

    /// Watch the partition that an item waits for, from now on.
    fn watch(&self, pending: &PyPendingItem) -> PyResult<()> {
        let Some((partition, listening)) = pending.listen(self.notifications.clone())? else {
            return Ok(());
        };
        // Bound first, so that the previous value is dropped after the lock is released.
        let before = self.listening.lock().insert(partition, listening);
        drop(before);
        Ok(())
    }

    /// Stop watching a partition.
    fn unwatch(&self, partition: usize) {
        if !self.is_of_parent() {
            let listening = self.listening.lock().remove(&partition);
            drop(listening);
        }
    }

    /// Return the watched partitions that got room since the last call, or that accept no more
    /// items.
    fn take_notified(&self) -> Vec<usize> {
        // In a forked child, the bytes in the socket are the parent's.
        if self.is_of_parent() {
            return Vec::new();
        }
        let mut bytes = [0; 16];
        while (&self.notifications.read).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
        // After the bytes: a later notification finds the set empty, and writes one more.
        std::mem::take(&mut *self.notifications.partitions.lock()).into_iter().collect()
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
