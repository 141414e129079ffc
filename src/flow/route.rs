//! The route: partitions, type → partition, type → handler.
//!
//! The route only grows, in place, and its contents never move: growth keeps the old partitions
//! with their counters, owner words and words of the ready set, and a type keeps its partition for
//! the queue's life, so growth never reorders a type and never lets a second thread into its
//! handler. Producers look up a type without any read-modify-write. Only the handler of a type can
//! change; it is published separately, and a drain thread reads it after a take.
//!
//! | field | written by (under the control lock) | read by |
//! |---|---|---|
//! | `partitions`, `owners`, `words` | growth | all threads |
//! | `type_table` | the registration of a new type | producers, drain threads |
//! | `types[n].registered` | add, replace and remove a handler | drain threads, statistics |
//! | `idle_handlers` | see `route/idle_handlers.rs` | drain threads after an empty cycle |

mod idle_handlers;
mod type_handlers;
pub(crate) mod type_table;

use std::fmt;

use crate::config::{Config, Selector};
use crate::control::ownership::OwnerWord;
use crate::flow::handler::HandlerRef;
use crate::flow::partition::Partition;
use crate::flow::partition::ready::{BITS, ReadyBit, ReadyWord, new_word};
use crate::flow::partition::segment::segment_size;
use crate::flow::partition::segment_pool::SegmentPool;
use crate::flow::route::idle_handlers::{IdleHandler, IdleHandlers};
use crate::flow::route::type_table::{TypeEntry, TypeTable};
use crate::item::TypeKey;
use crate::rules::{Rule, rule_off};
use crate::sync::{AppendOnly, Arc, AtomicUsize, Ordering, PublishedOption};

pub(crate) use type_handlers::{Target, TypeHandlers};

/// A type that is, or once was, registered.
pub(crate) struct TypeRoute<T> {
    /// Its partition, or all partitions that a factory spread it over.
    pub(crate) partitions: Vec<usize>,
    /// Selects the partition for the next item.
    next: AtomicUsize,
    registered: PublishedOption<TypeHandlers<T>>,
    name: Arc<str>,
    pub(crate) number: usize,
}

impl<T> TypeRoute<T> {
    pub(crate) fn registered(&self) -> Option<Arc<TypeHandlers<T>>> {
        self.registered.load()
    }

    /// Under the control lock.
    pub(crate) fn publish(&self, registered: Option<Arc<TypeHandlers<T>>>) {
        self.registered.publish(registered);
    }
}

pub(crate) struct Route<T> {
    /// Shared with the type table's entries. The list of pointers is dense and never rewritten, and
    /// each partition occupies separate cache lines.
    partitions: AppendOnly<Arc<Partition<T>>>,
    owners: AppendOnly<OwnerWord>,
    words: AppendOnly<ReadyWord>,
    type_table: TypeTable<T>,
    types: AppendOnly<TypeRoute<T>>,
    idle_handlers: IdleHandlers<T>,
    pub(crate) segment_pool: Arc<SegmentPool<T>>,
}

impl<T> Route<T> {
    pub(crate) fn new(config: &Config) -> Self {
        let segment_size = segment_size(config.buffer_size, config.max_batch_items);
        Self {
            partitions: AppendOnly::new(),
            owners: AppendOnly::new(),
            words: AppendOnly::new(),
            type_table: TypeTable::new(),
            types: AppendOnly::new(),
            idle_handlers: IdleHandlers::new(),
            segment_pool: Arc::new(SegmentPool::new(segment_size)),
        }
    }

    // ---- producers

    /// The partition for a type's next item. An unknown type gets one by its key, where no handler
    /// will accept its items.
    #[inline]
    pub(crate) fn partition_for(&self, key: TypeKey) -> &Partition<T> {
        match self.type_table.find(key) {
            Some(entry) if entry.is_spread => self.next_of(entry),
            Some(entry) if !rule_off(Rule::TypesKeepPartitions) => &entry.partition,
            _ => self.partition_for_unknown_type(key),
        }
    }

    #[cold]
    fn partition_for_unknown_type(&self, key: TypeKey) -> &Partition<T> {
        // Keys may be addresses: drop the low zero bits.
        let partition = self.partition((key.0 >> 4) % self.partition_count());
        partition.mix();
        partition
    }

    #[cold]
    fn next_of(&self, entry: &TypeEntry<T>) -> &Partition<T> {
        let spread = self.type_route(entry);
        // Relaxed: any even spread will do.
        self.partition(
            spread.partitions
                [spread.next.fetch_add(1, Ordering::Relaxed) % spread.partitions.len()],
        )
    }

    /// Whether the items of a type go to several partitions.
    pub(crate) fn is_spread(&self, key: TypeKey) -> bool {
        self.type_table.find(key).is_some_and(|entry| entry.is_spread)
    }

    // ---- partitions

    #[inline]
    pub(crate) fn partition(&self, index: usize) -> &Partition<T> {
        match self.partitions.get(index) {
            Some(partition) => partition,
            None => {
                panic!("partition {index} does not exist; there are {}", self.partition_count())
            }
        }
    }

    pub(crate) fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    pub(crate) fn partitions(&self) -> impl Iterator<Item = &Partition<T>> {
        (0..self.partition_count()).map(|index| self.partition(index))
    }

    pub(crate) fn owner(&self, partition: usize) -> &OwnerWord {
        match self.owners.get(partition) {
            Some(owner) => owner,
            None => {
                panic!("partition {partition} does not exist; there are {}", self.partition_count())
            }
        }
    }

    pub(crate) fn word(&self, index: usize) -> Option<&ReadyWord> {
        self.words.get(index)
    }

    pub(crate) fn word_count(&self) -> usize {
        self.words.len()
    }

    // ---- drain threads

    /// The handler for items of a type that were in `partition`.
    ///
    /// With the selector `ByType` a partition delivers only to types routed to it: an item that was
    /// put before its type had a handler may be in another partition, and delivering it from there
    /// would break the type's order.
    pub(crate) fn target(
        &self,
        key: TypeKey,
        partition: usize,
        selector: Selector,
        known_before: usize,
    ) -> Option<Target<T>> {
        let entry = self.type_table.find(key).filter(|entry| entry.type_number() < known_before)?;
        let type_route = self.type_route(entry);
        if selector != Selector::ByType || rule_off(Rule::TypesKeepPartitions) {
            return type_route.registered().map(Target::only);
        }
        if !entry.is_spread {
            return type_route
                .registered()
                .filter(|_| entry.partition.index == partition)
                .map(Target::only);
        }
        let registered = type_route.registered()?;
        let position = type_route.partitions.iter().position(|&home| home == partition)?;
        let instance = if registered.handlers.len() == 1 { 0 } else { position };
        Some(Target { registered, instance })
    }

    /// The handler that is, or was, that of a type in one of its partitions.
    pub(crate) fn target_in(
        &self,
        registered: Arc<TypeHandlers<T>>,
        partition: usize,
    ) -> Target<T> {
        let homes = self.find(registered.key).map(|known| &known.partitions);
        let position = homes.and_then(|homes| homes.iter().position(|&home| home == partition));
        let instance = position.filter(|&at| at < registered.handlers.len()).unwrap_or(0);
        Target { registered, instance }
    }

    /// The handlers with `on_idle` whose home `is_mine`.
    pub(crate) fn idle_handlers(&self, is_mine: impl Fn(usize) -> bool) -> Vec<IdleHandler<T>> {
        self.idle_handlers.of(is_mine)
    }

    /// Whether a handler is still one of them.
    pub(crate) fn lists_idle(&self, handler: &HandlerRef<T>) -> bool {
        self.idle_handlers.includes(handler)
    }

    // ---- types

    pub(crate) fn find(&self, key: TypeKey) -> Option<&TypeRoute<T>> {
        self.type_table.find(key).map(|entry| self.type_route(entry))
    }

    fn type_route(&self, entry: &TypeEntry<T>) -> &TypeRoute<T> {
        match self.types.get(entry.type_number()) {
            Some(type_route) => type_route,
            None => unreachable!("an entry is published after its type"),
        }
    }

    pub(crate) fn type_count(&self) -> usize {
        self.types.len()
    }

    pub(crate) fn name_of(&self, number: usize) -> String {
        self.types.get(number).map_or_else(String::new, |type_route| type_route.name.to_string())
    }

    /// All types that were ever registered, in order of registration.
    pub(crate) fn types(&self) -> impl Iterator<Item = &TypeRoute<T>> {
        (0..self.type_count()).filter_map(|number| self.types.get(number))
    }

    /// Every handler instance that currently handles a type, listed once, with its home partition.
    pub(crate) fn instances(&self) -> Vec<IdleHandler<T>> {
        let mut known = rustc_hash::FxHashSet::default();
        let mut instances = Vec::new();
        for type_route in self.types() {
            let Some(registered) = type_route.registered() else { continue };
            let homes =
                type_route.partitions.iter().chain(std::iter::repeat(&type_route.partitions[0]));
            for (handler, &home) in registered.instances().zip(homes) {
                if known.insert(handler.address()) {
                    instances.push(IdleHandler { handler: handler.clone(), home });
                }
            }
        }
        instances
    }

    // ---- growth, under the control lock

    /// Adds partitions until there are `wanted`.
    pub(crate) fn grow(&self, config: &Config, threads: usize, wanted: usize) {
        let segment = segment_size(config.buffer_size, config.max_batch_items);
        for index in self.partition_count()..wanted {
            if index / BITS == self.word_count() {
                self.words.push(new_word());
            }
            let Some(word) = self.words.get(index / BITS).cloned() else {
                unreachable!("just added")
            };
            self.owners.push(OwnerWord::owned(index % threads));
            let ready = ReadyBit::new(word, index);
            let partition = Partition::new(
                index,
                ready,
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

    /// Adds a new type, with its partitions for the queue's life.
    pub(crate) fn add_type(&self, registered: Arc<TypeHandlers<T>>, partitions: Vec<usize>) {
        let (key, number, name) = (registered.key, registered.number, registered.name.clone());
        let Some(first) = self.partitions.get(partitions[0]).cloned() else {
            unreachable!("growth came first")
        };
        let entry = TypeEntry::new(key, number, first, partitions.len() > 1);
        let registered = PublishedOption::new(registered);
        self.types.push(TypeRoute {
            partitions,
            next: AtomicUsize::new(0),
            registered,
            name,
            number,
        });
        self.type_table.insert(entry);
    }

    /// Adds new handlers to the list of those with `on_idle`.
    pub(crate) fn add_idle_handlers(&self, registered: &TypeHandlers<T>, partitions: &[usize]) {
        for (handler, &home) in registered.handlers.iter().zip(partitions) {
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

impl<T> fmt::Debug for Route<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("partitions", &self.partition_count())
            .field("types", &self.types.len())
            .finish_non_exhaustive()
    }
}
