//! The life of one drain thread: cycle, quiescent point, rest; and the end.
//!
//! ```text
//!        ┌────────────── items taken ──────────────┐
//!        ▼                                         │
//!   take, dispatch ──▶ quiescent point ──▶ empty? ─┴─▶ on_idle ──▶ rest or sleep ──┐
//!        ▲                    │                                                    │
//!        └────────────────────┼────────────────────────────────────────────────────┘
//!                             └─ all partitions finished ──▶ on_close ──▶ end
//! ```

use crate::control::scheduler::{SleepKind, Sleeper};
use crate::faults::{self, Fault};
use crate::flow::dispatch::{Dispatcher, SideCall, Taken, call, group_by_type, group_for};
use crate::flow::handler::{HandlerRef, Item};
use crate::flow::partition::Partition;
use crate::flow::ready::ready_in;
use crate::flow::rest::after_empty_cycle;
use crate::flow::route::Route;
use crate::shared::{Consumption, Holding, Shared};
use crate::sync::{Arc, Instant, Ordering, fence};

pub(crate) struct DrainThread<T: Item> {
    index: usize,
    shared: Arc<Shared<T>>,
    sleeper: Sleeper,
    /// The partition that the last cycle served last; the next scan starts after it.
    last_served: usize,
    empty_cycles: u32,
    /// Lines to log outside the host.
    lines: Vec<String>,
}

impl<T: Item> DrainThread<T> {
    pub(crate) fn new(index: usize, shared: Arc<Shared<T>>, sleeper: Sleeper) -> Self {
        Self { index, shared, sleeper, last_served: 0, empty_cycles: 0, lines: Vec::new() }
    }

    pub(crate) fn run(&mut self) {
        self.shared.mark_drain_thread();
        while !self.shared.is_over() {
            let route = self.shared.route.load();
            let worked = self.cycle(&route);
            self.log_lines();
            if worked {
                self.empty_cycles = 0;
                continue;
            }
            if self.shared.is_over() {
                break;
            }
            self.idle(&route);
        }
        self.close_handlers();
        self.discard_abandoned();
        self.log_lines();
        self.note_cpu_time();
    }

    /// After an expired shutdown: what is left was counted as abandoned. It dies in the host, here and now, because an
    /// item may hold the queue that holds it.
    fn discard_abandoned(&mut self) {
        let shared = self.shared.clone();
        if !shared.expired.load(Ordering::Acquire) {
            return;
        }
        let route = shared.route.load();
        shared.host.enter(&mut || {
            let mut abandoned = Vec::new();
            for index in (0..route.partitions.len()).filter(|&index| self.owns(&route, index)) {
                route.partitions[index].take(usize::MAX, &mut abandoned);
            }
        });
    }

    /// Takes from the ready partitions of this thread, dispatches, and reaches the quiescent point.
    fn cycle(&mut self, route: &Route<T>) -> bool {
        // Acquire: pairs with the Release of the closer, after which every gate is closed.
        let closing = self.shared.closing.load(Ordering::Acquire);
        let mine = self.partitions_to_take(route, closing);
        let mut served: Vec<Arc<Partition<T>>> = Vec::new();
        if !mine.is_empty() {
            let shared = self.shared.clone();
            shared.host.enter(&mut || self.take_and_dispatch(route, &mine, &mut served));
        }
        self.quiescent_point(route, &served, closing);
        !served.is_empty()
    }

    /// The partitions of this thread that are ready, from the one after the last served. Ready bits never decide about
    /// the end: once the queue is closing, every partition is looked at.
    fn partitions_to_take(&self, route: &Route<T>, closing: bool) -> Vec<usize> {
        let mut mine: Vec<usize> = if closing {
            (0..route.partitions.len()).filter(|&index| self.owns(route, index)).collect()
        } else {
            let ready = (0..route.words.len()).flat_map(|word| ready_in(&route.words, word));
            ready.filter(|&index| self.owns(route, index)).collect()
        };
        let after = mine.partition_point(|&index| index <= self.last_served);
        mine.rotate_left(after);
        mine
    }

    fn owns(&self, route: &Route<T>, partition: usize) -> bool {
        // A bit may belong to a partition of a newer route: the next cycle sees it.
        route.partitions.get(partition).is_some_and(|partition| partition.owner.inside() == self.index)
    }

    fn take_and_dispatch(&mut self, route: &Route<T>, mine: &[usize], served: &mut Vec<Arc<Partition<T>>>) {
        let mut budget = self.shared.config.max_batch_items;
        let mut taken = Vec::new();
        for &index in mine {
            let partition = &route.partitions[index];
            let mut segments = Vec::new();
            let items = partition.take(budget, &mut segments);
            if items == 0 {
                continue;
            }
            self.last_served = index;
            taken.push(Taken { partition: index, segments });
            served.push(partition.clone());
            budget = budget.saturating_sub(items);
            if budget == 0 {
                break;
            }
        }
        let shared = &self.shared;
        let slot = &shared.threads[self.index];
        // Loaded after the last take: an item is in a partition only after its handler was published.
        let newest = if faults::off(Fault::RouteAfterTake) { None } else { Some(shared.route.load()) };
        let route = newest.as_deref().unwrap_or(route);
        let groups = match &shared.consumption {
            Consumption::ByHandler => group_by_type(route, shared.config.selector, taken),
            Consumption::OneConsumer(consumer) => group_for(consumer, taken),
            Consumption::PerThread(consumers) => group_for(&consumers[self.index], taken),
        };
        let mut dispatcher = Dispatcher {
            queue: &shared.name,
            host: &*shared.host,
            tally: &slot.tally,
            log: &shared.dispatch_log,
            lines: &mut self.lines,
        };
        dispatcher.dispatch(route, groups);
    }

    /// Nothing is in hand any more.
    fn quiescent_point(&mut self, route: &Route<T>, served: &[Arc<Partition<T>>], closing: bool) {
        for partition in served {
            partition.complete();
        }
        // SeqCst: pairs with the fence of a flush, between its waiting mark and its look at `completed`.
        fence(Ordering::SeqCst);
        self.shared.tell_flush();
        let slot = &self.shared.threads[self.index];
        // Relaxed load: only this thread writes it. Release: what the cycle did is visible to who sees the number.
        slot.cycles.store(slot.cycles.load(Ordering::Relaxed) + 1, Ordering::Release);
        if closing {
            for partition in route.partitions.iter().filter(|partition| partition.owner.inside() == self.index) {
                if partition.finish() {
                    self.shared.one_finished();
                }
            }
        }
    }

    fn idle(&mut self, route: &Route<T>) {
        self.note_cpu_time();
        self.call_on_idle(route);
        let (mut kind, limit) = after_empty_cycle(&self.shared.config, self.empty_cycles);
        if kind == SleepKind::Rest && self.shared.flush_waits() {
            kind = SleepKind::Sleep;
        }
        self.empty_cycles = self.empty_cycles.saturating_add(1);
        let attempt = self.sleeper.prepare(kind);
        if faults::off(Fault::LookAgain) || !self.has_reason_to_stay_awake(route.version, kind) {
            attempt.sleep(limit);
        }
    }

    /// The second look, after the thread has said that it sleeps.
    fn has_reason_to_stay_awake(&self, version: usize, kind: SleepKind) -> bool {
        let shared = &self.shared;
        let route = shared.route.load();
        if shared.is_over() || shared.is_closing_with_work_for(self.index, &route) || route.version != version {
            return true;
        }
        let ready = (0..route.words.len()).flat_map(|word| ready_in(&route.words, word));
        let mut mine = ready.filter(|&index| self.owns(&route, index));
        match kind {
            SleepKind::Sleep => mine.next().is_some(),
            SleepKind::Rest => shared.flush_waits() || mine.any(|index| route.partitions[index].is_half_full()),
        }
    }

    fn call_on_idle(&mut self, route: &Route<T>) {
        let shared = self.shared.clone();
        let idle = self.handlers(route, |has_on_idle| has_on_idle);
        if idle.is_empty() || shared.closing.load(Ordering::Relaxed) {
            return;
        }
        shared.host.enter(&mut || {
            for handler in &idle {
                self.call_alone(handler, SideCall::OnIdle);
            }
        });
        self.log_lines();
    }

    /// Everything is handled: the last call into each handler.
    fn close_handlers(&mut self) {
        let shared = self.shared.clone();
        let route = shared.route.load();
        let handlers = self.handlers(&route, |_| true);
        shared.host.enter(&mut || {
            for handler in &handlers {
                self.call_alone(handler, SideCall::OnClose);
            }
        });
    }

    /// The handler instances that this thread speaks to outside `consume`.
    fn handlers(&self, route: &Route<T>, wanted: impl Fn(bool) -> bool) -> Vec<HandlerRef<T>> {
        match &self.shared.consumption {
            Consumption::ByHandler => {
                let mine = |home: usize| route.partitions[home].owner.inside() == self.index;
                let chosen = route.instances.iter().filter(|one| wanted(one.has_on_idle) && mine(one.home));
                chosen.map(|one| one.handler.clone()).collect()
            }
            Consumption::OneConsumer(consumer)
                if self.index != 0 || !wanted(consumer.handler.handler.has_on_idle()) =>
            {
                Vec::new()
            }
            Consumption::OneConsumer(consumer) => vec![consumer.handler.clone()],
            Consumption::PerThread(consumers) => {
                let mine = &consumers[self.index].handler;
                if consumers[..self.index].iter().any(|one| one.handler.is(mine)) {
                    return Vec::new(); // One instance for several threads: the first of them speaks to it.
                }
                if wanted(mine.handler.has_on_idle()) { vec![mine.clone()] } else { Vec::new() }
            }
        }
    }

    fn call_alone(&mut self, handler: &HandlerRef<T>, method: SideCall) {
        let token = handler.token.clone();
        let mut entered = token.try_enter();
        if entered.is_none() {
            if method == SideCall::OnIdle {
                return; // Somebody is inside, so the handler is not idle.
            }
            self.shared.host.leave(&mut || entered = Some(token.enter()));
        }
        let name = handler.handler.name();
        let tally = &self.shared.threads[self.index].tally;
        tally.side_call(Some((name.as_str().into(), Instant::now())));
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

    fn log_lines(&mut self) {
        for line in self.lines.drain(..) {
            self.shared.host.log(&line);
        }
    }

    fn note_cpu_time(&self) {
        self.shared.threads[self.index].note_cpu_time();
    }
}
