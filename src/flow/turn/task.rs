//! The drain task: one drain thread's share of a queue, and the partitions that it takes from.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::config::Selector;
use crate::flow::route::type_handlers::Consumption;
use crate::flow::segments::SegmentCache;
use crate::flow::state::{Flow, Steering};
use crate::flow::turn::idle_policy::LoneCycles;
use crate::item::Item;
use crate::sync::{Arc, Deadline, Duration, Weak, panicking};
use crate::threads::context::{DrainScope, this_thread};
use crate::threads::park::Sleeper;
use crate::threads::slots::ThreadSlot;

/// The outcome of a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cycle {
    Worked,
    /// It worked, but on so few items that a rest pays off better than an immediate next cycle.
    Thin,
    Empty,
    /// The queue has ended, and [`DrainTask::end`] is next; or the thread is dismissed.
    Over,
}

/// One drain thread's share of a queue.
#[allow(clippy::struct_excessive_bools)] // independent facts
pub(crate) struct DrainTask<T: Item> {
    pub(super) index: usize,
    pub(super) flow: Arc<Flow<T>>,
    pub(super) steering: Arc<dyn Steering<T>>,
    pub(super) sleeper: Sleeper,
    /// The partition served last; the next scan starts after it.
    pub(super) last_served: usize,
    pub(super) empty_cycles: u32,
    /// The rest after the last thin cycle.
    pub(super) thin_rest: Duration,
    pub(super) lone_cycles: LoneCycles,
    /// Whether pressure was signalled, and a partition of this thread was under pressure or had
    /// lanes at the last check.
    pub(super) is_pressed: bool,
    /// Whether the last cycle with work needed the host.
    pub(super) was_hosted: bool,
    /// Whether the last empty cycle found handlers with `on_idle`.
    pub(super) has_idle_handlers: bool,
    /// Emptied segments.
    pub(super) segment_cache: SegmentCache<T>,
    pub(super) timers: Timers,
    /// The number of the last news of deadlines that this thread has seen.
    pub(super) news: usize,
    /// Whether this thread may call a slow handler.
    pub(super) has_slow_permit: bool,
}

impl<T: Item> DrainTask<T> {
    pub(crate) fn new(
        index: usize,
        flow: Arc<Flow<T>>,
        steering: Arc<dyn Steering<T>>,
        sleeper: Sleeper,
    ) -> Self {
        let segment_cache = SegmentCache::new(flow.route.segment_pool.clone());
        Self {
            index,
            flow,
            steering,
            sleeper,
            last_served: 0,
            empty_cycles: 0,
            thin_rest: Duration::ZERO,
            lone_cycles: LoneCycles::default(),
            is_pressed: false,
            was_hosted: false,
            has_idle_handlers: false,
            segment_cache,
            timers: Timers::default(),
            news: 0,
            has_slow_permit: false,
        }
    }

    pub(crate) fn flow(&self) -> &Arc<Flow<T>> {
        &self.flow
    }

    /// Makes the calling thread the runner of this task while the result lives. If the thread
    /// unwinds, the queue closes.
    pub(crate) fn run_here(&self) -> Running<T> {
        // Before the host is called: it may panic, or run code that asks which queue this thread
        // drains.
        let running = Running {
            _unwinding: CloseOnPanic(Arc::downgrade(&self.steering)),
            _drains: DrainScope::of(&self.flow, &self.flow.log),
        };
        if !cfg!(loom) {
            self.slot().set_runner(this_thread(|| self.flow.host.thread_number()));
        }
        running
    }

    /// Returns the shared state of the thread.
    pub(super) fn slot(&self) -> &ThreadSlot {
        &self.flow.threads[self.index]
    }
}

/// Marks the thread as running a drain task until it is dropped.
pub(crate) struct Running<T: Item> {
    /// Dropped first: it may log, which a drain thread does in its own way.
    _unwinding: CloseOnPanic<T>,
    _drains: DrainScope,
}

/// Closes the queue when a drain thread unwinds. Panics of handlers and items are caught elsewhere;
/// what remains is code of the host, such as its log, and what a handler reports about itself, such
/// as whether it needs the host.
///
/// Holds a weak reference, because the last reference to the queue is dropped inside the host.
struct CloseOnPanic<T: Item>(Weak<dyn Steering<T>>);

impl<T: Item> Drop for CloseOnPanic<T> {
    fn drop(&mut self) {
        if panicking()
            && let Some(steering) = self.0.upgrade()
        {
            steering.close_after_panic();
        }
    }
}

/// Returns the ready partitions of drain thread `index`, or all of its partitions while closing,
/// starting after the one served last.
pub(super) fn to_take<T: Item>(
    flow: &Flow<T>,
    index: usize,
    last_served: usize,
    closing: bool,
) -> impl Iterator<Item = usize> + use<'_, T> {
    let route = &flow.route;
    let all = closing.then(|| {
        let count = route.partition_count();
        (1..=count).map(move |step| (last_served + step) % count)
    });
    let ready = (!closing).then(|| route.ready_after(last_served));
    all.into_iter()
        .flatten()
        .chain(ready.into_iter().flatten())
        .filter(move |&partition| flow.owns(index, partition))
}

/// Whether the items of a partition can be handled without the host.
pub(super) fn is_host_free<T: Item>(flow: &Flow<T>, index: usize, partition: usize) -> bool {
    match &flow.consumption {
        Consumption::ByHandler => {
            flow.config.selector == Selector::ByType
                && flow.route.partition(partition).is_host_free()
        }
        Consumption::OneConsumer(consumer) => !consumer.needs_host(),
        Consumption::PerThread(consumers) => !consumers[index].needs_host(),
    }
}

/// The times at which partitions of a drain thread next have something to do, as far as the thread
/// has seen. A partition that moves to another thread keeps its entry until it is due, which is
/// harmless.
#[derive(Debug, Default)]
pub(super) struct Timers {
    by_deadline: BTreeSet<(Deadline, usize)>,
    by_partition: FxHashMap<usize, Deadline>,
}

impl Timers {
    pub(super) fn set(&mut self, partition: usize, deadline: Deadline) {
        if let Some(before) = self.by_partition.insert(partition, deadline) {
            self.by_deadline.remove(&(before, partition));
        }
        self.by_deadline.insert((deadline, partition));
    }

    /// Returns when the next partition is due.
    pub(super) fn next(&self) -> Option<Deadline> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    pub(super) fn is_due(&self) -> bool {
        self.next().is_some_and(|deadline| deadline.time_left().is_none())
    }

    /// Removes the next partition if it is due, or in any case if `any`.
    pub(super) fn pop(&mut self, any: bool) -> Option<usize> {
        if !any && !self.is_due() {
            return None;
        }
        let (_, partition) = self.by_deadline.pop_first()?;
        self.by_partition.remove(&partition);
        Some(partition)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Duration;

    #[test]
    fn a_partition_is_due_once_at_its_latest_setting() {
        let mut timers = Timers::default();
        let (past, later) =
            (Deadline::after(Duration::ZERO), Deadline::after(Duration::from_secs(3_600)));
        timers.set(1, past);
        timers.set(2, past);
        timers.set(2, later);
        timers.set(1, past);
        assert_eq!(timers.pop(false), Some(1));
        assert_eq!(timers.pop(false), None);
        assert_eq!(timers.next(), Some(later));
        assert_eq!(timers.pop(true), Some(2));
        assert_eq!(timers.pop(true), None);
    }
}
