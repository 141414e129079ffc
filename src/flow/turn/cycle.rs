//! The work of a drain thread: cycles, quiescent points, rests, the end. Its turns are in
//! `turn.rs`.
//!
//! ```text
//!        ┌───────────────────── items taken ────────────────────┐
//!        ▼                                                      │
//!   turns and calls, in turn.rs ───────▶ quiescent point ────┴─ nothing taken ──▶ rest or sleep
//!   or else on_idle ◀──────────────────────────────────────────────────────────────────────┘
//!                                                  └─ all partitions finished ──▶ on_close ──▶ end
//! ```

use crate::flow::batch::{DeadLetters, DropPanics};
use crate::flow::call::{Round, call};
use crate::flow::handler::HandlerRef;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::handler::dispatch_log::{Problem, SideCall};
use crate::flow::route::type_handlers::Consumption;
use crate::flow::segments::TakenSegments;
use crate::flow::state::Flow;
use crate::flow::turn::idle_policy::after_thin_cycle;
use crate::flow::turn::task::{Cycle, DrainTask, is_host_free, to_take};
use crate::item::{Item, TypeKey, counted};
use crate::observe::{Calling, Outcome};
use crate::sync::{Arc, Duration, Instant, now, time_since};
use crate::threads::context::HandlerScope;

/// How long a drain thread with work stays inside its host: a fifth of the interpreter's switch
/// interval, because no switch is requested while a handler runs native code.
const STAY: Duration = Duration::from_millis(1);

/// The same limit in cycles, for loom, which has no clock.
const MOST_CYCLES: usize = if cfg!(loom) { 2 } else { usize::MAX };

impl<T: Item> DrainTask<T> {
    /// Takes from the ready partitions of this thread and calls their handlers, or else idle
    /// handlers; then runs the quiescent point.
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
            // While closing, a cycle checks all partitions, whether or not they need the host.
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

    /// Runs cycles until one is not to be followed immediately by another. While there is work,
    /// several cycles share one stay inside the host.
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

    // ---- partitions to take from

    /// Returns the ready partitions of this thread, starting after the one served last. Ready bits
    /// never decide whether the queue has ended: once it is closing, every partition is checked.
    pub(super) fn partitions_to_take(
        &self,
        closing: bool,
    ) -> impl Iterator<Item = usize> + use<'_, T> {
        to_take(&self.flow, self.index, self.last_served, closing)
    }

    // ---- the quiescent point

    /// Runs outside all partitions, with nothing in flight.
    fn quiescent_point(&mut self) {
        self.slot().count_cycle();
        self.serve_dead_letters();
        self.retire_handlers(false);
    }

    /// Marks partitions as ready in which something is due, or `all` that have a timer, because
    /// something may now be due earlier.
    fn end_timers(&mut self, all: bool) {
        while let Some(partition) = self.timers.pop(all) {
            // A new owner has its own timer.
            if self.flow.owns(self.index, partition) {
                self.flow.route.partition(partition).set_ready();
            }
        }
    }

    // ---- the end

    /// Whether this is a spare thread that is no longer needed. One that is dismissed while the
    /// queue ends takes part in the end.
    pub(crate) fn is_dismissed(&self) -> bool {
        self.slot().is_dismissed() && !self.flow.ending.is_over()
    }

    /// Ends the task of a dismissed spare thread, which owns nothing.
    pub(crate) fn leave_early(self) {
        self.note_cpu_time();
        let Self { index, flow, steering, sleeper, .. } = self;
        steering.end_watch();
        flow.threads.spares.give_back(index, sleeper);
        flow.threads[index].set_running(false);
        steering.let_go();
        Flow::let_go(flow);
    }

    /// Ends the task, once everything is handled.
    pub(crate) fn end(&mut self) {
        self.flow.arming.unregister();
        self.serve_dead_letters();
        self.retire_handlers(!self.flow.ending.is_expired());
        // Before the last calls, which may wait for a handler that does not return.
        self.discard_abandoned();
        self.close_handlers();
        for line in self.flow.dispatch_log.take_rest(&self.flow.name) {
            self.flow.warn(line);
        }
        self.note_cpu_time();
        self.steering.end_watch();
    }

    /// Drops the items left after an expired shutdown, which were counted as abandoned. They are
    /// dropped here, inside the host, because an item may hold a reference to the queue that holds
    /// it.
    fn discard_abandoned(&mut self) {
        let flow = self.flow.clone();
        if !flow.ending.is_expired() {
            return;
        }
        let mut panics = DropPanics::default();
        flow.host.enter(&mut || {
            // All partitions: an owner may hang, or a partition was on its way to a thread that has
            // ended. No thread takes any more, and the lock of the lanes keeps discarding threads
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

    // ---- statistics

    fn note_cpu_time(&self) {
        self.slot().note_cpu_time();
    }
}

// Handler calls that carry no items: `on_idle` after an empty cycle, and `on_close` once, after
// the last batch.

impl<T: Item> DrainTask<T> {
    /// Calls `on_close` of the replaced or removed handlers that no thread is inside any more. At
    /// the end of the queue, of all of them: only other queues can be inside one then.
    fn retire_handlers(&mut self, at_end: bool) {
        let mut ended = self.steering.ended_retirements(at_end);
        if ended.is_empty() {
            return;
        }
        let flow = self.flow.clone();
        flow.host.enter(&mut || {
            for retirement in ended.drain(..) {
                for handler in &retirement.to_close {
                    self.call_on_close_of(handler);
                }
                if let Some(line) = retirement.end(&flow.name) {
                    flow.warn(line);
                }
            }
        });
    }

    fn call_on_idle(&mut self) {
        let flow = self.flow.clone();
        self.has_idle_handlers = false;
        if let Consumption::ByHandler = flow.consumption {
            let thread = self.index;
            let idle_handlers = flow.route.idle_handlers(|home| flow.owns(thread, home));
            if idle_handlers.is_empty() {
                return;
            }
            self.has_idle_handlers = true;
            flow.host.enter(&mut || {
                for idle in idle_handlers.iter().filter(|idle| flow.owns(thread, idle.home)) {
                    // The list may be long, and a caller may be waiting for the end of a removed
                    // handler.
                    if flow.retirements.are_pending() {
                        self.retire_handlers(false);
                    }
                    // Checked at the handler lock: a removal sees this thread there, or has changed
                    // the list.
                    let is_listed = || flow.route.lists_idle(&idle.handler);
                    self.call_on_idle_of(&idle.handler, is_listed);
                }
            });
        } else if let Some(consumer) = flow.consumption.side_called_by(self.index)
            && consumer.handler.has_on_idle()
        {
            self.has_idle_handlers = true;
            flow.host.enter(&mut || self.call_on_idle_of(&consumer, || true));
        }
    }

    /// Makes the last call of each handler. The threads take handlers from a shared list, so that
    /// none of them waits for a thread that hangs.
    fn close_handlers(&mut self) {
        let flow = self.flow.clone();
        flow.host.enter(&mut || {
            if let Some(consumer) = flow.consumption.side_called_by(self.index) {
                self.call_on_close_of(&consumer);
            }
            // Handlers get no items if there is a consumer, but they were added, so they are closed
            // too.
            while let Some(handler) = flow.ending.next_to_close(|| self.handlers_to_close()) {
                self.call_on_close_of(&handler);
            }
        });
    }

    /// Returns all instances that serve a type, except the queue's consumers.
    fn handlers_to_close(&self) -> Vec<HandlerRef<T>> {
        let keeper = self.flow.dead_letters.of_queue.as_ref().map(|of_queue| &of_queue.handler);
        let others = self.flow.route.instances().into_iter().map(|idle| idle.handler);
        let others = others.filter(|handler| keeper.is_none_or(|keeper| !keeper.is(handler)));
        let instances = others.chain(keeper.cloned());
        instances.filter(|handler| !self.flow.consumption.includes(handler)).collect()
    }

    /// Calls `on_idle` if no thread is inside the handler and it is still listed.
    fn call_on_idle_of(&mut self, handler: &HandlerRef<T>, is_listed: impl FnOnce() -> bool) {
        if !handler.lock.try_enter(self.flow.address()) {
            return; // Another thread is inside, so the handler is not idle.
        }
        // The previous holder of the handler lock may have closed the handler.
        if !self.flow.ending.is_expired() && is_listed() {
            self.call_alone(handler, SideCall::OnIdle);
        }
        self.leave(handler);
    }

    /// Calls `on_close`. Waits until no thread of another queue is inside the handler.
    fn call_on_close_of(&mut self, handler: &HandlerRef<T>) {
        self.flow.enter_in_turn(&handler.lock);
        self.serve_letters_of(handler);
        self.call_alone(handler, SideCall::OnClose);
        self.leave(handler);
    }

    /// Leaves the handler after a side call. Jobs posted meanwhile are submitted again.
    fn leave(&self, handler: &HandlerRef<T>) {
        self.flow.release(&handler.lock, false);
    }

    /// Makes a call without items, under the handler lock.
    fn call_alone(&mut self, handler: &HandlerRef<T>, method: SideCall) {
        let name = handler.handler.name();
        let tally = &self.slot().tally;
        tally.side_call(Some((Calling::Named(name.as_str().into()), Instant::now())));
        self.steering.watch_side_call();
        let holding = HandlerScope::of(&handler.lock);
        let _compensation = self.flow.compensate_for(handler);
        let result = call(&name, || match method {
            SideCall::OnIdle => handler.handler.on_idle(),
            SideCall::OnClose => handler.handler.on_close(),
        });
        drop(holding);
        tally.side_call(None);
        if let Err(failure) = result
            && !failure.reported
            && let Some(times) = self.flow.dispatch_log.note_side_call(method, &name)
        {
            let queue = &self.flow.name;
            self.flow.warn(format!(
                "queue {queue}: {method:?} of handler {name} failed {times} times: {failure}"
            ));
        }
    }
}

// Serving the boxes of dead letters; see `handler/dead_letters.rs`.

impl<T: Item> DrainTask<T> {
    /// Calls the handlers of dead letters that no thread is inside. Runs outside all partitions,
    /// with nothing in flight.
    fn serve_dead_letters(&mut self) {
        let flow = self.flow.clone();
        let boxes = &flow.dead_letters;
        if !boxes.are_waiting() {
            return;
        }
        let is_expired = flow.ending.is_expired();
        flow.host.enter(&mut || {
            for letter_box in boxes.with_letters() {
                let lock = &letter_box.handler.lock;
                if is_expired {
                    // The items were counted as abandoned.
                    self.serve_at_lock(&letter_box);
                } else if lock.try_enter(flow.address()) {
                    self.serve_at_lock(&letter_box);
                    flow.release(lock, false);
                }
            }
        });
    }

    /// Serves the letters that are left for a handler, before its last call, under its handler
    /// lock.
    fn serve_letters_of(&mut self, handler: &HandlerRef<T>) {
        for letter_box in self.flow.dead_letters.with_letters() {
            if letter_box.handler.is(handler) {
                self.serve_at_lock(&letter_box);
            }
        }
    }

    fn serve_at_lock(&mut self, letter_box: &Arc<DeadLetterBox<T>>) {
        let flow = self.flow.clone();
        loop {
            let (letters, refused) = letter_box.take(flow.config.max_batch_items);
            for place in refused {
                flow.recall_job(place, letter_box.address());
            }
            if letters.is_empty() {
                if flow.dead_letters.unlist(letter_box) {
                    return;
                }
                continue;
            }
            self.call_with_letters(letter_box, letters);
        }
    }

    /// Passes letters to their handler, in one call and one attempt.
    fn call_with_letters(&mut self, to: &DeadLetterBox<T>, mut letters: Vec<DeadLetters<T>>) {
        let flow = self.flow.clone();
        let items: usize = letters.iter().map(|letters| letters.items.len()).sum();
        let (handler, tally, start) = (&to.handler, &self.slot().tally, Instant::now());
        if tally.begin_call(Calling::Named(to.name.clone()), start) {
            flow.watch_turn();
            let holding = HandlerScope::of(&handler.lock);
            let _compensation = flow.compensate_for(handler);
            let result = call(&to.name, || handler.handler.consume_dead_letters(&mut letters));
            drop(holding);
            let outcome = if result.is_ok() { Outcome::DeadLettered } else { Outcome::Failed };
            let counts = tally.settle(outcome, items as u64);
            if let (Err(failure), true) = (result, counts) {
                let items = items as u64;
                self.note_letters(to, Problem::LostLetters, items, &failure.message);
            }
        }
        // Drop the rest inside the host.
        let mut panics = DropPanics::default();
        for letter in letters {
            panics.drop_batch(letter.items);
        }
        if let Some((items, cause)) = panics.report() {
            self.note_letters(to, Problem::DropPanicked, items, &cause);
        }
        to.settle(items, start.elapsed());
        flow.notify_flushes();
    }

    fn note_letters(&mut self, to: &DeadLetterBox<T>, problem: Problem, items: u64, cause: &str) {
        let (flow, name) = (&self.flow, &to.name);
        let queue = &flow.name;
        let line = |items: u64| {
            let (text, items) = (problem.text(items), counted(items, "item"));
            let line = format!("queue {queue}: {items} {text} ({name}): {cause}");
            (name.to_string(), line)
        };
        // The key is the handler, so that each one has its own lines.
        let key = TypeKey(to.handler.address());
        if let Some(line) = flow.dispatch_log.note(queue, problem, key, items, line) {
            flow.warn(line);
        }
    }
}

impl<T: Item> Flow<T> {
    /// Whether there are dead letters whose handler no thread is inside. If a thread is inside, the
    /// queue is notified when it leaves. The caller has fenced.
    pub(crate) fn has_dead_letters(self: &Arc<Self>) -> bool {
        self.dead_letters.are_waiting()
            && self
                .dead_letters
                .with_letters()
                .iter()
                .any(|letter_box| letter_box.handler.lock.is_free(&self.watcher()))
    }
}
