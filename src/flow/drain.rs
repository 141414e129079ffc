//! The work of one drain thread: cycle, quiescent point, rest, end.
//!
//! ```text
//!        ┌───────────────────── items taken ────────────────────┐
//!        ▼                                                      │
//!   turns: enter, take, dispatch, leave ──▶ quiescent point ────┴─ nothing taken ──▶ rest or sleep
//!   or else on_idle ◀──────────────────────────────────────────────────────────────────────┘
//!                                                  └─ all partitions finished ──▶ on_close ──▶ end
//! ```

use crate::config::Selector;
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
use crate::sync::{Arc, Duration, Instant, time_since};

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
    /// The queue has ended; [`DrainTask::end`] is next.
    Over,
}

/// What the turns of one cycle took.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    batches: usize,
    items: usize,
}

/// One drain thread's share of a queue.
pub(crate) struct DrainTask<T: Item> {
    pub(super) index: usize,
    pub(super) shared: Arc<Shared<T>>,
    pub(super) sleeper: Sleeper,
    /// The partition served last; the next scan starts after it.
    last_served: usize,
    pub(super) empty_cycles: u32,
    /// The rest after the last thin cycle.
    pub(super) thin_rest: Duration,
    /// Pressure was signalled, and a partition of this thread was half full at the last check.
    pub(super) is_pressed: bool,
    /// Whether the last cycle with work needed the host.
    was_hosted: bool,
    /// Whether the last empty cycle called an `on_idle`.
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

    /// Takes from the ready partitions of this thread and dispatches, or calls idle handlers; then
    /// reaches the quiescent point.
    pub(crate) fn cycle(&mut self) -> Cycle {
        if self.shared.ending.is_over() {
            return Cycle::Over;
        }
        let closing = self.shared.ending.is_closing();
        // Only used if the rule is off: the types that are known before the cycle takes anything.
        let known = if rule_off(Rule::RouteAfterTake) {
            self.shared.route.types().count()
        } else {
            usize::MAX
        };
        let first = self.partitions_to_take(closing).next();
        let (mut round, mut began) = (Round::default(), None);
        if let Some(first) = first {
            began = Some(Instant::now());
            let shared = self.shared.clone();
            // While closing, a cycle checks all partitions, those that need the host and those that
            // do not.
            let hosted = closing || !is_host_free(&shared, self.index, first);
            self.was_hosted = hosted;
            let mut work = || round = self.take_turns(first, closing, known);
            if hosted { shared.host.enter(&mut work) } else { shared.host.leave(&mut work) }
        }
        let worked = round.batches > 0;
        if !worked && !closing {
            self.note_cpu_time();
            self.call_on_idle();
        }
        self.quiescent_point();
        self.log_lines();
        if worked {
            self.empty_cycles = 0;
            let took = began.map_or(Duration::ZERO, time_since);
            let rest = after_thin_cycle(
                &self.shared.config,
                self.shared.threads_per_core,
                round.items,
                round.batches,
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

    // ---- take and dispatch

    /// The ready partitions of this thread, starting after the one served last. Ready bits never
    /// decide whether the queue has ended: once it is closing, every partition is checked.
    pub(super) fn partitions_to_take(
        &self,
        closing: bool,
    ) -> impl Iterator<Item = usize> + use<'_, T> {
        to_take(&self.shared, self.index, self.last_served, closing)
    }

    /// One turn after the other, up to `max_batch_items` in total.
    fn take_turns(&mut self, first: usize, closing: bool, known_before: usize) -> Round {
        let shared = self.shared.clone();
        let mut round = Round::default();
        let (thread, hosted) = (self.index, self.was_hosted);
        let others =
            to_take(&shared, self.index, self.last_served, closing).filter(|&index| index != first);
        let mut passed_over = false;
        for index in std::iter::once(first).chain(others) {
            if !closing && is_host_free(&shared, thread, index) == hosted {
                // The next cycle starts with it, whatever else this one takes.
                passed_over = true;
                continue;
            }
            let budget = shared.config.max_batch_items - round.items;
            let items = self.take_turn(&shared, index, budget, closing, known_before);
            if items == 0 {
                continue;
            }
            if !passed_over {
                self.last_served = index;
            }
            round.batches += 1;
            round.items += items;
            if round.items >= shared.config.max_batch_items {
                break;
            }
        }
        round
    }

    /// Enters a partition, takes up to `budget` items, rounded up to a segment, dispatches them,
    /// and leaves. Returns the number of items.
    fn take_turn(
        &mut self,
        shared: &Shared<T>,
        index: usize,
        budget: usize,
        closing: bool,
        known_before: usize,
    ) -> usize {
        let Some(turn) = shared.enter(self.index, index) else { return 0 };
        let partition = shared.route.partition(index);
        let mut segments = Segments::new();
        let items = partition.take(budget, &mut segments, &mut self.segment_cache);
        if items > 0 {
            self.dispatch(shared, Taken { partition: index, segments }, known_before);
            if !rule_off(Rule::CompleteFirst) {
                partition.complete();
            }
        }
        if closing && partition.finish() && shared.ending.finish_partition() {
            shared.threads.wake_all();
        }
        drop(turn);
        if rule_off(Rule::CompleteFirst) {
            partition.complete();
        }
        items
    }

    fn dispatch(&mut self, shared: &Shared<T>, taken: Taken<T>, known_before: usize) {
        // Handlers are looked up after the take: an item enters a partition only after its handler
        // was published.
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
            shared,
            tally: &shared.threads[self.index].tally,
            lines: &mut self.lines,
            segment_cache: &mut self.segment_cache,
            inside_host: self.was_hosted,
        };
        dispatcher.dispatch(groups);
    }

    // ---- the quiescent point

    /// Reached inside no partition, with nothing in hand.
    fn quiescent_point(&mut self) {
        self.slot().count_cycle();
        self.retire_handlers();
    }

    /// Whether this thread owns a partition, or has not handed it over yet.
    pub(super) fn has(&self, partition: usize) -> bool {
        self.shared.route.owner(partition).load().inside() == self.index
    }

    // ---- the end

    /// The last act of this task, when everything is handled.
    pub(crate) fn end(&mut self) {
        self.retire_handlers();
        self.close_handlers();
        self.discard_abandoned();
        self.log_lines();
        self.note_cpu_time();
    }

    /// After an expired shutdown, drops the remaining items, which were counted as abandoned. They
    /// are dropped here, inside the host, because an item may hold a reference to the queue that
    /// holds it.
    fn discard_abandoned(&mut self) {
        let shared = self.shared.clone();
        if !shared.ending.is_expired() {
            return;
        }
        shared.host.enter(&mut || {
            let mut abandoned = Segments::new();
            for partition in shared.route.partitions() {
                if self.has(partition.index) {
                    partition.take(usize::MAX, &mut abandoned, &mut self.segment_cache);
                }
            }
        });
    }

    // ---- what others see

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

/// The ready partitions of drain thread `index`, or all of them while closing, starting after the
/// one served last.
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
        .filter(move |&partition| shared.owns(index, partition))
}

/// Whether the items of a partition can be handled without the host.
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
