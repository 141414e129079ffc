//! How the route changes, under the control lock: partitions are added, types come and go.

use super::type_table::{TableUse, TypeEntry};
use super::{Partitions, Route, Spread, TypeHandlers, TypeRoute};
use crate::config::Config;
use crate::control::ownership::OwnerWord;
use crate::flow::handler::HandlerRef;
use crate::flow::partition::Partition;
use crate::flow::partition::segment::segment_size;
use crate::item::TypeKey;
use crate::sync::{Arc, AtomicUsize, Mutex, PublishedOption};

impl<T> Route<T> {
    /// Adds partitions until there are `wanted`.
    pub(crate) fn grow(&self, config: &Config, threads: usize, wanted: usize) {
        let segment = segment_size(config.buffer_size, config.max_batch_items);
        for index in self.partition_count()..wanted {
            self.owners.push(OwnerWord::owned(index % threads));
            let partition = Partition::new(
                index,
                self.ready.add(index),
                config.buffer_size,
                segment,
                self.segment_pool.clone(),
            );
            if config.max_delay.is_some_and(|delay| !delay.is_zero()) {
                partition.let_linger();
            }
            self.partitions.push(Arc::new(partition));
        }
    }

    /// Adds a new type, at the place that its handlers have the number of. `spread`: the number of
    /// its spread if it has several partitions.
    pub(crate) fn add_type(
        &self,
        usage: &mut TableUse,
        registered: Arc<TypeHandlers<T>>,
        spread: Option<usize>,
    ) {
        let (key, number, name) = (registered.key, registered.number, registered.name.clone());
        let index = spread.unwrap_or(registered.partitions[0]);
        if let Some(place) = self.types.get(number) {
            *place.name.lock() = name;
            place.publish(Some(registered));
        } else {
            let (registered, name) = (PublishedOption::new(registered), Mutex::new(name));
            self.types.push(TypeRoute { registered, name });
        }
        let entry = TypeEntry::new(number, index, spread.is_some());
        self.type_table.insert(usage, key, entry, &self.partitions);
    }

    /// From here on, producers and drain threads do not find the type any more.
    pub(crate) fn remove_type(&self, usage: &mut TableUse, key: TypeKey) {
        self.type_table.remove(usage, key);
    }

    /// Adds a spread over these partitions. Returns its number.
    pub(crate) fn add_spread(&self, partitions: Partitions) -> usize {
        self.spreads.push(Spread { partitions, next: AtomicUsize::new(0) });
        self.spreads.len() - 1
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn spread_count(&self) -> usize {
        self.spreads.len()
    }

    /// The partitions of a spread.
    pub(crate) fn partitions_of(&self, number: usize) -> &Partitions {
        &self.spread(number).partitions
    }

    /// Adds new handlers to the list of those with `on_idle`.
    pub(crate) fn add_idle_handlers(&self, registered: &TypeHandlers<T>) {
        for (handler, &home) in registered.handlers.iter().zip(&registered.partitions) {
            if handler.handler.has_on_idle() {
                self.idle_handlers.add(handler, home);
            }
        }
    }

    /// Removes from the list the handlers that no longer handle any type.
    pub(crate) fn drop_idle_handlers(&self, gone: &[HandlerRef<T>]) {
        for handler in gone.iter().filter(|instance| instance.handler.has_on_idle()) {
            self.idle_handlers.remove(handler);
        }
    }
}
