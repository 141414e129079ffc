//! The producers that wait for room, each with the time of its first attempt.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `waits` | producers that begin and end a wait, under its lock | watchdog |

use slab::Slab;

use crate::item::TypeKey;
use crate::sync::{Arc, Instant, Mutex};
use crate::thread_context::KnownThread;

/// One wait.
#[derive(Debug, Clone)]
pub(super) struct Wait {
    pub(super) since: Instant,
    pub(super) partition: usize,
    pub(super) key: TypeKey,
    pub(super) thread: Arc<KnownThread>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Producers(Arc<Mutex<Slab<Wait>>>);

/// While it lives, a producer waits.
#[derive(Debug)]
pub(crate) struct WatchedWait {
    producers: Producers,
    number: usize,
}

impl Producers {
    pub(super) fn begin(
        &self,
        partition: usize,
        key: TypeKey,
        thread: Arc<KnownThread>,
    ) -> WatchedWait {
        let wait = Wait { since: Instant::now(), partition, key, thread };
        let number = self.0.lock().insert(wait);
        WatchedWait { producers: self.clone(), number }
    }

    /// The wait that has lasted longest, and the number of all.
    pub(super) fn longest(&self) -> Option<(Wait, usize)> {
        let waits = self.0.lock();
        let longest = waits.iter().map(|(_, wait)| wait).min_by_key(|wait| wait.since)?;
        Some((longest.clone(), waits.len()))
    }
}

impl Drop for WatchedWait {
    fn drop(&mut self) {
        self.producers.0.lock().remove(self.number);
    }
}
