//! `RoomNotifier`: how an event loop hears of room, through a file descriptor that it watches.

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

/// What drain threads ring: no interpreter is needed for it, and none is waited for.
struct Hearing {
    write: UnixStream,
    read: UnixStream,
    /// The partitions that were told since the loop last asked. While there are any, a byte is on
    /// its way, or the loop is about to look here.
    told: sync::Mutex<HashSet<usize>>,
}

impl Listener for Hearing {
    fn hear(&self, partition: usize) {
        let mut told = self.told.lock();
        if told.is_empty() {
            // It cannot be full: the loop reads all there is before it takes what was told.
            let _ = (&self.write).write(&[1]);
        }
        told.insert(partition);
    }
}

/// The partitions of one queue that tasks of one event loop wait for.
#[pyclass(name = "Bell", frozen, module = "batchqueue._core")]
pub(crate) struct RoomNotifier {
    hearing: Arc<Hearing>,
    /// Taken out, and leaked, by the destructor in a forked child only.
    listening: Mutex<HashMap<usize, Listening<PyItem>>>,
    generation: u32,
}

impl RoomNotifier {
    /// Whether others than the caller, whose turn it is in the partition `ahead`, wait for this
    /// one.
    pub(super) fn is_awaited(bell: Option<&Self>, ahead: Option<usize>, partition: usize) -> bool {
        ahead != Some(partition)
            && bell.is_some_and(|bell| bell.listening.lock().contains_key(&partition))
    }

    /// Whether they wait for any.
    pub(super) fn awaits_any(bell: Option<&Self>, ahead: Option<usize>) -> bool {
        bell.is_some_and(|bell| bell.listening.lock().keys().any(|&one| Some(one) != ahead))
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
        let hearing = Arc::new(Hearing { write, read, told: sync::Mutex::default() });
        Ok(Self { hearing, listening: Mutex::default(), generation: generation() })
    }

    /// The file descriptor that can be read when there is something to hear.
    fn fileno(&self) -> i32 {
        self.hearing.read.as_raw_fd()
    }

    /// Hear of room in the partition that an item waits for, from now on.
    fn listen(&self, waiting: &PyPendingItem) -> PyResult<()> {
        let Some((partition, listening)) = waiting.listen(self.hearing.clone())? else {
            return Ok(());
        };
        // Bound first, so that what was there is dropped after the lock is free.
        let before = self.listening.lock().insert(partition, listening);
        drop(before);
        Ok(())
    }

    /// Hear no more of a partition.
    fn leave(&self, partition: usize) {
        if !self.is_of_parent() {
            let listening = self.listening.lock().remove(&partition);
            drop(listening);
        }
    }

    /// The partitions that have room since the last call, or take nothing more.
    fn heard(&self) -> Vec<usize> {
        // What is there to be read in a forked child is the parent's.
        if self.is_of_parent() {
            return Vec::new();
        }
        let mut bytes = [0; 16];
        while (&self.hearing.read).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
        // After the bytes: who tells after this finds nothing told, and sends one more.
        std::mem::take(&mut *self.hearing.told.lock()).into_iter().collect()
    }
}

impl Drop for RoomNotifier {
    fn drop(&mut self) {
        if self.is_of_parent() {
            // The locks inside may be held by threads that do not exist here.
            std::mem::forget(std::mem::take(&mut *self.listening.lock()));
        }
    }
}
