//! The work of one drain thread: cycle, quiescent point, rest, end. Its turns are in `turn.rs`.
//!
//! ```text
//!        ┌───────────────────── items taken ────────────────────┐
//!        ▼                                                      │
//!   turns and calls, in turn.rs ───────▶ quiescent point ────┴─ nothing taken ──▶ rest or sleep
//!   or else on_idle ◀──────────────────────────────────────────────────────────────────────┘
//!                                                  └─ all partitions finished ──▶ on_close ──▶ end
//! ```

use crate::flow::desk::call::Round;
use crate::flow::handler::drop_items::DropPanics;
use crate::flow::partition::segment::TakenSegments;
use crate::flow::state::Flow;
use crate::flow::turn::idle_policy::after_thin_cycle;
use crate::flow::turn::task::{Cycle, DrainTask, is_host_free, to_take};
use crate::item::Item;
use crate::sync::{Duration, Instant, now, time_since};

/// How long a drain thread with work stays inside its host: a fifth of the interpreter's switch
/// interval, because no switch is requested while a handler runs native code.
const STAY: Duration = Duration::from_millis(1);

/// The same limit in cycles, for loom, which has no clock.
const MOST_CYCLES: usize = if cfg!(loom) { 2 } else { usize::MAX };

impl<T: Item> DrainTask<T> {
    /// Takes from the ready partitions of this thread and calls their handlers, or idle handlers;
    /// then reaches the quiescent point.
    pub(crate) fn cycle(&mut self) -> Cycle {
        if self.flow.ending.is_over() || self.is_dismissed() {
            return Cycle::Over;
        }
        let news = self.flow.ending.deadlines.news();
        let has_news = news != std::mem::replace(&mut self.news, news);
        let closing = self.flow.ending.is_closing();
        self.end_timers(has_news);
        let first = self.partitions_to_take(closing).next();
        let (mut round, mut began) = (Round::default(), None);
        if let Some(first) = first {
            let start = now();
            began = Some(start);
            let flow = self.flow.clone();
            // While closing, a cycle checks all partitions, those that need the host and those that
            // do not.
            let hosted = closing || !is_host_free(&flow, self.index, first);
            self.was_hosted = hosted;
            let mut work = || round = self.take_turns(&flow, first, closing, start);
            if hosted { flow.host.enter(&mut work) } else { flow.host.leave(&mut work) }
        }
        let worked = round.calls > 0 || round.taken > 0;
        if worked {
            self.flow.notify_flushes();
        }
        if !worked && !closing {
            self.note_cpu_time();
            self.call_on_idle();
            self.steering.end_departures_when_idle();
        }
        self.quiescent_point();
        if worked {
            let took = began.map_or(Duration::ZERO, time_since);
            let rest = after_thin_cycle(
                &self.flow.config,
                self.flow.threads_per_core,
                round.taken.max(round.called),
                round.batches(),
                took,
                self.thin_rest,
            );
            if let Some(began) = began {
                let rest = rest.unwrap_or(self.flow.config.min_idle);
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
        } else if self.flow.ending.is_over() {
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
            let host = self.flow.host.clone();
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
        to_take(&self.flow, self.index, self.last_served, closing)
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
            if self.flow.owns(self.index, partition) {
                self.flow.route.partition(partition).set_ready();
            }
        }
    }

    // ---- the end

    /// Whether this is a spare thread that is not needed any more. One that is dismissed while the
    /// queue ends takes part in the end.
    pub(crate) fn is_dismissed(&self) -> bool {
        self.slot().is_dismissed() && !self.flow.ending.is_over()
    }

    /// The last act of a spare thread that is dismissed. It owns nothing.
    pub(crate) fn leave_early(self) {
        self.note_cpu_time();
        let Self { index, flow, steering, sleeper, .. } = self;
        steering.end_watch();
        flow.threads.spares.give_back(index, sleeper);
        flow.threads[index].set_running(false);
        steering.let_go();
        Flow::let_go(flow);
    }

    /// The last act of this task, when everything is handled.
    pub(crate) fn end(&mut self) {
        self.flow.arming.unregister();
        self.serve_dead_letters();
        self.retire_handlers(!self.flow.ending.is_expired());
        // First, because a last call may wait for a handler that does not return.
        self.discard_abandoned();
        self.close_handlers();
        for line in self.flow.dispatch_log.take_rest(&self.flow.name) {
            self.flow.warn(line);
        }
        self.note_cpu_time();
        self.steering.end_watch();
    }

    /// After an expired shutdown, drops the remaining items, which were counted as abandoned. They
    /// are dropped here, inside the host, because an item may hold a reference to the queue that
    /// holds it.
    fn discard_abandoned(&mut self) {
        let flow = self.flow.clone();
        if !flow.ending.is_expired() {
            return;
        }
        let mut panics = DropPanics::default();
        flow.host.enter(&mut || {
            // All partitions: the owner of one may hang, or it was on its way to a thread that has
            // ended. No thread takes any more, and the lock of the lanes keeps two that discard
            // apart.
            for partition in flow.route.partitions() {
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
            let queue = &flow.name;
            flow.warn(format!(
                "queue {queue}: {items} abandoned items panicked when they were dropped: {cause}"
            ));
        }
    }

    // ---- what others see

    fn note_cpu_time(&self) {
        self.slot().note_cpu_time();
    }
}
