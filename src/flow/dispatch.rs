//! Dispatch: groups the items of a turn by type and passes them to the handlers, with one thread at
//! a time inside each handler.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use crate::config::Selector;
use crate::flow::handler::{Batch, Entered, Failure};
use crate::flow::route::{Route, Target, TypeHandlers};
use crate::flow::segment::Segments;
use crate::flow::segment_pool::{KEPT_CAPACITY, SegmentCache};
use crate::item::{Item, TypeKey, weight_of};
use crate::observe::{Calling, Outcome, ThreadTally};
use crate::rules::{Rule, rule_off};
use crate::shared::Shared;
use crate::sync::{Arc, Duration, Instant};
use crate::thread_context::HandlerScope;

/// The segments that a turn took from its partition.
#[derive(Debug)]
pub(crate) struct Taken<T> {
    pub(crate) partition: usize,
    pub(crate) segments: Segments<T>,
}

/// The items of a turn that go to one handler, or that have none.
pub(crate) struct Group<T> {
    target: Option<Target<T>>,
    batch: Batch<T>,
}

/// The groups of a turn: mostly one.
pub(crate) type Groups<T> = SmallVec<[Group<T>; 1]>;

/// Groups items by type, in order of first appearance.
///
/// Types with a number of `known_before` or above count as unknown.
pub(crate) fn group_by_type<T: Item>(
    route: &Route<T>,
    selector: Selector,
    Taken { partition, segments }: Taken<T>,
    known_before: usize,
    segment_cache: &mut SegmentCache<T>,
) -> Groups<T> {
    let mut groups = Groups::new();
    let mut group_index = GroupIndex::default();
    let mut find = |groups: &mut Groups<T>, key: TypeKey| -> usize {
        group_index.group_of(key, || {
            let target = route.target(key, partition, selector, known_before);
            groups.push(Group { target, batch: Batch::default() });
            groups.len() - 1
        })
    };
    let one_type = selector == Selector::ByType && !route.partition(partition).is_mixed();
    for mut segment in segments {
        let Some(first) = segment.first().map(Item::type_key) else { continue };
        if one_type || segment.iter().all(|item| item.type_key() == first) {
            let group = find(&mut groups, first);
            let weight = if T::weighs(first) { weight_of(&segment) } else { segment.len() };
            groups[group].batch.push_segment(segment, weight);
        } else {
            for item in segment.drain(..) {
                let group = find(&mut groups, item.type_key());
                groups[group].batch.push(item, || segment_cache.segment(KEPT_CAPACITY / 4));
            }
            segment_cache.keep(segment);
        }
    }
    groups
}

/// The group of each type. Most partitions hold a single type, which needs no hashing.
#[derive(Default)]
struct GroupIndex {
    first: Option<(TypeKey, usize)>,
    others: FxHashMap<TypeKey, usize>,
}

impl GroupIndex {
    fn group_of(&mut self, key: TypeKey, make: impl FnOnce() -> usize) -> usize {
        match self.first {
            Some((first, group)) if first == key => group,
            Some(_) => *self.others.entry(key).or_insert_with(make),
            None => {
                let group = make();
                self.first = Some((key, group));
                group
            }
        }
    }
}

/// Puts all items into one group for the queue's consumer.
pub(crate) fn group_for<T: Item>(
    consumer: &Arc<TypeHandlers<T>>,
    Taken { segments, .. }: Taken<T>,
) -> Groups<T> {
    let mut batch = Batch::default();
    for segment in segments {
        let weight = weight_of(&segment);
        batch.push_segment(segment, weight);
    }
    if batch.is_empty() {
        Groups::new()
    } else {
        smallvec![Group { target: Some(Target::only(consumer.clone())), batch }]
    }
}

/// Dispatches groups on behalf of one drain thread.
pub(crate) struct Dispatcher<'a, T: Item> {
    pub(crate) shared: &'a Shared<T>,
    pub(crate) tally: &'a ThreadTally,
    /// Lines to log after the thread has left the host: a logging handler may be slow, or produce
    /// into a queue.
    pub(crate) lines: &'a mut Vec<String>,
    /// Emptied segments, for later takes.
    pub(crate) segment_cache: &'a mut SegmentCache<T>,
    /// Whether this thread has entered the host.
    pub(crate) inside_host: bool,
}

impl<T: Item> Dispatcher<'_, T> {
    /// Dispatches every group: first those whose handler is free, then those whose handler another
    /// thread is inside. A thread holds one entry token at a time, so threads that wait for each
    /// other's handlers cannot deadlock.
    pub(crate) fn dispatch(&mut self, groups: Groups<T>) {
        let mut busy = Vec::new();
        for Group { target, batch } in groups {
            let Some(target) = target else {
                self.in_host(|this| {
                    this.settle_unhandled(&batch);
                    drop(batch);
                });
                continue;
            };
            if let Some(entered) = target.handler().token.try_enter() {
                self.deliver_in_place(&target, batch, Some(entered));
            } else {
                busy.push((target, batch));
            }
        }
        for (target, batch) in busy {
            self.deliver_in_place(&target, batch, None);
        }
    }

    /// Delivers inside the host if the handler needs it.
    fn deliver_in_place<'t>(
        &mut self,
        target: &'t Target<T>,
        batch: Batch<T>,
        entered: Option<Entered<'t>>,
    ) {
        if target.handler().handler.needs_host() {
            self.in_host(|this| this.deliver(target, batch, entered));
        } else {
            self.deliver(target, batch, entered);
        }
    }

    fn in_host(&mut self, body: impl FnOnce(&mut Self)) {
        if self.inside_host {
            return body(self);
        }
        let (shared, mut body) = (self.shared, Some(body));
        self.inside_host = true;
        shared.host.enter(&mut || {
            if let Some(body) = body.take() {
                body(self);
            }
        });
        self.inside_host = false;
    }

    /// Passes a batch to its handler, as often as the retry policy allows; then counts the outcome.
    fn deliver<'t>(
        &mut self,
        target: &'t Target<T>,
        mut batch: Batch<T>,
        mut entered: Option<Entered<'t>>,
    ) {
        let (registered, items) = (&target.registered, batch.len() as u64);
        let attempts = self.shared.config.retry.as_ref().map_or(1, |retry| retry.attempts);
        let mut took = Duration::ZERO;
        let mut attempt = 1;
        let result = loop {
            batch.set_last_attempt(attempt >= attempts);
            let Some(result) = self.try_once(target, &mut batch, &mut took, entered.take()) else {
                return;
            };
            match result {
                Err(failure)
                    if failure.retry && attempt < attempts && batch.len() as u64 == items =>
                {
                    let delay = self
                        .shared
                        .config
                        .retry
                        .as_ref()
                        .map_or(Duration::ZERO, |retry| retry.delay(attempt));
                    self.tally.side_call(None);
                    // Outside the token and the host, so that other threads can use them meanwhile.
                    self.shared.host.leave(&mut || self.shared.back_off(delay));
                    attempt += 1;
                }
                result => break result,
            }
        };
        let outcome = match &result {
            Err(_) if !rule_off(Rule::CountFailed) => Outcome::Failed,
            _ => Outcome::Consumed,
        };
        if self.tally.settle(outcome, items) {
            registered.tally.settle(outcome, items, took);
        }
        if let Err(failure) = result
            && !failure.reported
            && let Some(failed) = self.shared.dispatch_log.note_failed(registered.key, items)
        {
            let (queue, name) = (&self.shared.name, &registered.name);
            self.lines
                .push(format!("queue {queue}: {failed} items failed in handler {name}: {failure}"));
        }
        for mut segment in batch.into_segments() {
            segment.clear();
            self.segment_cache.keep(segment);
        }
    }

    /// Calls `consume` while holding the handler's entry token. Returns `None` if the shutdown
    /// deadline has passed and handlers are no longer called.
    fn try_once<'t>(
        &mut self,
        target: &'t Target<T>,
        batch: &mut Batch<T>,
        took: &mut Duration,
        entered: Option<Entered<'t>>,
    ) -> Option<Result<(), Failure>> {
        let (handler, name) = (target.handler(), &target.registered.name);
        let _entered = entered.or_else(|| self.shared.enter_in_turn(&handler.token));
        let _compensation = self.shared.compensate_for(handler);
        let start = Instant::now();
        if !self.tally.begin_call(Calling::Type(target.registered.number), start) {
            return None;
        }
        let holding = HandlerScope::of(&handler.token);
        let mut result = Ok(());
        let mut consume = || result = call(name, || handler.handler.consume(batch));
        if self.inside_host && !handler.handler.needs_host() {
            self.shared.host.leave(&mut consume);
        } else {
            consume();
        }
        drop(holding);
        *took += start.elapsed();
        Some(result)
    }

    fn settle_unhandled(&mut self, batch: &Batch<T>) {
        if rule_off(Rule::CountUnhandled) {
            return;
        }
        let shared = self.shared;
        let items = batch.len() as u64;
        self.tally.settle(Outcome::Unhandled, items);
        let Some(first) = batch.iter().next() else { return };
        if let Some(unhandled) = shared.dispatch_log.note_unhandled(first.type_key(), items) {
            let (queue, name) = (&shared.name, shared.host.type_name(first));
            let has_handler =
                |key| shared.route.find(key).is_some_and(|known| known.registered().is_some());
            let hint = shared.host.unhandled_hint(first, &has_handler);
            let hint =
                hint.unwrap_or_else(|| "call add_handler before the first produce".to_owned());
            self.lines
                .push(format!("queue {queue}: {unhandled} items of {name} had no handler: {hint}"));
        }
    }
}

/// Calls a handler. A panic fails the call, not the drain thread.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    if rule_off(Rule::CatchPanic) {
        return body();
    }
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let cause = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let cause = cause.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Failure::last(format!(
            "{name} panicked: {}",
            cause.unwrap_or_else(|| "no message".to_owned())
        )))
    })
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use crate::BatchQueue;
    use crate::sync::Arc;
    use crate::testing::loom::{Number, ONE, Seen, TWO, config, model};

    /// Rule 6: an item without a handler goes into the partition of a type that has one, whose
    /// handler does not get it.
    #[test]
    fn loom_unknown_type_while_the_owner_takes() {
        model(2, || {
            let seen = Arc::new(Seen::default());
            let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
            queue.add_handler(ONE, seen.handler()).unwrap();
            let producer = {
                let queue = queue.clone();
                thread::spawn(move || queue.produce(Number(TWO, 2)).unwrap())
            };
            queue.produce(Number(ONE, 1)).unwrap();
            producer.join().unwrap();
            queue.shutdown(None);
            assert_eq!(seen.numbers(), [1]);
            assert_eq!(queue.stats().unhandled, 1);
        });
    }
}
