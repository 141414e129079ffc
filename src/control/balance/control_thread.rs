//! The control thread: one per process, for all queues with a balancer.
//!
//! It is never a drain thread: in a pool that is saturated, a balancer that waits for a free worker
//! never runs. It starts with the first such queue and ends with the last.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `agenda` | queues that start, ask, or end; the control thread | the same |

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
    /// The balancer's turn.
    fn balance(self: Arc<Self>);
    /// Takes back what was not handed over in time. When to look again.
    fn settle(self: Arc<Self>) -> Option<Instant>;
}

impl<T: Item> Controlled for Shared<T> {
    fn balance(self: Arc<Self>) {
        let is_saturated = || self.threads.iter().all(|slot| slot.tally.counts().calling.is_some());
        if !(rule_off(Rule::RebalanceWhenSaturated) && is_saturated()) {
            self.rebalance();
        }
        release(self);
    }

    fn settle(self: Arc<Self>) -> Option<Instant> {
        let (lines, next) = {
            let mut control = self.control.lock();
            (self.take_back(&mut control, Instant::now()), control.handoffs.next_deadline())
        };
        for line in lines {
            self.host.log(&line);
        }
        release(self);
        next
    }
}

/// If this is the last reference, the queue's items and handlers die in their host.
fn release<T: Item>(shared: Arc<Shared<T>>) {
    let host = shared.host.clone();
    let mut last = Arc::into_inner(shared);
    if last.is_some() {
        host.enter(&mut || drop(last.take()));
    }
}

struct AgendaEntry {
    queue: Weak<dyn Controlled>,
    /// `None`: only when asked.
    interval: Option<Duration>,
    next_run: Option<Instant>,
    next_settle: Option<Instant>,
}

impl AgendaEntry {
    fn due(&self) -> Option<Instant> {
        self.next_run.into_iter().chain(self.next_settle).min()
    }

    fn is<T: Item>(&self, shared: &Shared<T>) -> bool {
        std::ptr::addr_eq(self.queue.as_ptr(), std::ptr::from_ref(shared))
    }
}

#[derive(Default)]
struct Agenda {
    entries: Vec<AgendaEntry>,
    /// Whether the thread lives.
    runs: bool,
}

#[derive(Default)]
struct ControlThread {
    agenda: Mutex<Agenda>,
    changed: Condvar,
}

/// A queue with a balancer starts. An interval of zero: it runs only when asked.
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
        next_settle: None,
    });
    if agenda.runs {
        control.changed.notify_all();
    } else {
        let itself = control.clone();
        spawn("batchqueue-control".to_owned(), move || itself.run())?;
        agenda.runs = true;
    }
    Ok(())
}

/// The queue closes: nothing moves any more.
pub(crate) fn unregister<T: Item>(shared: &Shared<T>) {
    let control = CONTROL.get();
    control.agenda.lock().entries.retain(|entry| !entry.is(shared));
    control.changed.notify_all();
}

/// Runs the queue's balancer soon.
pub(crate) fn request_run<T: Item>(shared: &Shared<T>) {
    CONTROL.get().amend(shared, |entry| entry.next_run = Some(Instant::now()));
}

/// A handoff has begun that must be over by `deadline`.
pub(crate) fn request_settle<T: Item>(shared: &Shared<T>, deadline: Instant) {
    CONTROL.get().amend(shared, |entry| {
        entry.next_settle = Some(entry.next_settle.map_or(deadline, |before| before.min(deadline)));
    });
}

/// Waits until the control thread has ended, which it does when no queue is left; at most until
/// `deadline`.
#[cfg(feature = "python")]
pub(crate) fn wait_ended(deadline: Option<Instant>) {
    let control = CONTROL.get();
    let mut agenda = control.agenda.lock();
    while agenda.runs && agenda.entries.is_empty() {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        agenda = wait_for(&control.changed, agenda, left);
    }
}

/// In a forked child: the thread is not here, and its lock may be held for ever.
#[cfg(feature = "python")]
pub(crate) fn forget() {
    CONTROL.forget();
}

impl ControlThread {
    fn amend<T: Item>(&self, shared: &Shared<T>, change: impl FnOnce(&mut AgendaEntry)) {
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
                agenda.runs = false;
                self.changed.notify_all();
                return;
            }
            let now = Instant::now();
            let first = agenda
                .entries
                .iter()
                .enumerate()
                .filter_map(|(at, entry)| Some((entry.due()?, at)))
                .min();
            agenda = match first {
                Some((due, at)) if due <= now => self.work(agenda, at, now),
                Some((due, _)) => wait_for(&self.changed, agenda, Some(due - now)),
                None => wait_for(&self.changed, agenda, None),
            };
        }
    }

    /// One queue's turn, outside the lock.
    fn work<'a>(
        &'a self,
        mut agenda: MutexGuard<'a, Agenda>,
        at: usize,
        now: Instant,
    ) -> MutexGuard<'a, Agenda> {
        let entry = &mut agenda.entries[at];
        let balances = entry.next_run.is_some_and(|due| due <= now);
        let settles = entry.next_settle.is_some_and(|due| due <= now);
        if balances {
            entry.next_run = entry.interval.map(|interval| now + interval);
        }
        if settles {
            entry.next_settle = None;
        }
        let queue = entry.queue.clone();
        drop(agenda);
        // First what has a deadline: a balancer of the user's may take its time.
        let again = if settles { queue.upgrade().and_then(Controlled::settle) } else { None };
        if balances && let Some(queue) = queue.upgrade() {
            queue.balance();
        }
        let mut agenda = self.agenda.lock();
        if let Some(again) = again
            && let Some(entry) = agenda.entries.iter_mut().find(|entry| entry.queue.ptr_eq(&queue))
        {
            entry.next_settle = Some(entry.next_settle.map_or(again, |before| before.min(again)));
        }
        agenda
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
