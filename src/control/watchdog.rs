//! The watchdog: log lines about calls of handlers, waits of producers and items that wait, once
//! they have lasted for [`warn_after`](crate::Config::warn_after).
//!
//! It has no thread: the supervisor visits each queue at half that time, and sooner when a line is
//! due. A visit reads what the threads of the queue note anyway, so nothing is added to the path of
//! an item; only a producer that finds no room notes its wait here. A visit calls no user code and
//! never enters the host. The names and stacks of threads come from the host, so the helper of the
//! log asks for them; if the host is held for ever, the helper waits, and the supervisor does not.
//!
//! A line is due when a call, a wait or an item has lasted for the limit, then each time that the
//! time has doubled, and when it is over. Each drain thread has its call. Waits of producers, and
//! items, are one subject each for the whole queue: the one that has lasted longest is named, and
//! they are over when it is below half of the limit.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `visitor` | the start of the queue, once | its end |
//! | `producers` | see `watchdog/producers.rs` | visits |
//! | `seen` | visits | the same |

mod lasting;
mod producers;
mod report;
mod texts;
mod waiting_items;

use std::fmt;

use lasting::Lasting;
use producers::Producers;
use waiting_items::WaitingItems;

use crate::config::Config;
use crate::control::helpers::spawn_helper;
use crate::control::supervisor::{self, Supervised};
use crate::item::{Item, TypeKey};
use crate::shared::Shared;
use crate::sync::{Arc, Duration, Instant, Mutex, OnceLock, Weak};
use crate::thread_context::this_thread;

pub(crate) use producers::WatchedWait;

/// While something was reported, its end is noticed after this time.
const MOST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Watchdog<T: Item> {
    /// `None`: the queue is not watched.
    limit: Option<Duration>,
    visitor: OnceLock<Arc<Visitor<T>>>,
    producers: Producers,
    seen: Mutex<Seen>,
}

/// What visits remember.
#[derive(Debug, Default)]
struct Seen {
    /// By drain thread: its call, and what that was called when it was reported.
    calls: Vec<(Lasting, String)>,
    producers: Lasting,
    items: Lasting,
    waiting: WaitingItems,
}

/// A queue as the supervisor visits it for the watchdog.
struct Visitor<T: Item>(Weak<Shared<T>>);

impl<T: Item> Supervised for Visitor<T> {
    fn tick(self: Arc<Self>) -> Option<Duration> {
        let shared = self.0.upgrade()?;
        let again = shared.watch(Instant::now());
        let_go_elsewhere(shared);
        again
    }
}

/// Drops a reference on a thread that must not enter the host. If it is the last, a helper does.
fn let_go_elsewhere<T: Item>(shared: Arc<Shared<T>>) {
    if let Some(last) = Arc::into_inner(shared) {
        let (host, mut last) = (last.host.clone(), Some(last));
        // If the system has no thread left, the queue is dropped here after all.
        let _ = spawn_helper("batchqueue-drop", move || host.enter(&mut || drop(last.take())));
    }
}

impl<T: Item> Watchdog<T> {
    pub(crate) fn new(config: &Config, threads: usize) -> Self {
        let calls = (0..threads).map(|_| <(Lasting, String)>::default()).collect();
        Self {
            // loom has no clock.
            limit: config.warn_after.filter(|_| !cfg!(loom)),
            visitor: OnceLock::new(),
            producers: Producers::default(),
            seen: Mutex::new(Seen { calls, ..Seen::default() }),
        }
    }

    /// From here on there are visits.
    pub(crate) fn start(&self, shared: &Arc<Shared<T>>) {
        let Some(limit) = self.limit else { return };
        let visitor = self.visitor.get_or_init(|| Arc::new(Visitor(Arc::downgrade(shared))));
        let queue: Weak<Visitor<T>> = Arc::downgrade(visitor);
        supervisor::add_visits(queue, limit / 2);
    }

    /// No visit begins from here on, and none is under way. Called by the last drain thread that
    /// ends: one that hangs is watched as long as it does.
    pub(crate) fn stop(&self) {
        if let Some(visitor) = self.visitor.get() {
            supervisor::end_visits(Arc::as_ptr(visitor).cast::<()>() as usize, true);
        }
    }
}

impl<T: Item> Drop for Watchdog<T> {
    fn drop(&mut self) {
        if let Some(visitor) = self.visitor.get() {
            supervisor::end_visits(Arc::as_ptr(visitor).cast::<()>() as usize, false);
        }
    }
}

impl<T: Item> fmt::Debug for Watchdog<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<T: Item> Shared<T> {
    /// The last step of each drain thread before it lets go of its queue.
    pub(crate) fn end_watch(&self) {
        if !cfg!(loom) && self.ending.running().begin_end() {
            self.watchdog.stop();
        }
    }

    /// Called by a producer that is about to wait for room.
    pub(crate) fn watch_wait(&self, partition: usize, key: TypeKey) -> Option<WatchedWait> {
        self.watchdog.limit?;
        let thread = this_thread(|| self.host.thread_number());
        Some(self.watchdog.producers.begin(partition, key, thread))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
