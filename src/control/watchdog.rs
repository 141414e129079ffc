//! The watchdog: logs calls of handlers, waits of producers and waits of items that have lasted for
//! [`warn_after`](crate::config::Config::warn_after).
//!
//! It has no thread: the supervisor visits each queue at half that interval, and sooner when a line
//! is due. A visit reads what the queue's threads record anyway, so an item's path gets no longer;
//! only a producer that finds no room records its wait here. A visit calls no user code and never
//! enters the host. The names and stacks of threads come from the host, so the log helper asks for
//! them; if the host is never released, the helper waits, and the supervisor does not.
//!
//! A line is due when a call or a wait has lasted for the limit, each time its duration has
//! doubled, and when it is over. Calls are tracked per drain thread. Producers' waits and items'
//! waits are one subject each for the whole queue: the line names the longest, and the subject is
//! over once the longest is below half the limit.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt::Write;

use rustc_hash::FxHashMap;

use crate::config::Selector;
use crate::control::log_helper::{HostWitness, Line, Witness};
use crate::control::state::Control;
use crate::flow::partition::{Partition, Waiting};
use crate::flow::route::TypeRoute;
use crate::flow::route::type_handlers::Consumption;
use crate::item::{Item, TypeKey, counted};
use crate::observe::Calling;
use crate::sync::{Arc, Duration, Instant, Mutex, Weak};
use crate::threads::agenda::{Supervised, spawn_helper};
use crate::threads::context::KnownThread;
use crate::threads::waits::WaitingProducer;

/// The longest time until the end of something reported is noticed.
const MOST_PAUSE: Duration = Duration::from_secs(1);

/// A queue's entry in the supervisor's agenda for the watchdog.
struct Visitor<T: Item> {
    queue: Weak<Control<T>>,
    limit: Duration,
    /// Written and read by visits.
    seen: Mutex<LastSeen>,
}

/// The state kept between visits.
#[derive(Debug, Default)]
struct LastSeen {
    /// Per drain thread: its call, and the call's name when it was reported.
    calls: Vec<(Lasting, String)>,
    producers: Lasting,
    items: Lasting,
    waiting: WaitingItems,
}

impl<T: Item> Visitor<T> {
    fn new(queue: &Arc<Control<T>>, limit: Duration) -> Self {
        let calls =
            (0..queue.flow.threads.most()).map(|_| <(Lasting, String)>::default()).collect();
        let seen = Mutex::new(LastSeen { calls, ..LastSeen::default() });
        Self { queue: Arc::downgrade(queue), limit, seen }
    }
}

impl<T: Item> Supervised for Visitor<T> {
    fn tick(self: Arc<Self>) -> Option<Duration> {
        let control = self.queue.upgrade()?;
        let again = self.visit(&control, Instant::now());
        let_go_elsewhere(control);
        Some(again)
    }
}

/// Drops a reference on a thread that must not enter the host. A helper drops the last reference.
fn let_go_elsewhere<T: Item>(control: Arc<Control<T>>) {
    if let Some(last) = Arc::into_inner(control) {
        let (host, mut last) = (last.flow.host.clone(), Some(last));
        // If the system has no thread left, the queue is dropped here after all.
        let _ = spawn_helper("batchqueue-drop", move || host.enter(&mut || drop(last.take())));
    }
}

impl<T: Item> Control<T> {
    /// Starts the watchdog's visits, if the queue is watched.
    pub(crate) fn start_watch(self: &Arc<Self>) {
        // loom has no clock.
        if let Some(limit) = self.flow.config.warn_after.filter(|_| !cfg!(loom)) {
            self.watch.begin(Arc::new(Visitor::new(self, limit)), limit / 2);
        }
    }
}

// When lines about something that lasts are due: at a limit, then at double the distance each time,
// and when it is over.

/// The report that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Say {
    Nothing,
    /// It has lasted for this long.
    Lasts(Duration),
}

/// The last report.
#[derive(Debug, Clone, Copy)]
struct Said {
    since: Instant,
    next: Instant,
}

/// Something that may last.
#[derive(Debug, Default)]
struct Lasting(Option<Said>);

impl Lasting {
    /// Whether it was reported, and its end was not.
    fn is_reported(&self) -> bool {
        self.0.is_some()
    }

    /// Returns how long it lasted, if it was reported and is over.
    fn end(&mut self, now: Instant, is_over: impl Fn(Instant) -> bool) -> Option<Duration> {
        let said = self.0.filter(|said| is_over(said.since))?;
        self.0 = None;
        Some(now.saturating_duration_since(said.since))
    }

    /// Notes that it has lasted since `since`. Returns what to report.
    fn note(&mut self, since: Instant, limit: Duration, now: Instant) -> Say {
        let lasts = now.saturating_duration_since(since);
        let begun = self.0.map_or(since, |said| said.since);
        let is_due = self.0.map_or(lasts >= limit, |said| now >= said.next);
        if !is_due {
            return Say::Nothing;
        }
        // However late this visit: at the limit, twice the limit, four times the limit, ...
        let mut distance = limit;
        while begun + distance <= now {
            distance *= 2;
        }
        self.0 = Some(Said { since: begun, next: begun + distance });
        Say::Lasts(lasts)
    }

    /// Returns when to check again something that has lasted since `since`.
    fn next(&self, since: Instant, limit: Duration) -> Instant {
        self.0.map_or(since + limit, |said| said.next)
    }
}

// The text of lines.

/// A call that takes long.
#[derive(Debug, Clone)]
pub(crate) struct LongCall {
    /// The number of the drain thread.
    index: usize,
    since: Instant,
    handler: String,
    took: Duration,
    thread: Arc<KnownThread>,
    /// The number of items in the call, if known.
    in_call: Option<u64>,
    /// The number of items that wait for the same handler or partition.
    behind: Option<u64>,
}

impl LongCall {
    /// Returns the text without the stack.
    fn text(&self, witness: &dyn Witness) -> String {
        let (handler, took) = (&self.handler, seconds(self.took));
        let mut text = format!(
            "handler {handler} has been in one call for {took} on {}",
            witness.name(&self.thread)
        );
        if let Some(items) = self.in_call {
            let _ = write!(text, " with {}", counted(items, "item"));
        }
        if let Some(items) = self.behind.filter(|&items| items > 0) {
            let _ = write!(text, "; {} behind it", wait(items));
        }
        text
    }

    /// Returns the stack, on separate lines, if the thread is still in that call according to
    /// `is_current`.
    fn stack(&self, witness: &dyn Witness, is_current: impl Fn() -> bool) -> String {
        let stack = is_current().then(|| witness.stack(&self.thread)).flatten();
        // The call may have returned while its stack was read.
        let stack = stack.filter(|_| is_current());
        stack.map_or_else(String::new, |stack| format!("\n{stack}"))
    }
}

/// `"1 item waits"`, `"2 items wait"`.
fn wait(items: u64) -> String {
    format!("{} wait{}", counted(items, "item"), if items == 1 { "s" } else { "" })
}

fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(10) {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} s", time.as_secs())
    }
}

// How long the oldest item has waited for its call, including items that wait for another try. The
// partition keeps no time for the latter, so a visit notes how many items were put so far. If one
// of them still waits at a later visit, it has waited at least since then.

#[derive(Debug, Clone, Copy)]
struct Mark {
    pushed: u64,
    since: Instant,
}

/// The partitions where items wait.
#[derive(Debug, Default)]
struct WaitingItems(FxHashMap<usize, Mark>);

impl WaitingItems {
    /// Records what waits in the partition now.
    fn note(&mut self, partition: usize, found: Option<Waiting>, now: Instant) {
        let Some(Waiting { first, pushed, put }) = found else {
            self.0.remove(&partition);
            return;
        };
        let new = Mark { pushed, since: put.map_or(now, |put| put.min(now)) };
        let mark = self.0.entry(partition).or_insert(new);
        if first >= mark.pushed {
            *mark = new;
        }
    }

    /// Returns the partition of the oldest item, and since when it has waited.
    fn oldest(&self) -> Option<(usize, Instant)> {
        let oldest = self.0.iter().min_by_key(|(partition, mark)| (mark.since, **partition))?;
        Some((*oldest.0, oldest.1.since))
    }
}

// A visit: finds what takes long, and logs it.

/// The most names, of partitions or of types in one, that a line lists.
const MOST_NAMES: usize = 3;

impl<T: Item> Visitor<T> {
    /// Logs the lines due at `now`. Returns the delay until the next visit.
    fn visit(&self, control: &Arc<Control<T>>, now: Instant) -> Duration {
        let (limit, seen) = (self.limit, &mut *self.seen.lock());
        let mut visit = Visit { control, limit, now, next: now + limit / 2 };
        visit.watch_calls(seen);
        visit.watch_producers(seen);
        visit.watch_items(seen);
        visit.next.saturating_duration_since(now).max(Duration::from_millis(1))
    }
}

impl<T: Item> Control<T> {
    // ---- calls and waits, as the threads record them

    /// Returns the call that a drain thread is in.
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

    /// Returns the number of items in the call for a partition, and of those that wait behind it.
    fn items_of_call(&self, partition: usize) -> (Option<u64>, Option<u64>) {
        if self.flow.ending.is_expired() {
            // Waiting items are dropped without being settled.
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

    /// Returns the calls that hold items, before a shutdown abandons these.
    pub(crate) fn long_calls(&self, now: Instant) -> Vec<LongCall> {
        (0..self.flow.threads.most()).filter_map(|thread| self.long_call(thread, now)).collect()
    }

    /// Describes these calls, each on separate lines.
    pub(crate) fn describe(&self, calls: &[LongCall]) -> String {
        let witness = HostWitness(&*self.flow.host);
        let describe = |call: &LongCall| {
            let stack = call.stack(&witness, || self.is_in_call(call));
            format!("\n{}{stack}", call.text(&witness))
        };
        calls.iter().map(describe).collect()
    }

    /// Returns the first few partitions that have unsettled items.
    pub(crate) fn partitions_left(&self) -> Vec<usize> {
        let left = self.flow.route.partitions().filter(|partition| {
            let counts = partition.counts();
            counts.pushed > counts.settled
        });
        left.take(MOST_NAMES + 1).map(|partition| partition.index).collect()
    }

    /// Names these partitions: `" of partitions 0 (Order), 3 (Click)"`.
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

    /// Returns the call that the items of a partition wait for.
    fn blocking_call(&self, partition: usize, now: Instant) -> Option<LongCall> {
        let calling = |thread: usize| self.flow.threads[thread].tally.counts().calling;
        let all = || 0..self.flow.threads.most();
        let is_here = |calling: &Calling| match calling {
            Calling::Batch { partition: here, .. } => *here == partition,
            Calling::Named(_) => false,
        };
        let here = all().find(|&thread| calling(thread).is_some_and(|(call, _)| is_here(&call)));
        // The same handler may be in a batch of another partition.
        let has_one = self.flow.config.selector != Selector::ByType;
        let any = || all().filter(|_| has_one).find(|&thread| calling(thread).is_some());
        let owner = || self.flow.route.owner(partition).load().inside();
        self.long_call(here.or_else(any).unwrap_or_else(owner), now)
    }

    /// Names the types of a partition, as far as they are known: `" (Order, Click)"`.
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

    /// Returns the name of a type that has a handler.
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

/// Returns a check, for another thread, whether a call is still running.
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
    /// When the next visit is due.
    next: Instant,
}

impl<T: Item> Visit<'_, T> {
    fn come_back(&mut self, at: Instant, is_reported: bool) {
        self.next = self.next.min(at);
        if is_reported {
            // Soon enough to notice the end.
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

    /// Logs what items or producers of a partition wait for. `text` gets the type names from
    /// `names`.
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
            // Not during the visit: this may drop the last reference to removed handlers.
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

    /// Whether a wait since `since` is below half the limit.
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

#[cfg(all(test, not(loom)))]
mod lasting_tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn lines_come_at_the_limit_and_then_at_double_the_distance() {
        let (start, mut lasting) = (Instant::now(), Lasting::default());
        let mut said = Vec::new();
        for second in 0..=200 {
            if lasting.note(start, LIMIT, start + seconds(second)) != Say::Nothing {
                said.push(second);
            }
        }
        assert_eq!(said, [10, 20, 40, 80, 160]);
        assert_eq!(lasting.next(start, LIMIT), start + seconds(320));
    }

    #[test]
    fn a_late_look_says_how_long_it_has_lasted_by_then() {
        let (start, mut lasting) = (Instant::now(), Lasting::default());
        assert_eq!(lasting.note(start, LIMIT, start + seconds(9)), Say::Nothing);
        assert_eq!(lasting.next(start, LIMIT), start + LIMIT);
        assert_eq!(lasting.note(start, LIMIT, start + seconds(13)), Say::Lasts(seconds(13)));
        assert_eq!(lasting.note(start, LIMIT, start + seconds(19)), Say::Nothing);
        assert_eq!(lasting.note(start, LIMIT, start + seconds(26)), Say::Lasts(seconds(26)));
        assert_eq!(lasting.next(start, LIMIT), start + seconds(40));
    }

    #[test]
    fn only_the_end_of_what_was_reported_is_reported() {
        let (start, mut lasting) = (Instant::now(), Lasting::default());
        lasting.note(start, LIMIT, start + seconds(9));
        assert_eq!(lasting.end(start + seconds(10), |_| true), None);
        lasting.note(start, LIMIT, start + seconds(11));
        assert_eq!(lasting.end(start + seconds(12), |since| since != start), None);
        assert_eq!(lasting.end(start + seconds(12), |_| true), Some(seconds(12)));
        assert_eq!(lasting.end(start + seconds(13), |_| true), None);
    }
}

#[cfg(all(test, not(loom)))]
mod waiting_items_tests {
    use super::*;
    use crate::sync::Duration;

    #[test]
    fn an_item_waits_since_it_was_put_or_else_since_the_first_visit_that_found_it() {
        let (start, mut waiting) = (Instant::now(), WaitingItems::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let found = |first, pushed, put| Some(Waiting { first, pushed, put });
        waiting.note(3, found(10, 12, None), at(1));
        assert_eq!(waiting.oldest(), Some((3, at(1))));
        // The second of the two still waits, now first in line.
        waiting.note(3, found(11, 500, None), at(2));
        assert_eq!(waiting.oldest(), Some((3, at(1))));
        // All that waited are in a call: the rest may be as old as this visit, or as their put.
        waiting.note(3, found(500, 600, None), at(3));
        assert_eq!(waiting.oldest(), Some((3, at(3))));
        waiting.note(3, found(600, 700, Some(at(4))), at(5));
        assert_eq!(waiting.oldest(), Some((3, at(4))));
        waiting.note(4, found(0, 1, Some(at(2))), at(5));
        assert_eq!(waiting.oldest(), Some((4, at(2))));
        waiting.note(4, None, at(6));
        assert_eq!(waiting.oldest(), Some((3, at(4))));
        waiting.note(3, None, at(6));
        assert_eq!(waiting.oldest(), None);
    }
}
