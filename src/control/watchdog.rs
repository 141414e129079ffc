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

mod lasting;
mod report;
mod texts;
mod waiting_items;

use lasting::Lasting;
use waiting_items::WaitingItems;

use crate::control::agenda::Supervised;
use crate::control::helpers::spawn_helper;
use crate::item::Item;
use crate::shared::Control;
use crate::sync::{Arc, Duration, Instant, Mutex, Weak};

/// While something was reported, its end is noticed after this time.
const MOST_PAUSE: Duration = Duration::from_secs(1);

/// A queue as the supervisor visits it for the watchdog.
struct Visitor<T: Item> {
    queue: Weak<Control<T>>,
    limit: Duration,
    /// Written and read by visits.
    seen: Mutex<LastSeen>,
}

/// What visits remember.
#[derive(Debug, Default)]
struct LastSeen {
    /// By drain thread: its call, and what that was called when it was reported.
    calls: Vec<(Lasting, String)>,
    producers: Lasting,
    items: Lasting,
    waiting: WaitingItems,
}

impl<T: Item> Visitor<T> {
    fn new(queue: &Arc<Control<T>>, limit: Duration) -> Self {
        let calls =
            (0..queue.flow.threads.most()).map(|_| <(Lasting, String)>::default()).collect();
        let seen = Mutex::new(LastSeen { calls, ..LastSeen::default() });
        Self { queue: Arc::downgrade(queue), limit, seen }
    }
}

impl<T: Item> Supervised for Visitor<T> {
    fn tick(self: Arc<Self>) -> Option<Duration> {
        let control = self.queue.upgrade()?;
        let again = self.visit(&control, Instant::now());
        let_go_elsewhere(control);
        Some(again)
    }
}

/// Drops a reference on a thread that must not enter the host. If it is the last, a helper does.
fn let_go_elsewhere<T: Item>(control: Arc<Control<T>>) {
    if let Some(last) = Arc::into_inner(control) {
        let (host, mut last) = (last.flow.host.clone(), Some(last));
        // If the system has no thread left, the queue is dropped here after all.
        let _ = spawn_helper("batchqueue-drop", move || host.enter(&mut || drop(last.take())));
    }
}

impl<T: Item> Control<T> {
    /// From here on there are visits, if the queue is watched.
    pub(crate) fn start_watch(self: &Arc<Self>) {
        // loom has no clock.
        if let Some(limit) = self.flow.config.warn_after.filter(|_| !cfg!(loom)) {
            self.watch.begin(Arc::new(Visitor::new(self, limit)), limit / 2);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
