//! The work of one drain thread: cycle, quiescent point, rest, end. Its turns are in `turn.rs`.
//!
//! ```text
//!        ┌───────────────────── items taken ────────────────────┐
//!        ▼                                                      │
//!   turns and calls, in turn.rs ───────▶ quiescent point ────┴─ nothing taken ──▶ rest or sleep
//!   or else on_idle ◀──────────────────────────────────────────────────────────────────────┘
//!                                                  └─ all partitions finished ──▶ on_close ──▶ end
//! ```

use crate::config::Selector;
use crate::control::scheduler::Sleeper;
use crate::control::thread_slots::ThreadSlot;
use crate::flow::desk::call::Round;
use crate::flow::handler::consumption::Consumption;
use crate::flow::handler::drop_items::DropPanics;
use crate::flow::partition::segment::TakenSegments;
use crate::flow::partition::segment_pool::SegmentCache;
use crate::flow::turn::idle_policy::{LoneCycles, after_thin_cycle};
use crate::flow::turn::timers::Timers;
use crate::item::Item;
use crate::shared::Shared;
use crate::sync::{Arc, Duration, Instant, now, time_since};
use crate::thread_context::this_thread;

/// How long a drain thread with work stays inside its host: a fifth of the interpreter's switch
/// interval, because no switch is requested while a handler runs native code.
const STAY: Duration = Duration::from_millis(1);

/// The same limit in cycles, for loom, which has no clock.
const MOST_CYCLES: usize = if cfg!(loom) { 2 } else { usize::MAX };

/// The outcome of a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cycle {
    Worked,
    /// It worked, but on so few items that a rest pays off more than an immediate cycle.
    Thin,
    Empty,
    /// The queue has ended, and [`DrainTask::end`] is next; or the thread is dismissed.
    Over,
}

/// One drain thread's share of a queue.
#[allow(clippy::struct_excessive_bools)] // independent facts
pub(crate) struct DrainTask<T: Item> {
    pub(super) index: usize,
    pub(super) shared: Arc<Shared<T>>,
    pub(super) sleeper: Sleeper,
    /// The partition served last; the next scan starts after it.
    pub(super) last_served: usize,
    pub(super) empty_cycles: u32,
    /// The rest after the last thin cycle.
    pub(super) thin_rest: Duration,
    pub(super) lone_cycles: LoneCycles,
    /// Pressure was signalled, and a partition of this thread was under pressure, or had lanes, at
    /// the last check.
    pub(super) is_pressed: bool,
    /// Whether the last cycle with work needed the host.
    pub(super) was_hosted: bool,
    /// Whether the last empty cycle called an `on_idle`.
    pub(super) has_idle_handlers: bool,
    /// Emptied segments.
    pub(super) segment_cache: SegmentCache<T>,
    pub(super) timers: Timers,
    /// The last news of deadlines that this thread has seen.
    pub(super) news: usize,
    /// Whether this thread may call a slow handler.
    pub(super) has_slow_permit: bool,
}

impl<T: Item> DrainTask<T> {
    pub(crate) fn new(index: usize, shared: Arc<Shared<T>>, sleeper: Sleeper) -> Self {
        let segment_cache = SegmentCache::new(shared.route.segment_pool.clone());
        Self {
            index,
            shared,
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

    pub(crate) fn shared(&self) -> &Arc<Shared<T>> {
        &self.shared
    }

    /// Called by the thread that runs this task from here on.
    pub(crate) fn note_runner(&self) {
        if !cfg!(loom) {
            self.slot().set_runner(this_thread(|| self.shared.host.thread_number()));
        }
    }

    /// Takes from the ready partitions of this thread and calls their handlers, or idle handlers;
    /// then reaches the quiescent point.
    pub(crate) fn cycle(&mut self) -> Cycle {
        if self.shared.ending.is_over() || self.is_dismissed() {
            return Cycle::Over;
        }
        let news = self.shared.ending.deadlines.news();
        let has_news = news != std::mem::replace(&mut self.news, news);
        let closing = self.shared.ending.is_closing();
        self.end_timers(has_news);
        let first = self.partitions_to_take(closing).next();
        let (mut round, mut began) = (Round::default(), None);
        if let Some(first) = first {
            let start = now();
            began = Some(start);
            let shared = self.shared.clone();
            // While closing, a cycle checks all partitions, those that need the host and those that
            // do not.
            let hosted = closing || !is_host_free(&shared, self.index, first);
            self.was_hosted = hosted;
            let mut work = || round = self.take_turns(&shared, first, closing, start);
            if hosted { shared.host.enter(&mut work) } else { shared.host.leave(&mut work) }
        }
        let worked = round.calls > 0 || round.taken > 0;
        if worked {
            self.shared.notify_flushes();
        }
        if !worked && !closing {
            self.note_cpu_time();
            self.call_on_idle();
            self.shared.end_departures_when_idle();
        }
        self.quiescent_point();
        if worked {
            let took = began.map_or(Duration::ZERO, time_since);
            let rest = after_thin_cycle(
                &self.shared.config,
                self.shared.threads_per_core,
                round.taken.max(round.called),
                round.batches(),
                took,
                self.thin_rest,
            );
            if let Some(began) = began {
                let rest = rest.unwrap_or(self.shared.config.min_idle);
                self.lone_cycles.note(self.empty_cycles, began, took, rest);
            }
            self.empty_cycles = 0;
            match rest.filter(|_| !closing) {
                Some(rest) => {
                    self.thin_rest = rest;
                    Cycle::Thin
                }
                None => Cycle::Worked,
            }
        } else if self.shared.ending.is_over() {
            Cycle::Over
        } else {
            Cycle::Empty
        }
    }

    /// Runs cycles up to the first that is not followed immediately by another. While there is
    /// work, several cycles share one stay inside the host.
    pub(crate) fn work(&mut self) -> Cycle {
        let mut last = self.cycle();
        if last == Cycle::Worked && self.was_hosted {
            let host = self.shared.host.clone();
            host.stay(&mut || {
                let began = Instant::now();
                for _ in 0..MOST_CYCLES {
                    last = self.cycle();
                    if last != Cycle::Worked || time_since(began) >= STAY {
                        break;
                    }
                }
            });
        }
        last
    }

    // ---- what to take from

    /// The ready partitions of this thread, starting after the one served last. Ready bits never
    /// decide whether the queue has ended: once it is closing, every partition is checked.
    pub(super) fn partitions_to_take(
        &self,
        closing: bool,
    ) -> impl Iterator<Item = usize> + use<'_, T> {
        to_take(&self.shared, self.index, self.last_served, closing)
    }

    // ---- the quiescent point

    /// Reached inside no partition, with nothing in hand.
    fn quiescent_point(&mut self) {
        self.slot().count_cycle();
        self.serve_dead_letters();
        self.retire_handlers(false);
    }

    /// Marks partitions as ready in which something is due, or may be sooner than the timer knows.
    fn end_timers(&mut self, all: bool) {
        while let Some(partition) = self.timers.pop(all) {
            // Another thread that owns it by now has its own timer.
            if self.shared.owns(self.index, partition) {
                self.shared.route.partition(partition).set_ready();
            }
        }
    }

    // ---- the end

    /// Whether this is a spare thread that is not needed any more. One that is dismissed while the
    /// queue ends takes part in the end.
    pub(crate) fn is_dismissed(&self) -> bool {
        self.slot().is_dismissed() && !self.shared.ending.is_over()
    }

    /// The last act of a spare thread that is dismissed. It owns nothing.
    pub(crate) fn leave_early(self) {
        self.note_cpu_time();
        let Self { index, shared, sleeper, .. } = self;
        shared.end_watch();
        shared.threads.spares.give_back(index, sleeper);
        shared.threads[index].set_running(false);
        Shared::let_go(shared);
    }

    /// The last act of this task, when everything is handled.
    pub(crate) fn end(&mut self) {
        self.shared.supervision.arming.unregister();
        self.serve_dead_letters();
        self.retire_handlers(!self.shared.ending.is_expired());
        // First, because a last call may wait for a handler that does not return.
        self.discard_abandoned();
        self.close_handlers();
        for line in self.shared.dispatch_log.take_rest(&self.shared.name) {
            self.shared.warn(line);
        }
        self.note_cpu_time();
        self.shared.end_watch();
    }

    /// After an expired shutdown, drops the remaining items, which were counted as abandoned. They
    /// are dropped here, inside the host, because an item may hold a reference to the queue that
    /// holds it.
    fn discard_abandoned(&mut self) {
        let shared = self.shared.clone();
        if !shared.ending.is_expired() {
            return;
        }
        let mut panics = DropPanics::default();
        shared.host.enter(&mut || {
            // All partitions: the owner of one may hang, or it was on its way to a thread that has
            // ended. No thread takes any more, and the lock of the lanes keeps two that discard
            // apart.
            for partition in shared.route.partitions() {
                let mut abandoned = TakenSegments::new();
                let mut lanes = partition.lanes.lock();
                partition.take(usize::MAX, &mut abandoned, &mut self.segment_cache);
                let held = lanes.discard();
                drop(lanes);
                panics.drop_all(abandoned.into_iter().flat_map(|segment| segment.items));
                for batch in held {
                    panics.drop_batch(batch);
                }
            }
        });
        if let Some((items, cause)) = panics.report() {
            let queue = &shared.name;
            shared.warn(format!(
                "queue {queue}: {items} abandoned items panicked when they were dropped: {cause}"
            ));
        }
    }

    // ---- what others see

    pub(super) fn slot(&self) -> &ThreadSlot {
        &self.shared.threads[self.index]
    }

    fn note_cpu_time(&self) {
        self.slot().note_cpu_time();
    }
}

/// The ready partitions of drain thread `index`, or all of them while closing, starting after the
/// one served last.
pub(super) fn to_take<T: Item>(
    shared: &Shared<T>,
    index: usize,
    last_served: usize,
    closing: bool,
) -> impl Iterator<Item = usize> + use<'_, T> {
    let route = &shared.route;
    let all = closing.then(|| {
        let count = route.partition_count();
        (1..=count).map(move |step| (last_served + step) % count)
    });
    let ready = (!closing).then(|| route.ready_after(last_served));
    all.into_iter()
        .flatten()
        .chain(ready.into_iter().flatten())
        .filter(move |&partition| shared.owns(index, partition))
}

/// Whether the items of a partition can be handled without the host.
pub(super) fn is_host_free<T: Item>(shared: &Shared<T>, index: usize, partition: usize) -> bool {
    match &shared.consumption {
        Consumption::ByHandler => {
            shared.config.selector == Selector::ByType
                && shared.route.partition(partition).is_host_free()
        }
        Consumption::OneConsumer(consumer) => !consumer.needs_host(),
        Consumption::PerThread(consumers) => !consumers[index].needs_host(),
    }
}
