//! Registration: how handlers come to their types, and types to their partitions.
//!
//! Growth shares what is there, copies nothing, holds the control lock, and is refused once the
//! queue is closing (rule 11 of `ownership/README.md`).

use crate::config::{PartitionPolicy, Selector};
use crate::control::growth::{MOST_PARTITIONS_OF_TYPE, Weight};
use crate::control::known_types::KnownType;
use crate::control::retirements::Retired;
use crate::error::{AddHandlerError, Closed, ConfigError};
use crate::flow::handler::Handlers;
use crate::flow::handler::call_settings::CallSettings;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::partition::gate::Access;
use crate::flow::route::{Partitions, TypeHandlers};
use crate::item::{HandledType, Item, TypeKey};
use crate::shared::{Control, ControlState};
use crate::sync::Arc;

/// The largest weight of a handler. As many would be a typing error.
const MOST_WEIGHT: f64 = 1_000.0;

#[allow(clippy::cast_precision_loss)] // small numbers
fn check_numbers(item_type: &HandledType, handlers: usize) -> Result<(), ConfigError> {
    let HandledType { name, weight, .. } = item_type;
    if !(1..=MOST_PARTITIONS_OF_TYPE).contains(&handlers) {
        return Err(ConfigError(format!(
            "{name} has {handlers} handlers; give 1 to {MOST_PARTITIONS_OF_TYPE}, one per partition"
        )));
    }
    if !(*weight > 0.0 && *weight <= MOST_WEIGHT) {
        return Err(ConfigError(format!(
            "{name}: weight is {weight}; give a number above 0, at most {MOST_WEIGHT}"
        )));
    }
    let (total, most) = (weight * handlers as f64, MOST_PARTITIONS_OF_TYPE as f64);
    if total > most {
        return Err(ConfigError(format!(
            "{name}: {handlers} handlers of weight {weight} ask for {total} partitions; one type \
             may ask for {most}: give a weight of at most {}",
            most / handlers as f64
        )));
    }
    Ok(())
}

impl<T: Item> Control<T> {
    /// Gives a type its handler, or its handlers, one for each of as many partitions. Returns the
    /// end of the previous handlers' retirement, if there were any.
    pub(crate) fn register<E>(
        self: &Arc<Self>,
        item_type: &HandledType,
        handlers: Handlers<T>,
    ) -> Result<Option<Arc<Retired>>, AddHandlerError<E>> {
        check_numbers(item_type, handlers.instances.len()).map_err(AddHandlerError::Config)?;
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

    /// Gives other handlers to a type that has not gone. Returns the previous ones.
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

    /// The partitions of a new type, and the number of its spread if it has several.
    fn place_type(
        &self,
        state: &mut ControlState,
        key: TypeKey,
        weight: Weight,
        count: usize,
    ) -> (Partitions, Option<usize>) {
        let (route, growth, types) = (&self.flow.route, &mut state.growth, &mut state.types);
        let former = types.whereabouts.get(key);
        // Several handlers keep the order per partition only, whatever partitions they get.
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

    /// Before the handlers are published.
    fn prepare(&self, registered: &TypeHandlers<T>) {
        self.flow.serving.add(registered.instances());
        self.flow.route.add_idle_handlers(registered);
        for &partition in &registered.partitions {
            self.flow.route.partition(partition).note_slow(false);
        }
        self.note_settings(&registered.partitions, registered.settings);
    }

    /// A handler of these partitions is called with these settings. With another selector than by
    /// type, its items may be in any partition.
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

    /// Removes a type's handler. Returns the end of its retirement, or `None` if it had no handler.
    pub(crate) fn unregister(self: &Arc<Self>, key: TypeKey) -> Option<Arc<Retired>> {
        let mut state = self.state.lock();
        let place = self.flow.route.place(state.types.get(key)?.number);
        let before = place.registered()?;
        if state.access == Access::Closed {
            // The drain threads are about to end, and they close every handler that is still
            // registered.
            return None;
        }
        state.growth.count_hosted(&self.flow.route, &before.partitions, Some(&before), None);
        let is_settled = self.has_settled(&before.partitions);
        let debt = self.owe_what_lingers(&before);
        place.publish(None);
        let begun = self.retire(before, debt, is_settled);
        self.begin_departure(&mut state, key);
        self.end_some_departures(&mut state);
        drop(state);
        Some(self.continue_retirement(begun))
    }

    /// Whether nothing is left of the types of these partitions.
    fn has_settled(&self, partitions: &[usize]) -> bool {
        partitions.iter().all(|&index| {
            let partition = self.flow.route.partition(index);
            partition.completed() >= partition.pushed_under_gate()
        })
    }

    /// When a removed handler has had its last call.
    pub(crate) fn after_retirement(&self) {
        self.end_some_departures(&mut self.state.lock());
    }
}
