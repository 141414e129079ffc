//! Dispatch: what one cycle took, grouped by type and handed to the handlers, one thread at a time in each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustc_hash::FxHashMap;

use crate::config::Selector;
use crate::faults::{self, Fault};
use crate::flow::handler::{Batch, Failure, Item, TypeKey};
use crate::flow::host::Host;
use crate::flow::route::{Registered, Route};
use crate::observe::{Outcome, ThreadTally, Throttle};
use crate::shared::Holding;
use crate::sync::{Arc, Instant};

/// What a cycle took from one partition.
#[derive(Debug)]
pub(crate) struct Taken<T> {
    pub(crate) partition: usize,
    pub(crate) segments: Vec<Vec<T>>,
}

/// The items of one cycle that go to one handler, or to nobody.
pub(crate) struct Group<T> {
    target: Option<Arc<Registered<T>>>,
    batch: Batch<T>,
}

/// Groups by type, in the order in which the types were met.
///
/// With the selector `ByType` a partition delivers only to the types routed to it: an item that was put in before its
/// type had a handler may stand in another partition, and delivering it from there would break the order of its type.
pub(crate) fn group_by_type<T: Item>(route: &Route<T>, selector: Selector, taken: Vec<Taken<T>>) -> Vec<Group<T>> {
    let mut groups: Vec<Group<T>> = Vec::new();
    let mut group_of: FxHashMap<(TypeKey, bool), usize> = FxHashMap::default();
    for Taken { partition, segments } in taken {
        let mut find = |groups: &mut Vec<Group<T>>, key: TypeKey| -> usize {
            let target = route
                .types
                .get(&key)
                .filter(|registered| selector != Selector::ByType || registered.partition == partition);
            *group_of.entry((key, target.is_some())).or_insert_with(|| {
                groups.push(Group { target: target.cloned(), batch: Batch::default() });
                groups.len() - 1
            })
        };
        for segment in segments {
            let Some(first) = segment.first().map(Item::type_key) else { continue };
            if segment.iter().all(|item| item.type_key() == first) {
                let group = find(&mut groups, first);
                groups[group].batch.push_segment(segment);
            } else {
                for item in segment {
                    let group = find(&mut groups, item.type_key());
                    groups[group].batch.push(item);
                }
            }
        }
    }
    groups
}

/// One group for the one consumer of the queue.
pub(crate) fn group_for<T>(consumer: &Arc<Registered<T>>, taken: Vec<Taken<T>>) -> Vec<Group<T>> {
    let mut batch = Batch::default();
    for segment in taken.into_iter().flat_map(|taken| taken.segments) {
        batch.push_segment(segment);
    }
    if batch.is_empty() { Vec::new() } else { vec![Group { target: Some(consumer.clone()), batch }] }
}

/// Log lines that are due at most once per type and minute.
#[derive(Debug)]
pub(crate) struct DispatchLog {
    unhandled: Throttle<TypeKey>,
    failed: Throttle<TypeKey>,
    refused: Throttle<TypeKey>,
    side_calls: Throttle<(SideCall, String)>,
}

/// The calls into a handler that carry no items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SideCall {
    OnIdle,
    OnClose,
}

impl DispatchLog {
    pub(crate) fn new() -> Self {
        Self {
            unhandled: Throttle::new(),
            failed: Throttle::new(),
            refused: Throttle::new(),
            side_calls: Throttle::new(),
        }
    }

    /// `Some`: a line about refused items of the type is due; their number since the last one.
    pub(crate) fn note_refused(&self, key: TypeKey) -> Option<u64> {
        self.refused.note(key, 1, Instant::now())
    }

    /// `Some`: a line about the failed call is due; the number of failures since the last one.
    pub(crate) fn note_side_call(&self, call: SideCall, handler: &str) -> Option<u64> {
        self.side_calls.note((call, handler.to_owned()), 1, Instant::now())
    }
}

/// Hands groups over on behalf of one drain thread.
pub(crate) struct Dispatcher<'a, T> {
    pub(crate) queue: &'a str,
    pub(crate) host: &'a dyn Host<T>,
    pub(crate) tally: &'a ThreadTally,
    pub(crate) log: &'a DispatchLog,
    /// Lines to log once the thread has left the host: a logging handler may be slow, or produce into a queue.
    pub(crate) lines: &'a mut Vec<String>,
}

impl<T: Item> Dispatcher<'_, T> {
    /// Dispatches every group: first those whose handler is free, then those that another thread is inside. The
    /// thread holds one entry token at a time, so threads that wait for each other's handlers cannot lock up.
    pub(crate) fn dispatch(&mut self, route: &Route<T>, groups: Vec<Group<T>>) {
        let mut busy = Vec::new();
        for Group { target, batch } in groups {
            match target {
                None => self.give_up(route, &batch),
                Some(target) => match target.handler.token.clone().try_enter() {
                    Some(_entered) => self.hand_over(&target, batch),
                    None => busy.push((target, batch)),
                },
            }
        }
        for (target, batch) in busy {
            let token = target.handler.token.clone();
            let mut entered = None;
            self.host.leave(&mut || entered = Some(token.enter()));
            self.hand_over(&target, batch);
        }
    }

    /// Inside the handler's entry token: `consume`, and the count of what became of the batch.
    fn hand_over(&mut self, target: &Registered<T>, mut batch: Batch<T>) {
        let items = batch.len() as u64;
        let start = Instant::now();
        if !self.tally.begin_call(&target.name, start) {
            return;
        }
        let holding = Holding::of(&target.handler.token);
        let result = call(&target.name, || target.handler.handler.consume(&mut batch));
        drop(holding);
        let took = start.elapsed();
        let outcome = match &result {
            Err(_) if !faults::off(Fault::CountFailed) => Outcome::Failed,
            _ => Outcome::Consumed,
        };
        if self.tally.settle(outcome, items) {
            target.tally.settle(outcome, items, took);
        }
        if let Err(failure) = result
            && !failure.reported
            && let Some(failed) = self.log.failed.note(target.key, items, Instant::now())
        {
            let (queue, name) = (self.queue, &target.name);
            self.lines.push(format!("queue {queue}: {failed} items failed in handler {name}: {failure}"));
        }
    }

    fn give_up(&mut self, route: &Route<T>, batch: &Batch<T>) {
        if faults::off(Fault::CountUnhandled) {
            return;
        }
        let items = batch.len() as u64;
        self.tally.settle(Outcome::Unhandled, items);
        let Some(first) = batch.iter().next() else { return };
        if let Some(unhandled) = self.log.unhandled.note(first.type_key(), items, Instant::now()) {
            let (queue, name) = (self.queue, self.host.type_name(first));
            let hint = self.host.unhandled_hint(first, &|key| route.types.contains_key(&key));
            let hint = hint.unwrap_or_else(|| "call add_handler before the first produce".to_owned());
            self.lines.push(format!("queue {queue}: {unhandled} items of {name} had no handler: {hint}"));
        }
    }
}

/// Calls into a handler; a panic fails the call and not the drain thread.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    if faults::off(Fault::CatchPanic) {
        return body();
    }
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let cause = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let cause = cause.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Failure::new(format!("{name} panicked: {}", cause.unwrap_or_else(|| "no message".to_owned()))))
    })
}
