//! A visit: what takes long, and the lines about it.

use super::lasting::Say;
use super::texts::{LongCall, seconds, wait};
use super::{LastSeen, MOST_PAUSE, Visitor};
use crate::config::Selector;
use crate::control::log_helper::{HostWitness, Line, Witness};
use crate::control::waits::WaitingProducer;
use crate::flow::handler::consumption::Consumption;
use crate::flow::partition::Partition;
use crate::flow::route::TypeRoute;
use crate::item::{Item, TypeKey, counted};
use crate::observe::Calling;
use crate::shared::Control;
use crate::sync::{Arc, Duration, Instant};

/// At most so many types are named of a partition that holds more.
const MOST_NAMES: usize = 3;

impl<T: Item> Visitor<T> {
    /// Says what is to be said at `now`. Returns after what time the next visit is due.
    pub(super) fn visit(&self, control: &Arc<Control<T>>, now: Instant) -> Duration {
        let (limit, seen) = (self.limit, &mut *self.seen.lock());
        let mut visit = Visit { control, limit, now, next: now + limit / 2 };
        visit.watch_calls(seen);
        visit.watch_producers(seen);
        visit.watch_items(seen);
        visit.next.saturating_duration_since(now).max(Duration::from_millis(1))
    }
}

impl<T: Item> Control<T> {
    // ---- what is known of calls

    /// The call that a drain thread is inside of.
    fn long_call(&self, thread: usize, now: Instant) -> Option<LongCall> {
        let slot = &self.flow.threads[thread];
        let (calling, since) = slot.tally.counts().calling?;
        let (in_call, behind) = match &calling {
            Calling::Named(_) => (None, None),
            Calling::Batch { partition, .. } => self.items_of_call(*partition),
        };
        Some(LongCall {
            index: thread,
            since,
            handler: self.name_of(&calling),
            took: now.saturating_duration_since(since),
            thread: slot.runner()?,
            in_call,
            behind,
        })
    }

    /// The items in the call for a partition, and those that wait behind it.
    fn items_of_call(&self, partition: usize) -> (Option<u64>, Option<u64>) {
        if self.flow.ending.is_expired() {
            // What waited is dropped, and not settled.
            return (None, None);
        }
        let home = self.flow.route.partition(partition);
        let counts = home.counts();
        if self.flow.consumption.is_by_handler() && self.flow.config.selector == Selector::ByType {
            let in_call = counts.taken - counts.settled - counts.held;
            let is_known = in_call > 0 && !home.is_mixed();
            return (is_known.then_some(in_call), Some(waiting_in(home)));
        }
        (None, Some(self.flow.route.partitions().map(waiting_in).sum()))
    }

    fn is_in_call(&self, call: &LongCall) -> bool {
        let calling = self.flow.threads[call.index].tally.counts().calling;
        calling.is_some_and(|(_, since)| since == call.since)
    }

    /// The calls that hold what a shutdown abandons, before it is dropped.
    pub(crate) fn long_calls(&self, now: Instant) -> Vec<LongCall> {
        (0..self.flow.threads.most()).filter_map(|thread| self.long_call(thread, now)).collect()
    }

    /// These calls, each on separate lines.
    pub(crate) fn describe(&self, calls: &[LongCall]) -> String {
        let witness = HostWitness(&*self.flow.host);
        let describe = |call: &LongCall| {
            let stack = call.stack(&witness, || self.is_in_call(call));
            format!("\n{}{stack}", call.text(&witness))
        };
        calls.iter().map(describe).collect()
    }

    /// The partitions that have items, the first few.
    pub(crate) fn partitions_left(&self) -> Vec<usize> {
        let left = self.flow.route.partitions().filter(|partition| {
            let counts = partition.counts();
            counts.pushed > counts.settled
        });
        left.take(MOST_NAMES + 1).map(|partition| partition.index).collect()
    }

    /// What these are called: `" of partitions 0 (Order), 3 (Click)"`.
    pub(crate) fn places(&self, left: &[usize]) -> String {
        let name = |(number, &index)| match number {
            MOST_NAMES => "...".to_owned(),
            _ => format!("{index}{}", self.types_in(index)),
        };
        let names: Vec<_> = left.iter().enumerate().map(name).collect();
        match names.len() {
            0 => String::new(),
            1 => format!(" of partition {}", names[0]),
            _ => format!(" of partitions {}", names.join(", ")),
        }
    }

    /// The call that the items of a partition wait for.
    fn blocking_call(&self, partition: usize, now: Instant) -> Option<LongCall> {
        let calling = |thread: usize| self.flow.threads[thread].tally.counts().calling;
        let all = || 0..self.flow.threads.most();
        let is_here = |calling: &Calling| match calling {
            Calling::Batch { partition: here, .. } => *here == partition,
            Calling::Named(_) => false,
        };
        let here = all().find(|&thread| calling(thread).is_some_and(|(call, _)| is_here(&call)));
        // The same handler may be inside a batch of another partition.
        let has_one = self.flow.config.selector != Selector::ByType;
        let any = || all().filter(|_| has_one).find(|&thread| calling(thread).is_some());
        let owner = || self.flow.route.owner(partition).load().inside();
        self.long_call(here.or_else(any).unwrap_or_else(owner), now)
    }

    /// What the items of a partition are, as far as it is known: `" (Order, Click)"`.
    fn types_in(&self, partition: usize) -> String {
        let Consumption::ByHandler = self.flow.consumption else { return String::new() };
        if self.flow.config.selector != Selector::ByType {
            return String::new();
        }
        let types = self.flow.route.types().filter_map(TypeRoute::registered);
        let here = types.filter(|registered| registered.partitions.contains(&partition));
        let mut names: Vec<_> =
            here.take(MOST_NAMES + 1).map(|registered| registered.name.to_string()).collect();
        if names.len() > MOST_NAMES {
            "...".clone_into(&mut names[MOST_NAMES]);
        }
        if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
    }

    /// The name of a type that has a handler.
    fn type_named(&self, key: TypeKey) -> Option<String> {
        let Consumption::ByHandler = self.flow.consumption else { return None };
        let registered = self.flow.route.find(key).and_then(TypeRoute::registered)?;
        Some(registered.name.to_string())
    }
}

fn waiting_in<T>(partition: &Partition<T>) -> u64 {
    let counts = partition.counts();
    counts.pushed - counts.taken + counts.held
}

/// Asks on another thread whether a call lasts.
fn is_current<T: Item>(
    control: &Arc<Control<T>>,
    call: &LongCall,
) -> impl Fn() -> bool + Send + use<T> {
    let (queue, call) = (Arc::downgrade(control), call.clone());
    move || {
        queue.upgrade().is_some_and(|control| {
            let is_current = control.is_in_call(&call);
            Control::let_go(control);
            is_current
        })
    }
}

struct Visit<'a, T: Item> {
    control: &'a Arc<Control<T>>,
    limit: Duration,
    now: Instant,
    /// When the next one is due.
    next: Instant,
}

impl<T: Item> Visit<'_, T> {
    fn come_back(&mut self, at: Instant, is_reported: bool) {
        self.next = self.next.min(at);
        if is_reported {
            // To notice the end.
            self.next = self.next.min(self.now + (self.limit / 4).min(MOST_PAUSE));
        }
    }

    fn log(&self, line: Line) {
        self.control.log_helper.log(line);
    }

    // ---- calls

    fn watch_calls(&mut self, seen: &mut LastSeen) {
        let control = self.control;
        for (thread, slot) in
            control.flow.threads.iter().enumerate().filter(|(_, slot)| slot.has_run())
        {
            let (lasting, called) = &mut seen.calls[thread];
            let since = slot.tally.counts().calling.map(|(_, since)| since);
            if let Some(took) = lasting.end(self.now, |reported| Some(reported) != since) {
                let (queue, took) = (&control.flow.name, seconds(took));
                self.log(Line::Warning(format!("queue {queue}: {called} has ended after {took}")));
            }
            let Some(since) = since else { continue };
            if lasting.note(since, self.limit, self.now) != Say::Nothing
                && let Some(call) = control.long_call(thread, self.now)
            {
                *called = format!("a long call of handler {}", call.handler);
                self.log_call(call);
            }
            self.come_back(lasting.next(since, self.limit), lasting.is_reported());
        }
    }

    fn log_call(&self, call: LongCall) {
        let (queue, is_current) = (self.control.flow.name.clone(), is_current(self.control, &call));
        self.log(Line::later(move |witness| {
            format!("queue {queue}: {}{}", call.text(witness), call.stack(witness, is_current))
        }));
    }

    /// A line about what items or producers of a partition wait for. `text` gets the names of
    /// types from `names`.
    fn log_wait(
        &self,
        partition: usize,
        names: impl FnOnce(&Control<T>) -> String + Send + 'static,
        text: impl FnOnce(&dyn Witness, &str) -> String + Send + 'static,
    ) {
        let (control, queue) = (self.control, self.control.flow.name.clone());
        let call = control.blocking_call(partition, self.now);
        let fails = call.is_none() && control.flow.route.partition(partition).counts().backs_off;
        let without_call =
            if fails { "; what failed there waits for its next attempt" } else { "" };
        let call = call.map(|call| (is_current(control, &call), call));
        let weak = Arc::downgrade(control);
        self.log(Line::later(move |witness| {
            // Not during the visit: the last reference to removed handlers may be dropped here.
            let names = weak.upgrade().map_or_else(String::new, |control| {
                let names = names(&control);
                Control::let_go(control);
                names
            });
            let text = text(witness, &names);
            let call = call.map_or_else(
                || without_call.to_owned(),
                |(is_current, call)| {
                    format!("; {}{}", call.text(witness), call.stack(witness, is_current))
                },
            );
            format!("queue {queue}: {text}{call}")
        }));
    }

    // ---- producers

    fn watch_producers(&mut self, seen: &mut LastSeen) {
        let control = self.control;
        let longest = control.flow.waiting_producers.longest();
        let since = longest.as_ref().map(|(wait, _)| wait.since);
        if let Some(took) = seen.producers.end(self.now, |_| self.is_short(since)) {
            let (queue, took) = (&control.flow.name, seconds(took));
            self.log(Line::Warning(format!(
                "queue {queue}: producers do not wait for long any more, after {took}"
            )));
        }
        let Some((wait, producers)) = longest else { return };
        if let Say::Lasts(lasts) = seen.producers.note(wait.since, self.limit, self.now) {
            self.log_producers(&wait, producers, lasts);
        }
        self.come_back(seen.producers.next(wait.since, self.limit), seen.producers.is_reported());
    }

    fn log_producers(&self, wait: &WaitingProducer, producers: usize, lasts: Duration) {
        let control = self.control;
        let WaitingProducer { partition, key, thread, .. } = wait.clone();
        let (size, lasts) = (control.flow.config.buffer_size, seconds(lasts));
        let others = match producers - 1 {
            0 => String::new(),
            1 => "; 1 more producer waits".to_owned(),
            others => format!("; {others} more producers wait"),
        };
        let of_type = move |control: &Control<T>| {
            control.type_named(key).map_or_else(String::new, |name| format!(" of {name}"))
        };
        self.log_wait(partition, of_type, move |witness, of_type| {
            let (name, size) = (witness.name(&thread), counted(size as u64, "item"));
            format!(
                "a producer on {name} has waited for room for an item{of_type} for {lasts}: \
                 partition {partition} is full ({size}){others}"
            )
        });
    }

    /// Whether what lasts since then is far below the limit.
    fn is_short(&self, since: Option<Instant>) -> bool {
        since.is_none_or(|since| self.now.saturating_duration_since(since) < self.limit / 2)
    }

    // ---- items

    fn watch_items(&mut self, seen: &mut LastSeen) {
        let control = self.control;
        let is_expired = control.flow.ending.is_expired();
        for partition in control.flow.route.partitions() {
            let may_wait = !is_expired && (partition.is_ready() || partition.has_lanes());
            let found = may_wait.then(|| partition.waiting()).flatten();
            seen.waiting.note(partition.index, found, self.now);
        }
        let oldest = seen.waiting.oldest();
        let since = oldest.map(|(_, since)| since);
        if let Some(took) = seen.items.end(self.now, |_| self.is_short(since)) {
            let (queue, took) = (&control.flow.name, seconds(took));
            self.log(Line::Warning(format!(
                "queue {queue}: items do not wait for long any more, after {took}"
            )));
        }
        let Some((partition, since)) = oldest else { return };
        if let Say::Lasts(lasts) = seen.items.note(since, self.limit, self.now) {
            let lasts = seconds(lasts);
            let items = wait(waiting_in(control.flow.route.partition(partition)));
            let types = move |control: &Control<T>| control.types_in(partition);
            self.log_wait(partition, types, move |_, types| {
                format!(
                    "an item in partition {partition}{types} has waited for its call for {lasts}; \
                     {items} there"
                )
            });
        }
        self.come_back(seen.items.next(since, self.limit), seen.items.is_reported());
    }
}
