//! Growth: how the types come to their partitions, and their handlers to the types.
//!
//! A new type gets partitions for the queue's life: its own while the policy allows as many, else
//! the one with the fewest types. Growth shares what is there, copies nothing, holds the control
//! lock, and is refused once the queue is closing (rule 11 of `ownership/README.md`).

use crate::config::{Config, MAX_PARTITIONS, PartitionPolicy, Selector};
use crate::control::ownership::{Handoffs, Owner};
use crate::control::retire::Retired;
use crate::error::{AddHandlerError, Closed, ConfigError};
use crate::flow::gate::Access;
use crate::flow::handler::{HandledType, HandlerRef, Item, TypeKey};
use crate::flow::route::{Route, TypeHandlers};
use crate::rules::{Rule, rule_off};
use crate::shared::{Control, Shared};
use crate::sync::Arc;

/// What growth remembers, under the control lock.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// Of all types that were ever registered, so that partitions only grow.
    weight: f64,
    types_per_partition: Vec<usize>,
    /// Of these, the types whose handlers need the host.
    hosted_types: Vec<usize>,
}

impl Growth {
    /// Counts what the handlers of a type need, now and before, and marks its partitions.
    fn count_hosted<T>(
        &mut self,
        route: &Route<T>,
        partitions: &[usize],
        before: Option<&TypeHandlers<T>>,
        now: Option<&TypeHandlers<T>>,
    ) {
        self.hosted_types.resize(route.partition_count(), 0);
        for &partition in partitions {
            let hosted = &mut self.hosted_types[partition];
            *hosted = *hosted + usize::from(now.is_some_and(TypeHandlers::needs_host))
                - usize::from(before.is_some_and(TypeHandlers::needs_host));
            route.partition(partition).set_host_free(*hosted == 0);
        }
    }

    /// Partitions for a type that is new and is spread over `spread` of them; adds some if the
    /// policy says so.
    fn place<T>(
        &mut self,
        route: &Route<T>,
        config: &Config,
        threads: usize,
        weight: f64,
        spread: usize,
    ) -> Vec<usize> {
        #[allow(clippy::cast_precision_loss)] // at most the number of partitions
        let copies = spread as f64;
        self.weight += weight * copies;
        if let (Selector::ByType, policy @ PartitionPolicy::Adaptive { .. }) =
            (config.selector, config.partitions)
        {
            let wanted = policy.resolve(threads, self.weight).max(spread);
            route.grow(config, threads, wanted);
        }
        self.types_per_partition.resize(route.partition_count(), 0);
        let mut chosen: Vec<usize> = Vec::with_capacity(spread);
        let mut used_threads = vec![0_usize; threads];
        for _ in 0..spread {
            // The fewest types; then a thread that has none of this type yet, so that its instances
            // run in parallel.
            let free = (0..self.types_per_partition.len()).filter(|index| !chosen.contains(index));
            let thread = |index: usize| route.owner(index).load().wanted();
            let best = free.min_by_key(|&index| {
                (used_threads[thread(index)], self.types_per_partition[index], index)
            });
            let Some(best) = best else { break };
            used_threads[thread(best)] += 1;
            self.types_per_partition[best] += 1;
            if self.types_per_partition[best] > 1 {
                // Before any producer finds the type.
                route.partition(best).mix();
            }
            chosen.push(best);
        }
        chosen
    }
}

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
    /// Gives a type its handler, or its handlers, one for each of as many partitions. Where it had
    /// some before: what to wait for until no thread can be inside them.
    pub(crate) fn register<E>(
        &self,
        item_type: &HandledType,
        handlers: Vec<HandlerRef<T>>,
    ) -> Result<Option<Arc<Retired>>, AddHandlerError<E>> {
        check_numbers(item_type, handlers.len()).map_err(AddHandlerError::Config)?;
        let mut control = self.control.lock();
        if control.access != Access::Open && !rule_off(Rule::NoGrowthWhileClosing) {
            return Err(AddHandlerError::Closed(Closed));
        }
        let route = &self.route;
        let known = route.find(item_type.key);
        let number = known.map_or(route.type_count(), |known| known.number);
        let registered =
            Arc::new(TypeHandlers::new(item_type.key, number, &item_type.name, handlers));
        if let Some(known) = known {
            let (instances, partitions) = (registered.handlers.len(), known.partitions.len());
            if instances > 1 && instances != partitions {
                return Err(AddHandlerError::Config(ConfigError(format!(
                    "{} has {partitions} of the queue's partitions for life, so it cannot be spread over {instances}; \
                     give {partitions}, or call add_handler_factory before any other handler of the type",
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
            route.add_idle_handlers(&registered, &known.partitions);
            known.publish(Some(registered));
            return Ok(before.map(|before| self.retire(before, &known.partitions)));
        }
        let (config, threads, spread) =
            (&self.config, self.threads.len(), registered.handlers.len());
        self.check_spread(&item_type.name, spread).map_err(AddHandlerError::Config)?;
        if rule_off(Rule::GrowthKeepsOwners) {
            self.forget_moves(&mut control);
        }
        let partitions = control.growth.place(route, config, threads, item_type.weight, spread);
        control.growth.count_hosted(route, &partitions, None, Some(&registered));
        route.add_idle_handlers(&registered, &partitions);
        route.add_type(registered, partitions);
        Ok(None)
    }

    /// Only for a switched-off rule: what has moved is on its way for ever, and nobody is asked to
    /// hand it over.
    fn forget_moves(&self, control: &mut Control) {
        control.handoffs = Handoffs::default();
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
                "{name} cannot have a factory: only the selector by_type has partitions of one type; use add_handler"
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

    /// Takes a type's handler away. `None`: it had none. Else what to wait for until no thread can
    /// be inside it.
    pub(crate) fn unregister(&self, key: TypeKey) -> Option<Arc<Retired>> {
        let mut control = self.control.lock();
        let known = self.route.find(key)?;
        let before = known.registered()?;
        if control.access == Access::Closed {
            // The drain threads are on their way out, and they close every handler that is still
            // there.
            return None;
        }
        control.growth.count_hosted(&self.route, &known.partitions, Some(&before), None);
        known.publish(None);
        Some(self.retire(before, &known.partitions))
    }
}
