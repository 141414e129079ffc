//! Registration: assigns handlers to types, and partitions to types.
//!
//! Growth copies nothing, holds the control lock, and is refused once the queue is closing (rule 11
//! of `flow/ownership/README.md`).

#[cfg(all(test, not(loom)))]
mod tests;

use crate::config::{PartitionPolicy, Selector};
use crate::control::state::{Control, ControlState, Knowledge};
use crate::control::types::{Goals, KnownType, Weight};
use crate::error::{AddHandlerError, Closed, ConfigError};
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::handler::{HandlerRef, Handlers};
use crate::flow::partition::Access;
use crate::flow::partition::lane::{Outstanding, UnsettledMark};
use crate::flow::route::retirements::{Begun, Retired};
use crate::flow::route::type_handlers::{CallSettings, Partitions, TypeHandlers};
use crate::item::{HandledType, Item, TypeKey};
use crate::sync::Arc;

impl<T: Item> Control<T> {
    /// Registers the handlers of a type, one per partition. Returns the end of the previous
    /// handlers' retirement, if there were any.
    pub(crate) fn register<E>(
        self: &Arc<Self>,
        item_type: &HandledType,
        handlers: Handlers<T>,
    ) -> Result<Option<Arc<Retired>>, AddHandlerError<E>> {
        item_type.validate(handlers.instances.len()).map_err(AddHandlerError::Config)?;
        let settings =
            CallSettings::of_type(&self.flow.config, item_type).map_err(AddHandlerError::Config)?;
        let mut state = self.state.lock();
        if state.access != Access::Open {
            return Err(AddHandlerError::Closed(Closed));
        }
        let before = if state.types.get(item_type.key).is_some() {
            self.register_known(&mut state, item_type, handlers, settings)
        } else {
            self.register_new(&mut state, item_type, handlers, settings).map(|()| None)
        };
        let before = before.map_err(AddHandlerError::Config)?;
        let begun = before.map(|before| self.retire(before, None, true));
        self.end_some_departures(&mut state);
        drop(state);
        Ok(begun.map(|begun| self.continue_retirement(begun)))
    }

    /// Replaces the handlers of a type that has not gone. Returns the previous ones.
    fn register_known(
        &self,
        state: &mut ControlState,
        item_type: &HandledType,
        handlers: Handlers<T>,
        settings: CallSettings,
    ) -> Result<Option<Arc<TypeHandlers<T>>>, ConfigError> {
        let (route, key) = (&self.flow.route, item_type.key);
        let Some(known) = state.types.get(key) else { return Ok(None) };
        let (instances, partitions) = (handlers.instances.len(), known.partitions.clone());
        let count = partitions.len();
        if instances > 1 && instances != count {
            return Err(ConfigError(format!(
                "{} has {count} of the queue's partitions, so it cannot be spread over \
                 {instances}; give {count}, or call add_handler_factory before any other handler \
                 of the type",
                item_type.name
            )));
        }
        let place = route.place(known.number);
        let registered = self.handlers_of(item_type, known.number, handlers, settings);
        let registered = Arc::new(registered.in_partitions(partitions));
        let before = place.registered();
        state.growth.count_hosted(
            route,
            &registered.partitions,
            before.as_deref(),
            Some(&registered),
        );
        self.prepare(&registered);
        state.types.stay(key);
        place.publish(Some(registered));
        Ok(before)
    }

    fn register_new(
        &self,
        state: &mut ControlState,
        item_type: &HandledType,
        handlers: Handlers<T>,
        settings: CallSettings,
    ) -> Result<(), ConfigError> {
        let (key, spread) = (item_type.key, handlers.instances.len());
        self.check_spread(&item_type.name, spread)?;
        let weight = Weight::of(item_type.weight, spread);
        let (partitions, spread) = self.place_type(state, key, weight, spread);
        state.growth.add_type(&self.flow.route, key, &partitions, weight);
        let number = state.types.free_numbers.pop().unwrap_or(self.flow.route.type_count());
        let registered = self
            .handlers_of(item_type, number, handlers, settings)
            .in_partitions(partitions.clone());
        let registered = Arc::new(registered);
        state.growth.count_hosted(&self.flow.route, &partitions, None, Some(&registered));
        self.prepare(&registered);
        self.flow.route.add_type(&mut state.types.table_use, registered, spread);
        state.types.add(key, KnownType::new(number, partitions, spread, weight));
        Ok(())
    }

    /// Chooses the partitions of a new type. Returns them, and the number of its spread if there
    /// are several.
    fn place_type(
        &self,
        state: &mut ControlState,
        key: TypeKey,
        weight: Weight,
        count: usize,
    ) -> (Partitions, Option<usize>) {
        let (route, growth, types) = (&self.flow.route, &mut state.growth, &mut state.types);
        let former = types.whereabouts.get(key);
        // Several handlers keep order per partition only, so they may get any partitions.
        let former = former.filter(|former| count == 1 || count == former.len()).cloned();
        let free = || {
            let spreads = types.free_spreads.iter().map(|&spread| route.partitions_of(spread));
            let mut fitting = spreads.filter(|known| known.len() == count);
            fitting.find(|known| growth.are_free(known)).cloned()
        };
        let known = former.or_else(|| if count > 1 { free() } else { None });
        let partitions = known.unwrap_or_else(|| {
            let threads = (self.flow.threads.len(), self.flow.threads.most());
            growth.place(route, &self.flow.config, threads, weight, count)
        });
        let spread = (partitions.len() > 1).then(|| {
            let same = |&spread: &usize| *route.partitions_of(spread) == partitions;
            match types.free_spreads.iter().position(same) {
                Some(at) => types.free_spreads.swap_remove(at),
                None => route.add_spread(partitions.clone()),
            }
        });
        (partitions, spread)
    }

    fn handlers_of(
        &self,
        item_type: &HandledType,
        number: usize,
        handlers: Handlers<T>,
        settings: CallSettings,
    ) -> TypeHandlers<T> {
        let Handlers { instances, dead_letter } = handlers;
        let most_letters = self.flow.config.buffer_size;
        let dead_letter = dead_letter.map(|handler| DeadLetterBox::new(handler, most_letters));
        let dead_letter = dead_letter.or_else(|| self.flow.dead_letters.of_queue.clone());
        TypeHandlers::new(item_type.key, number, &item_type.name, instances, settings)
            .with_dead_letter(dead_letter)
    }

    /// Makes the queue ready for handlers that are about to be published.
    fn prepare(&self, registered: &TypeHandlers<T>) {
        self.flow.serving.add(registered.instances());
        self.flow.route.add_idle_handlers(registered);
        for &partition in &registered.partitions {
            self.flow.route.partition(partition).note_slow(false);
        }
        self.note_settings(&registered.partitions, registered.settings);
    }

    /// Applies the settings of a handler to its partitions. Unless the selector is by type, its
    /// items may be in any partition.
    fn note_settings(&self, partitions: &[usize], settings: CallSettings) {
        if settings.max_batch_items > self.flow.config.max_batch_items {
            for &partition in partitions {
                self.flow.route.partition(partition).note_batch_limit(settings.max_batch_items);
            }
        }
        if settings.max_delay.is_none() {
            return;
        }
        for partition in self.partitions_of(partitions) {
            self.flow.route.partition(partition).let_linger();
        }
    }

    fn check_spread(&self, name: &str, spread: usize) -> Result<(), ConfigError> {
        let problem = if spread == 1 {
            return Ok(());
        } else if self.flow.config.selector != Selector::ByType {
            format!(
                "{name} cannot have a factory: only the selector by_type has partitions of one \
                 type; use add_handler"
            )
        } else if let (PartitionPolicy::Fixed(_) | PartitionPolicy::ThreadMultiply(_), count) =
            (self.flow.config.partitions, self.flow.route.partition_count())
            && spread > count
        {
            format!(
                "{name} cannot be spread over {spread} partitions: the queue has {count}; \
                 give fewer, or use PartitionPolicy.adaptive"
            )
        } else {
            return Ok(());
        };
        Err(ConfigError(problem))
    }

    /// Removes a type's handler. Returns the end of its retirement, or `None` if there was no
    /// handler to remove.
    pub(crate) fn unregister(self: &Arc<Self>, key: TypeKey) -> Option<Arc<Retired>> {
        let mut state = self.state.lock();
        let place = self.flow.route.place(state.types.get(key)?.number);
        let before = place.registered()?;
        if state.access == Access::Closed {
            // The drain threads are about to end, and close every handler that is still registered.
            return None;
        }
        state.growth.count_hosted(&self.flow.route, &before.partitions, Some(&before), None);
        let is_settled = self.has_settled(&before.partitions);
        let unsettled = self.keep_what_lingers(&before);
        place.publish(None);
        let begun = self.retire(before, unsettled, is_settled);
        self.begin_departure(&mut state, key);
        self.end_some_departures(&mut state);
        drop(state);
        Some(self.continue_retirement(begun))
    }

    /// Whether all items of these partitions are settled.
    fn has_settled(&self, partitions: &[usize]) -> bool {
        partitions.iter().all(|&index| {
            let partition = self.flow.route.partition(index);
            partition.completed() >= partition.pushed_under_gate()
        })
    }

    /// Lets types go once a removed handler has had its last call.
    pub(crate) fn after_retirement(&self) {
        self.end_some_departures(&mut self.state.lock());
    }
}

// Retirement: what happens to a handler that was replaced or removed (rule 12 of
// `flow/ownership/README.md`).
//
// A drain thread may still be inside it when its type already has another handler. Once no thread
// is, a drain thread calls `on_close` and ends the retirement. Only callers that ask for it wait. A
// handler without `on_close` that no thread is inside retires immediately, unless its type is
// removed with items left: callers that remove types wait for the drain threads, so that types
// cannot be added faster than they can go.

impl<T: Item> Control<T> {
    /// Begins the retirement of `registered`, which is no longer published. Called under the
    /// control lock; the caller continues the retirement after releasing it. `may_end`: the
    /// retirement need not wait for a drain thread.
    pub(crate) fn retire(
        self: &Arc<Self>,
        registered: Arc<TypeHandlers<T>>,
        unsettled: Option<UnsettledMark>,
        may_end: bool,
    ) -> Begun<T> {
        self.flow.serving.remove(registered.instances());
        let gone: Vec<HandlerRef<T>> =
            registered.instances().filter(|handler| !self.flow.serves(handler)).cloned().collect();
        self.flow.route.drop_idle_handlers(&gone);
        let key = registered.key;
        // Under the lock of the lanes: a thread that looked up the old handler there has reached
        // its handler lock by now. Jobs of the type that are not in flight go to its new handler,
        // or to none. Unless the selector is by type, they may be in any partition.
        let recall = |partition: usize| {
            let partition = self.flow.route.partition(partition);
            if partition.change_lanes(|lanes| lanes.recall_type(key)) {
                self.flow.call_owner(partition, None);
            }
        };
        self.partitions_of(&registered.partitions).for_each(recall);
        let serves = |handler: &HandlerRef<T>| self.flow.serves(handler);
        self.flow.retirements.begin(registered, unsettled, may_end, serves, &self.flow.watcher())
    }

    /// Ends a retirement that is already over, or else wakes all threads: the first that is not
    /// inside a handler ends it, once no thread is inside. Called without a lock.
    fn continue_retirement(&self, begun: Begun<T>) -> Arc<Retired> {
        match begun.over {
            Some(retirement) => {
                if let Some(line) = retirement.end(&self.flow.name) {
                    self.flow.warn_in_call(line);
                }
            }
            None => self.flow.threads.wake_all(),
        }
        begun.retired
    }

    /// Returns the partitions that may hold items of a type with these `partitions`.
    pub(crate) fn partitions_of(&self, partitions: &[usize]) -> impl Iterator<Item = usize> {
        let all = self.flow.config.selector != Selector::ByType;
        let (own, count) = (if all { &[] } else { partitions }, self.flow.route.partition_count());
        own.iter().copied().chain(0..if all { count } else { 0 })
    }

    /// Keeps lingering items for handlers that are about to be removed. Called under the control
    /// lock.
    fn keep_what_lingers(&self, registered: &Arc<TypeHandlers<T>>) -> Option<UnsettledMark> {
        registered.settings.max_delay?;
        let unsettled = UnsettledMark::default();
        for partition in self.partitions_of(&registered.partitions) {
            let partition = self.flow.route.partition(partition);
            // Items put from now on need not reach these handlers.
            let queued = || partition.pushed_under_gate() - partition.taken();
            partition.change_lanes(|lanes| {
                let queued = if self.flow.has_one_type(partition) { queued() } else { 0 };
                let queued = usize::try_from(queued).unwrap_or(usize::MAX);
                let full = registered.settings.max_batch_items;
                lanes.keep_outstanding(registered.key, queued, full, |items| Outstanding {
                    items,
                    to: registered.clone(),
                    unsettled: unsettled.clone(),
                });
            });
        }
        Some(unsettled)
    }
}

// Departure: how a type without a handler goes.
//
// Once everything that was in its partitions at the removal is settled, nothing waits for the type.
// Producers no longer find it, and its place, its partitions and its name go to the next new type.
// Items from producers that had already looked the type up end without a handler, like items of a
// type that was never registered. Partitions keep their counts, so no figure changes.
//
// Each call that adds or removes a handler or reads statistics checks a few leaving types, and a
// few partitions for types that have gone. Idle drain threads check leaving types, too.

/// How many leaving types and how many partitions a call checks.
const CHECKS_IN_CALL: usize = if cfg!(loom) { 1 } else { 4 };

impl<T: Item> Control<T> {
    /// Marks a type as leaving, after its handler was removed and its waiting jobs recalled.
    fn begin_departure(&self, state: &mut ControlState, key: TypeKey) {
        let Some(known) = state.types.get(key) else { return };
        let goal = |index: usize| (index, self.flow.route.partition(index).pushed_under_gate());
        let goals: Goals = if self.flow.config.selector == Selector::ByType {
            known.partitions.iter().copied().map(goal).collect()
        } else {
            (0..self.flow.route.partition_count()).map(goal).collect()
        };
        state.types.leave(key, goals);
    }

    /// Lets some leaving types go, and forgets some that have gone.
    pub(crate) fn end_some_departures(&self, state: &mut ControlState) {
        self.end_departures(state, CHECKS_IN_CALL);
        let completed = |index: usize| self.flow.route.partition(index).completed();
        let pushed = |index: usize| self.flow.route.partition(index).pushed_under_gate();
        let count = self.flow.route.partition_count();
        state.types.whereabouts.advance(count, CHECKS_IN_CALL, pushed, completed);
    }

    pub(crate) fn end_departures(&self, state: &mut ControlState, checks: usize) {
        let completed = |index: usize| self.flow.route.partition(index).completed();
        for (key, known) in state.types.take_gone(checks, completed) {
            self.end_departure(state, key, known);
        }
        self.departures.note_pending(state.types.leaving());
    }

    fn end_departure(&self, state: &mut ControlState, key: TypeKey, known: KnownType) {
        let types = &mut state.types;
        // First: from here on, its items go where items of unknown types go.
        self.flow.route.remove_type(&mut types.table_use, key);
        state.growth.remove_type(&known.partitions, known.weight);
        if self.flow.config.selector == Selector::ByType {
            types.whereabouts.note(key, known.partitions);
        }
        types.free_numbers.push(known.number);
        types.free_spreads.extend(known.spread);
        self.flow.dispatch_log.forget(key);
    }

    /// Returns what the queue still knows of a type.
    #[cfg_attr(any(loom, not(any(feature = "python", test))), allow(dead_code))] // for the bindings
    pub(crate) fn knowledge_of(&self, key: TypeKey) -> Knowledge {
        let state = self.state.lock();
        let Some(known) = state.types.get(key) else { return Knowledge::Nothing };
        let has_handler = self.flow.route.place(known.number).registered().is_some();
        if has_handler { Knowledge::Handled } else { Knowledge::Leaving }
    }
}

#[cfg(all(test, loom))]
mod departure_loom_tests {
    use loom::thread;

    use crate::queue::BatchQueue;
    use crate::sync::Arc;
    use crate::testing::loom::{Number, ONE, Seen, TWO, config, model, model_by_turns};

    // A type goes while a producer puts items of it.

    /// A type goes while a producer puts an item of it, and another type gets its place and its
    /// partition: the other type's handler does not get the item.
    #[test]
    fn loom_put_while_the_type_goes_and_another_comes() {
        model(1, || {
            let (seen, other) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
            let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
            queue.add_handler(ONE, seen.handler()).unwrap();
            let producer = {
                let queue = queue.clone();
                thread::spawn(move || queue.produce(Number(ONE, 1)).unwrap())
            };
            assert!(queue.remove_handler(ONE));
            queue.add_handler(TWO, other.handler()).unwrap();
            queue.produce(Number(TWO, 2)).unwrap();
            producer.join().unwrap();
            queue.shutdown(None);
            assert_eq!(other.numbers(), [2]);
            assert_eq!(seen.numbers().len() as u64 + queue.stats().unhandled, 1);
        });
    }

    /// A type goes while a producer puts an item of it, and comes back: the item is handled at most
    /// once, and before later ones.
    #[test]
    fn loom_put_while_the_type_goes_and_comes_back() {
        model_by_turns(11, 1, || {
            let seen = Arc::new(Seen::default());
            let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
            queue.add_handler(ONE, seen.handler()).unwrap();
            let producer = {
                let queue = queue.clone();
                thread::spawn(move || {
                    queue.produce(Number(ONE, 1)).unwrap();
                    queue.produce(Number(ONE, 2)).unwrap();
                })
            };
            assert!(queue.remove_handler(ONE));
            queue.add_handler(ONE, seen.handler()).unwrap();
            producer.join().unwrap();
            queue.shutdown(None);
            let numbers = seen.numbers();
            assert!(numbers.is_sorted() && !numbers.contains(&0), "{numbers:?}");
            assert_eq!(numbers.len() as u64 + queue.stats().unhandled, 2);
        });
    }
}
