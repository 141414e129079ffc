//! Registration: how handlers come to their types, and types to their partitions.
//!
//! Growth shares what is there, copies nothing, holds the control lock, and is refused once the
//! queue is closing (rule 11 of `ownership/README.md`).

use crate::config::{MAX_PARTITIONS, PartitionPolicy, Selector};
use crate::control::ownership::Owner;
use crate::control::retirements::Retired;
use crate::error::{AddHandlerError, Closed, ConfigError};
use crate::flow::handler::Handlers;
use crate::flow::handler::call_settings::CallSettings;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::partition::gate::Access;
use crate::flow::route::TypeHandlers;
use crate::item::{HandledType, Item, TypeKey};
use crate::rules::{Rule, rule_off};
use crate::shared::Shared;
use crate::sync::Arc;

fn check_numbers(item_type: &HandledType, handlers: usize) -> Result<(), ConfigError> {
    let HandledType { name, weight, .. } = item_type;
    if !(1..=MAX_PARTITIONS).contains(&handlers) {
        return Err(ConfigError(format!(
            "{name} has {handlers} handlers; give 1 to {MAX_PARTITIONS}, one per partition"
        )));
    }
    if !(weight.is_finite() && *weight > 0.0) {
        return Err(ConfigError(format!(
            "{name}: weight is {weight}; give a finite number above 0"
        )));
    }
    Ok(())
}

impl<T: Item> Shared<T> {
    /// Gives a type its handler, or its handlers, one for each of as many partitions. Returns the
    /// end of the previous handlers' retirement, if there were any.
    pub(crate) fn register<E>(
        self: &Arc<Self>,
        item_type: &HandledType,
        handlers: Handlers<T>,
    ) -> Result<Option<Arc<Retired>>, AddHandlerError<E>> {
        let Handlers { instances, dead_letter } = handlers;
        check_numbers(item_type, instances.len()).map_err(AddHandlerError::Config)?;
        let most_letters = self.config.buffer_size;
        let dead_letter = dead_letter.map(|handler| DeadLetterBox::new(handler, most_letters));
        let settings =
            CallSettings::of_type(&self.config, item_type).map_err(AddHandlerError::Config)?;
        let mut control = self.control.lock();
        if control.access != Access::Open && !rule_off(Rule::NoGrowthWhileClosing) {
            return Err(AddHandlerError::Closed(Closed));
        }
        let route = &self.route;
        let known = route.find(item_type.key);
        let number = known.map_or(route.type_count(), |known| known.number);
        let registered =
            TypeHandlers::new(item_type.key, number, &item_type.name, instances, settings);
        let dead_letter = dead_letter.or_else(|| self.dead_letters.of_queue.clone());
        let registered = Arc::new(registered.with_dead_letter(dead_letter));
        if let Some(known) = known {
            let (instances, partitions) = (registered.handlers.len(), known.partitions.len());
            if instances > 1 && instances != partitions {
                return Err(AddHandlerError::Config(ConfigError(format!(
                    "{} has {partitions} of the queue's partitions for life, so it cannot be \
                     spread over {instances}; give {partitions}, or call add_handler_factory \
                     before any other handler of the type",
                    item_type.name
                ))));
            }
            let before = known.registered();
            control.growth.count_hosted(
                route,
                &known.partitions,
                before.as_deref(),
                Some(&registered),
            );
            self.serving.add(registered.instances());
            route.add_idle_handlers(&registered, &known.partitions);
            for &partition in &known.partitions {
                route.partition(partition).note_slow(false);
            }
            self.note_settings(&known.partitions, settings);
            known.publish(Some(registered));
            return Ok(before.map(|before| self.retire(before, &known.partitions, None)));
        }
        let (config, threads, spread) =
            (&self.config, self.threads.len(), registered.handlers.len());
        self.check_spread(&item_type.name, spread).map_err(AddHandlerError::Config)?;
        if rule_off(Rule::GrowthKeepsOwners) {
            self.forget_moves();
        }
        let partitions = control.growth.place(
            route,
            config,
            (threads, self.threads.most()),
            item_type.weight,
            spread,
        );
        control.growth.count_hosted(route, &partitions, None, Some(&registered));
        self.note_settings(&partitions, settings);
        self.serving.add(registered.instances());
        route.add_idle_handlers(&registered, &partitions);
        route.add_type(registered, partitions);
        Ok(None)
    }

    /// A handler of these partitions is called with these settings. With another selector than by
    /// type, its items may be in any partition.
    fn note_settings(&self, partitions: &[usize], settings: CallSettings) {
        if settings.max_batch_items > self.config.max_batch_items {
            for &partition in partitions {
                self.route.partition(partition).note_batch_limit(settings.max_batch_items);
            }
        }
        if settings.max_delay.is_none() {
            return;
        }
        for partition in self.partitions_of(partitions) {
            self.route.partition(partition).let_linger();
        }
    }

    /// Only for a switched-off rule: every partition goes back to its first owner, on the way to
    /// which it stays.
    fn forget_moves(&self) {
        for partition in 0..self.route.partition_count() {
            let word = self.route.owner(partition);
            let owner = word.load().inside();
            if owner != partition % self.threads.len() {
                let _ =
                    word.exchange(Owner::Owned(owner), Owner::Revoked { from: owner, to: owner });
            }
        }
    }

    fn check_spread(&self, name: &str, spread: usize) -> Result<(), ConfigError> {
        let problem = if spread == 1 {
            return Ok(());
        } else if self.config.selector != Selector::ByType {
            format!(
                "{name} cannot have a factory: only the selector by_type has partitions of one \
                 type; use add_handler"
            )
        } else if let (PartitionPolicy::Fixed(_) | PartitionPolicy::ThreadMultiply(_), count) =
            (self.config.partitions, self.route.partition_count())
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
        let mut control = self.control.lock();
        let known = self.route.find(key)?;
        let before = known.registered()?;
        if control.access == Access::Closed {
            // The drain threads are about to end, and they close every handler that is still
            // registered.
            return None;
        }
        control.growth.count_hosted(&self.route, &known.partitions, Some(&before), None);
        let debt = self.owe_what_lingers(&before, &known.partitions);
        known.publish(None);
        Some(self.retire(before, &known.partitions, debt))
    }
}
