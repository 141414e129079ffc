//! The work of one drain thread: cycle, quiescent point, rest; and the end.
//!
//! ```text
//!        ┌───────────── items taken ────────────┐
//!        ▼                                      │
//!   take, dispatch ──▶ quiescent point ─────────┴─ nothing taken ──▶ rest or sleep ──┐
//!   or else on_idle ◀──────────────────────────────────────────────────────────────-─┘
//!                             └─ all partitions finished ──▶ on_close ──▶ end
//! ```

use rustc_hash::FxHashSet;

use crate::control::ownership::{Owner, QuiescentPoint};
use crate::control::scheduler::{SleepAttempt, SleepKind, Sleeper};
use crate::faults::{self, Fault};
use crate::flow::dispatch::{Dispatcher, SideCall, Taken, call, group_by_type, group_for};
use crate::flow::handler::{HandlerRef, Item};
use crate::flow::ready::ready_after;
use crate::flow::rest::{after_empty_cycle, after_thin_cycle};
use crate::flow::take::Segments;
use crate::marks::Holding;
use crate::observe::Calling;
use crate::shared::{Consumption, Shared, ThreadSlot};
use crate::sync::{Arc, Duration, Instant, Ordering, fence};

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
    index: usize,
    shared: Arc<Shared<T>>,
    sleeper: Sleeper,
    /// The partition that was served last; the next scan starts after it.
    last_served: usize,
    empty_cycles: u32,
    /// The rest after the last thin cycle.
    thin_rest: Duration,
    /// Whether the last empty cycle called `on_idle` somewhere.
    tells_idle: bool,
    /// Lines to log outside the host.
    lines: Vec<String>,
    /// Emptied segments.
    spares: Vec<Vec<T>>,
}

impl<T: Item> DrainTask<T> {
    pub(crate) fn new(index: usize, shared: Arc<Shared<T>>, sleeper: Sleeper) -> Self {
        Self {
            index,
            shared,
            sleeper,
            last_served: 0,
            empty_cycles: 0,
            thin_rest: Duration::ZERO,
            tells_idle: false,
            lines: Vec::new(),
            spares: Vec::new(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<T>> {
        &self.shared
    }

    /// Takes from the ready partitions of this thread and dispatches, or tells idle handlers; then the quiescent point.
    pub(crate) fn cycle(&mut self) -> Cycle {
        if self.shared.is_over() {
            return Cycle::Over;
        }
        // Acquire: pairs with the Release of the closer, after which every gate is closed.
        let closing = self.shared.closing.load(Ordering::Acquire);
        // Only for a switched-off rule: the types that are known before the cycle takes anything.
        let known = if faults::off(Fault::RouteAfterTake) { self.shared.route.types().count() } else { usize::MAX };
        let first = self.partitions_to_take(closing).next();
        let (mut served, mut items, mut began) = (Vec::new(), 0, None);
        if let Some(first) = first {
            began = Some(Instant::now());
            let shared = self.shared.clone();
            shared.host.enter(&mut || items = self.take_and_dispatch(first, closing, known, &mut served));
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
            let took = began.map_or(Duration::ZERO, |began| began.elapsed());
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
        } else if self.shared.is_over() {
            Cycle::Over
        } else {
            Cycle::Empty
        }
    }

    // ---- take and dispatch -----------------------------------------------------------------------------------

    /// The partitions of this thread that are ready, from the one after the last served. Ready bits never decide about
    /// the end: once the queue is closing, every partition is looked at.
    fn partitions_to_take(&self, closing: bool) -> impl Iterator<Item = usize> + use<'_, T> {
        let (route, after) = (&self.shared.route, self.last_served);
        let all = closing.then(|| {
            let count = route.partition_count();
            (1..=count).map(move |step| (after + step) % count)
        });
        let ready = (!closing).then(|| ready_after(|index| route.word(index), route.word_count(), after));
        all.into_iter().flatten().chain(ready.into_iter().flatten()).filter(|&index| self.owns(index))
    }

    fn owns(&self, partition: usize) -> bool {
        let owner = self.shared.route.owner(partition).load();
        if faults::off(Fault::TakeWhenWanted) {
            owner.wanted() == self.index
        } else {
            owner == Owner::Owned(self.index)
        }
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
        let mut spares = std::mem::take(&mut self.spares);
        let others = self.partitions_to_take(closing).filter(|&index| index != first);
        for index in std::iter::once(first).chain(others) {
            let mut segments = Segments::new();
            let budget = shared.config.max_batch_items - items;
            let from_here = shared.route.partition(index).take(budget, &mut segments, &mut spares);
            if from_here == 0 {
                continue;
            }
            taken.push(Taken { partition: index, segments });
            served.push(index);
            items += from_here;
            if items >= shared.config.max_batch_items {
                break;
            }
        }
        if let Some(&last) = served.last() {
            self.last_served = last;
        }
        let slot = &shared.threads[self.index];
        // The handlers are looked up after the last take: an item is in a partition only after its handler was published.
        let groups = match &shared.consumption {
            Consumption::ByHandler => {
                group_by_type(&shared.route, shared.config.selector, taken, known_before, &mut spares)
            }
            Consumption::OneConsumer(consumer) => group_for(consumer, taken),
            Consumption::PerThread(consumers) => group_for(&consumers[self.index], taken),
        };
        let mut dispatcher =
            Dispatcher { shared: &shared, tally: &slot.tally, lines: &mut self.lines, spares: &mut spares };
        dispatcher.dispatch(groups);
        self.spares = spares;
        items
    }

    // ---- the quiescent point ---------------------------------------------------------------------------------

    /// Nothing is in hand any more. The order of these steps is rule 7.
    fn quiescent_point(&mut self, served: &[usize], closing: bool) {
        let shared = self.shared.clone();
        let complete = || served.iter().for_each(|&partition| shared.route.partition(partition).complete());
        if !faults::off(Fault::CompleteFirst) {
            complete();
        }
        // SeqCst: pairs with the fence of a flush, between its waiting mark and its look at `completed`.
        fence(Ordering::SeqCst);
        shared.tell_flush();
        let slot = self.slot();
        // Relaxed load: only this thread writes it. Release: what the cycle did is visible to who sees the number.
        slot.cycles.store(slot.cycles.load(Ordering::Relaxed) + 1, Ordering::Release);
        let here = QuiescentPoint::of(self.index);
        if closing {
            self.finish_partitions();
        }
        if served.is_empty() || !faults::off(Fault::HandoffWhenIdle) {
            shared.complete_handoffs(&here);
        }
        if faults::off(Fault::CompleteFirst) {
            complete();
        }
        self.retire_handlers();
    }

    /// Counts out the partitions of this thread that are closed and empty.
    fn finish_partitions(&self) {
        for partition in self.shared.route.partitions().filter(|one| self.is_inside(one.index)) {
            if partition.finish() {
                self.shared.one_finished();
            }
        }
    }

    fn is_inside(&self, partition: usize) -> bool {
        self.shared.route.owner(partition).load().inside() == self.index
    }

    /// Calls `on_close` of what was replaced or removed, when this thread is the last that had to pass.
    fn retire_handlers(&mut self) {
        let mut ended = self.shared.ended_retirements(self.index);
        if ended.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        shared.host.enter(&mut || {
            for retirement in ended.drain(..) {
                for handler in &retirement.to_close {
                    self.call_alone(handler, SideCall::OnClose);
                }
                retirement.end();
            }
        });
    }

    // ---- rest and sleep --------------------------------------------------------------------------------------

    /// The task had left its worker asleep, and runs again.
    pub(crate) fn wake_up(&self) {
        self.sleeper.wake_up();
    }

    /// After a thin or an empty cycle. `None`: there is something to do after all.
    pub(crate) fn prepare_sleep(&mut self, after: Cycle) -> Option<(SleepAttempt<'_>, Duration)> {
        let (mut kind, mut limit) = after_empty_cycle(&self.shared.config, self.empty_cycles);
        if after == Cycle::Thin {
            if self.shared.flush_waits() {
                return None;
            }
            // This is the rest that the first empty cycle would have.
            self.empty_cycles = 1;
            let attempt = self.sleeper.prepare(SleepKind::Rest);
            let awake = self.has_reason_to_stay_awake(SleepKind::Rest);
            return (!awake).then_some((attempt, self.thin_rest));
        }
        if kind == SleepKind::Rest && self.shared.flush_waits() {
            kind = SleepKind::Sleep;
        }
        if kind == SleepKind::Sleep && !self.tells_idle {
            // It would wake up for `on_idle` only, which nobody wants.
            limit = limit.max(self.shared.config.max_idle);
        }
        self.empty_cycles = self.empty_cycles.saturating_add(1);
        let attempt = self.sleeper.prepare(kind);
        if !faults::off(Fault::LookAgain) && self.has_reason_to_stay_awake(kind) {
            return None;
        }
        Some((attempt, limit))
    }

    /// The second look, after the thread has said that it sleeps.
    fn has_reason_to_stay_awake(&self, kind: SleepKind) -> bool {
        let shared = &self.shared;
        if shared.is_over()
            || shared.is_closing_with_work_for(self.index)
            // Relaxed: ordered by the fence in `Sleeper::prepare`.
            || (self.slot().asked_to_hand_over.load(Ordering::Relaxed) && !faults::off(Fault::LookForRevoked))
            || shared.retirements.wait_for(self.index)
        {
            return true;
        }
        let mut mine = self.partitions_to_take(false);
        match kind {
            SleepKind::Sleep => mine.next().is_some(),
            SleepKind::Rest => shared.flush_waits() || mine.any(|index| shared.route.partition(index).is_half_full()),
        }
    }

    // ---- calls without items ---------------------------------------------------------------------------------

    fn call_on_idle(&mut self) {
        let idle = self.idle_handlers();
        self.tells_idle = !idle.is_empty();
        if idle.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        shared.host.enter(&mut || {
            for handler in &idle {
                self.call_alone(handler, SideCall::OnIdle);
            }
        });
    }

    /// The handlers that want `on_idle` and whose home this thread owns.
    fn idle_handlers(&self) -> Vec<HandlerRef<T>> {
        if let Consumption::ByHandler = self.shared.consumption {
            let route = &self.shared.route;
            let homes: Vec<usize> = route.idlers().iter().map(|one| one.home).collect();
            let mine: FxHashSet<usize> = homes.into_iter().filter(|&home| self.is_inside(home)).collect();
            if mine.is_empty() {
                return Vec::new();
            }
            // SeqCst: pairs with the fence in `retire`. First the owner words, then the list: a handler that was removed
            // while another thread owned its home is not on it, or its home was not this thread's.
            fence(Ordering::SeqCst);
            let idlers = route.idlers();
            return idlers.iter().filter(|one| mine.contains(&one.home)).map(|one| one.handler.clone()).collect();
        }
        self.consumer().into_iter().filter(|one| one.handler.has_on_idle()).collect()
    }

    /// The consumer that this thread speaks to outside `consume`.
    fn consumer(&self) -> Option<HandlerRef<T>> {
        match &self.shared.consumption {
            Consumption::ByHandler => None,
            Consumption::OneConsumer(consumer) => (self.index == 0).then(|| consumer.handlers[0].clone()),
            Consumption::PerThread(consumers) => {
                let mine = &consumers[self.index].handlers[0];
                // One instance for several threads: the first of them speaks to it.
                let known = consumers[..self.index].iter().any(|one| one.handlers[0].is(mine));
                (!known).then(|| mine.clone())
            }
        }
    }

    /// Everything is handled: the last act of this task.
    pub(crate) fn end(&mut self) {
        self.retire_handlers();
        self.close_handlers();
        self.discard_abandoned();
        self.log_lines();
        self.note_cpu_time();
    }

    /// The last call into each handler. The threads that are left take one after the other from a common list, so none
    /// of them waits for a thread that hangs.
    fn close_handlers(&mut self) {
        let shared = self.shared.clone();
        shared.host.enter(&mut || {
            if let Some(consumer) = self.consumer() {
                self.call_alone(&consumer, SideCall::OnClose);
            }
            // Also where a consumer took their items: they were added, so they have an end.
            while let Some(handler) = shared.next_to_close() {
                self.call_alone(&handler, SideCall::OnClose);
            }
        });
    }

    /// After an expired shutdown: what is left was counted as abandoned. It dies in the host, here and now, because an
    /// item may hold the queue that holds it.
    fn discard_abandoned(&mut self) {
        let shared = self.shared.clone();
        if !shared.expired.load(Ordering::Acquire) {
            return;
        }
        shared.host.enter(&mut || {
            let (mut abandoned, mut spares) = (Segments::new(), Vec::new());
            for partition in shared.route.partitions().filter(|one| self.is_inside(one.index)) {
                partition.take(usize::MAX, &mut abandoned, &mut spares);
            }
        });
    }

    fn call_alone(&mut self, handler: &HandlerRef<T>, method: SideCall) {
        let token = handler.token.clone();
        let mut entered = token.try_enter();
        if entered.is_none() {
            if method == SideCall::OnIdle {
                return; // Somebody is inside, so the handler is not idle.
            }
            self.shared.host.leave(&mut || entered = Some(self.shared.enter_in_turn(&token)));
        }
        // Acquire: pairs with the Release in `expire`. Another thread, which had the token before, may have closed it.
        if method == SideCall::OnIdle && self.shared.expired.load(Ordering::Acquire) {
            return;
        }
        let name = handler.handler.name();
        let tally = &self.slot().tally;
        tally.side_call(Some((Calling::Named(name.as_str().into()), Instant::now())));
        let holding = Holding::of(&handler.token);
        let result = call(&name, || match method {
            SideCall::OnIdle => handler.handler.on_idle(),
            SideCall::OnClose => handler.handler.on_close(),
        });
        drop(holding);
        tally.side_call(None);
        if let Err(failure) = result
            && !failure.reported
            && let Some(times) = self.shared.dispatch_log.note_side_call(method, &name)
        {
            let queue = &self.shared.name;
            self.lines.push(format!("queue {queue}: {method:?} of handler {name} failed {times} times: {failure}"));
        }
    }

    // ---- what others see -------------------------------------------------------------------------------------

    fn slot(&self) -> &ThreadSlot {
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
