//! The control thread: one per process, for all queues with a balancer.
//!
//! Balancers do not run on drain threads: in a saturated pool, a balancer that waits for a free
//! worker never runs. The thread starts with the first such queue and ends with the last.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `agenda` | queues that start, request a run, or end; the control thread | the same |

use crate::flow::gate::Access;
use crate::item::Item;
use crate::rules::{Rule, rule_off};
use crate::shared::Shared;
use crate::sync::{
    Arc, Condvar, Duration, Forgettable, Instant, Mutex, MutexGuard, Weak, spawn, wait_for,
};

static CONTROL: Forgettable<ControlThread> = Forgettable::new();

/// A queue as the control thread sees it.
trait Controlled: Send + Sync {
    /// Runs the queue's balancer.
    fn balance(self: Arc<Self>);
}

impl<T: Item> Controlled for Shared<T> {
    fn balance(self: Arc<Self>) {
        let is_saturated = || self.threads.iter().all(|slot| slot.tally.counts().calling.is_some());
        if !(rule_off(Rule::RebalanceWhenSaturated) && is_saturated()) {
            self.rebalance();
        }
        Self::let_go(self);
    }
}

struct AgendaEntry {
    queue: Weak<dyn Controlled>,
    /// `None`: the balancer runs on request only.
    interval: Option<Duration>,
    next_run: Option<Instant>,
}

impl AgendaEntry {
    fn is<T: Item>(&self, shared: &Shared<T>) -> bool {
        std::ptr::addr_eq(self.queue.as_ptr(), std::ptr::from_ref(shared))
    }
}

#[derive(Default)]
struct Agenda {
    entries: Vec<AgendaEntry>,
    /// Whether the thread is running.
    is_running: bool,
}

#[derive(Default)]
struct ControlThread {
    agenda: Mutex<Agenda>,
    changed: Condvar,
}

/// Registers a queue that has a balancer. With an interval of zero, the balancer runs on request
/// only.
pub(crate) fn register<T: Item>(
    shared: &Arc<Shared<T>>,
    interval: Duration,
) -> std::io::Result<()> {
    let control = CONTROL.get();
    let interval = Some(interval).filter(|interval| !interval.is_zero());
    let weak: Weak<Shared<T>> = Arc::downgrade(shared);
    let mut agenda = control.agenda.lock();
    agenda.entries.push(AgendaEntry {
        queue: weak,
        interval,
        next_run: interval.map(|interval| Instant::now() + interval),
    });
    if agenda.is_running {
        control.changed.notify_all();
    } else {
        let itself = control.clone();
        spawn("batchqueue-control".to_owned(), move || itself.run())?;
        agenda.is_running = true;
    }
    Ok(())
}

/// Unregisters a closing queue: no partition of it moves any more.
pub(crate) fn unregister<T: Item>(shared: &Shared<T>) {
    let control = CONTROL.get();
    control.agenda.lock().entries.retain(|entry| !entry.is(shared));
    control.changed.notify_all();
}

/// Requests a run of the queue's balancer as soon as possible.
pub(crate) fn request_run<T: Item>(shared: &Shared<T>) {
    CONTROL.get().update(shared, |entry| entry.next_run = Some(Instant::now()));
}

/// Waits until the control thread has ended, which it does when no queue is left, or until
/// `deadline`.
#[cfg(feature = "python")]
pub(crate) fn wait_ended(deadline: Option<Instant>) {
    let control = CONTROL.get();
    let mut agenda = control.agenda.lock();
    while agenda.is_running && agenda.entries.is_empty() {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        agenda = wait_for(&control.changed, agenda, left);
    }
}

/// For a forked child: the thread does not exist here, and its lock may be held for ever.
#[cfg(feature = "python")]
pub(crate) fn forget() {
    CONTROL.forget();
}

impl ControlThread {
    fn update<T: Item>(&self, shared: &Shared<T>, change: impl FnOnce(&mut AgendaEntry)) {
        if let Some(entry) = self.agenda.lock().entries.iter_mut().find(|entry| entry.is(shared)) {
            change(entry);
        }
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut agenda = self.agenda.lock();
        loop {
            agenda.entries.retain(|entry| entry.queue.strong_count() > 0);
            if agenda.entries.is_empty() {
                agenda.is_running = false;
                self.changed.notify_all();
                return;
            }
            let now = Instant::now();
            let first = agenda
                .entries
                .iter()
                .enumerate()
                .filter_map(|(index, entry)| Some((entry.next_run?, index)))
                .min();
            agenda = match first {
                Some((due, index)) if due <= now => self.work(agenda, index, now),
                Some((due, _)) => wait_for(&self.changed, agenda, Some(due - now)),
                None => wait_for(&self.changed, agenda, None),
            };
        }
    }

    /// Serves one queue, outside the lock.
    fn work<'a>(
        &'a self,
        mut agenda: MutexGuard<'a, Agenda>,
        index: usize,
        now: Instant,
    ) -> MutexGuard<'a, Agenda> {
        let entry = &mut agenda.entries[index];
        entry.next_run = entry.interval.map(|interval| now + interval);
        let queue = entry.queue.clone();
        drop(agenda);
        if let Some(queue) = queue.upgrade() {
            queue.balance();
        }
        self.agenda.lock()
    }
}

impl<T: Item> Shared<T> {
    /// [`rebalance`](Self::rebalance) for a caller that must not wait.
    pub(crate) fn rebalance_soon(&self) {
        if self.balancing.is_some() && self.control.lock().access == Access::Open {
            request_run(self);
        }
    }
}
