//! The work of one drain thread: cycle, quiescent point, rest; and the end.
//!
//! ```text
//!        ┌───────────── items taken ────────────┐
//!        ▼                                      │
//!   take, dispatch ──▶ quiescent point ─────────┴─ nothing taken ──▶ rest or sleep ──┐
//!   or else on_idle ◀──────────────────────────────────────────────────────────────-─┘
//!                             └─ all partitions finished ──▶ on_close ──▶ end
//! ```

use crate::config::Selector;
use crate::control::ownership::{Owner, QuiescentPoint};
use crate::control::scheduler::Sleeper;
use crate::control::thread_slots::ThreadSlot;
use crate::flow::consumption::Consumption;
use crate::flow::dispatch::{Dispatcher, Taken, group_by_type, group_for};
use crate::flow::idle_policy::after_thin_cycle;
use crate::flow::ready::ready_after;
use crate::flow::segment::Segments;
use crate::flow::segment_pool::SegmentCache;
use crate::item::Item;
use crate::rules::{Rule, rule_off};
use crate::shared::Shared;
use crate::sync::{Arc, Duration, Instant, Ordering, fence, time_since};

/// How long a drain thread with work stays with its host: a fifth of the time after which the
/// interpreter asks a thread to let others go on, and which nobody asks while a handler runs that
/// is no Python code.
const STAY: Duration = Duration::from_millis(1);

/// The same in cycles, for loom, which has no clock.
const MOST_CYCLES: usize = if cfg!(loom) { 2 } else { usize::MAX };

/// What a cycle came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cycle {
    Worked,
    /// It worked, but on so little that a rest is worth more than another cycle at once.
    Thin,
    Empty,
    /// The queue has ended; [`DrainTask::end`] is next.
    Over,
}

/// The part of a queue that one drain thread does.
pub(crate) struct DrainTask<T: Item> {
    pub(super) index: usize,
    pub(super) shared: Arc<Shared<T>>,
    pub(super) sleeper: Sleeper,
    /// The partition that was served last; the next scan starts after it.
    last_served: usize,
    pub(super) empty_cycles: u32,
    /// The rest after the last thin cycle.
    pub(super) thin_rest: Duration,
    /// Pressure was told, and a partition of this thread was half full at the last look.
    pub(super) is_pressed: bool,
    /// The last cycle with work needed the host.
    was_hosted: bool,
    /// Whether the last empty cycle called `on_idle` somewhere.
    pub(super) has_idle_handlers: bool,
    /// Lines to log outside the host.
    pub(super) lines: Vec<String>,
    /// Emptied segments.
    segment_cache: SegmentCache<T>,
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
            is_pressed: false,
            was_hosted: false,
            has_idle_handlers: false,
            lines: Vec::new(),
            segment_cache,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<T>> {
        &self.shared
    }

    /// Takes from the ready partitions of this thread and dispatches, or tells idle handlers; then
    /// the quiescent point.
    pub(crate) fn cycle(&mut self) -> Cycle {
        if self.shared.ending.is_over() {
            return Cycle::Over;
        }
        let closing = self.shared.ending.is_closing();
        // Only for a switched-off rule: the types that are known before the cycle takes anything.
        let known = if rule_off(Rule::RouteAfterTake) {
            self.shared.route.types().count()
        } else {
            usize::MAX
        };
        let first = self.partitions_to_take(closing).next();
        let (mut served, mut items, mut began) = (Vec::new(), 0, None);
        if let Some(first) = first {
            began = Some(Instant::now());
            let shared = self.shared.clone();
            // To the end all partitions are looked at, of both kinds at once.
            let hosted = closing || !is_host_free(&shared, self.index, first);
            self.was_hosted = hosted;
            let mut work = || items = self.take_and_dispatch(first, closing, known, &mut served);
            if hosted { shared.host.enter(&mut work) } else { shared.host.leave(&mut work) }
        }
        let worked = !served.is_empty();
        if !worked && !closing {
            self.note_cpu_time();
            self.call_on_idle();
        }
        self.quiescent_point(&served, closing);
        self.log_lines();
        if worked {
            self.empty_cycles = 0;
            let took = began.map_or(Duration::ZERO, time_since);
            let rest = after_thin_cycle(
                &self.shared.config,
                self.shared.threads_per_core,
                items,
                served.len(),
                took,
                self.thin_rest,
            );
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

    /// Cycles up to the first that is not followed by another one at once; while there is work,
    /// some in one stay with the host.
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

    // ---- take and dispatch
    // -----------------------------------------------------------------------------------

    /// The partitions of this thread that are ready, from the one after the last served. Ready bits
    /// never decide about the end: once the queue is closing, every partition is looked at.
    pub(super) fn partitions_to_take(
        &self,
        closing: bool,
    ) -> impl Iterator<Item = usize> + use<'_, T> {
        to_take(&self.shared, self.index, self.last_served, closing)
    }

    /// Returns how many items that were.
    fn take_and_dispatch(
        &mut self,
        first: usize,
        closing: bool,
        known_before: usize,
        served: &mut Vec<usize>,
    ) -> usize {
        let shared = self.shared.clone();
        let mut items = 0;
        let mut taken = Vec::new();
        let (thread, hosted) = (self.index, self.was_hosted);
        let others =
            to_take(&shared, self.index, self.last_served, closing).filter(|&index| index != first);
        let mut passed_over = false;
        for index in std::iter::once(first).chain(others) {
            if !closing && is_host_free(&shared, thread, index) == hosted {
                // The next cycle begins with it, whatever this one goes on to take.
                passed_over = true;
                continue;
            }
            let mut segments = Segments::new();
            let budget = shared.config.max_batch_items - items;
            let from_here =
                shared.route.partition(index).take(budget, &mut segments, &mut self.segment_cache);
            if from_here == 0 {
                continue;
            }
            if !passed_over {
                self.last_served = index;
            }
            taken.push(Taken { partition: index, segments });
            served.push(index);
            items += from_here;
            if items >= shared.config.max_batch_items {
                break;
            }
        }
        let slot = &shared.threads[self.index];
        // The handlers are looked up after the last take: an item is in a partition only after its
        // handler was published.
        let groups = match &shared.consumption {
            Consumption::ByHandler => group_by_type(
                &shared.route,
                shared.config.selector,
                taken,
                known_before,
                &mut self.segment_cache,
            ),
            Consumption::OneConsumer(consumer) => group_for(consumer, taken),
            Consumption::PerThread(consumers) => group_for(&consumers[self.index], taken),
        };
        let mut dispatcher = Dispatcher {
            shared: &shared,
            tally: &slot.tally,
            lines: &mut self.lines,
            segment_cache: &mut self.segment_cache,
            inside_host: self.was_hosted,
        };
        dispatcher.dispatch(groups);
        items
    }

    // ---- the quiescent point
    // ---------------------------------------------------------------------------------

    /// Nothing is in hand any more. The order of these steps is rule 7.
    fn quiescent_point(&mut self, served: &[usize], closing: bool) {
        let shared = self.shared.clone();
        let complete =
            || served.iter().for_each(|&partition| shared.route.partition(partition).complete());
        if !rule_off(Rule::CompleteFirst) {
            complete();
        }
        // SeqCst: pairs with the fence of a flush, between its waiting mark and its look at
        // `completed`.
        fence(Ordering::SeqCst);
        shared.flushes.notify();
        self.slot().count_cycle();
        let here = QuiescentPoint::of(self.index);
        if closing {
            self.finish_partitions();
        }
        if served.is_empty() || !rule_off(Rule::HandoffUnderLoad) {
            shared.complete_handoffs(&here);
        }
        if rule_off(Rule::CompleteFirst) {
            complete();
        }
        self.retire_handlers();
    }

    /// Counts out the partitions of this thread that are closed and empty.
    fn finish_partitions(&self) {
        for partition in
            self.shared.route.partitions().filter(|partition| self.is_inside(partition.index))
        {
            if partition.finish() && self.shared.ending.finish_partition() {
                self.shared.threads.wake_all();
            }
        }
    }

    pub(super) fn is_inside(&self, partition: usize) -> bool {
        self.shared.route.owner(partition).load().inside() == self.index
    }

    // ---- the end
    // ---------------------------------------------------------------------------------------------

    /// Everything is handled: the last act of this task.
    pub(crate) fn end(&mut self) {
        self.retire_handlers();
        self.close_handlers();
        self.discard_abandoned();
        self.log_lines();
        self.note_cpu_time();
    }

    /// After an expired shutdown: what is left was counted as abandoned. It dies in the host, here
    /// and now, because an item may hold the queue that holds it.
    fn discard_abandoned(&mut self) {
        let shared = self.shared.clone();
        if !shared.ending.is_expired() {
            return;
        }
        shared.host.enter(&mut || {
            let mut abandoned = Segments::new();
            for partition in shared.route.partitions() {
                if self.is_inside(partition.index) {
                    partition.take(usize::MAX, &mut abandoned, &mut self.segment_cache);
                }
            }
        });
    }

    // ---- what others see
    // -------------------------------------------------------------------------------------

    pub(super) fn slot(&self) -> &ThreadSlot {
        &self.shared.threads[self.index]
    }

    fn log_lines(&mut self) {
        for line in self.lines.drain(..) {
            self.shared.host.log(&line);
        }
    }

    fn note_cpu_time(&self) {
        self.slot().note_cpu_time();
    }
}

/// The partitions of drain thread `index` that are ready, or all of them: from the one after the
/// last served.
fn to_take<T: Item>(
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
    let ready =
        (!closing).then(|| ready_after(|index| route.word(index), route.word_count(), last_served));
    all.into_iter()
        .flatten()
        .chain(ready.into_iter().flatten())
        .filter(move |&partition| owns(shared, index, partition))
}

fn owns<T: Item>(shared: &Shared<T>, index: usize, partition: usize) -> bool {
    let owner = shared.route.owner(partition).load();
    if rule_off(Rule::TakeOnlyWhenOwned) {
        owner.wanted() == index
    } else {
        owner == Owner::Owned(index)
    }
}

/// Whether what comes out of a partition can do without the host.
fn is_host_free<T: Item>(shared: &Shared<T>, index: usize, partition: usize) -> bool {
    match &shared.consumption {
        Consumption::ByHandler => {
            shared.config.selector == Selector::ByType
                && shared.route.partition(partition).is_host_free()
        }
        Consumption::OneConsumer(consumer) => !consumer.needs_host(),
        Consumption::PerThread(consumers) => !consumers[index].needs_host(),
    }
}
