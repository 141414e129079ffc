//! The route: partitions, type → partition, type → handler.
//!
//! Partitions are only added, in place, and never move. Growth keeps the old ones with their
//! counters, owner words and ready bits, and a type keeps its partition until it is gone, so growth
//! never reorders a type and never lets a second thread into its handler. Producers look up a type
//! without any read-modify-write. The handler of a type is published separately, and a drain thread
//! reads it after a take.
//!
//! A type that is gone leaves its partitions, its place in `types` and its spread to later types. A
//! producer that looked it up earlier may still put an item into the partition. So a partition that
//! gets another type is marked as mixed, and [`Route::target`] finds no handler for the item.
//! Registered handlers know their type and its partitions, so a thread that reads a place which has
//! changed hands notices.
//!
//! | field | written by (under the control lock) | read by |
//! |---|---|---|
//! | `partitions`, `owners`, `ready` | growth | all threads |
//! | `type_table` | registration of a new type, and its end | producers, drain threads |
//! | `types[n].registered` | changes of handlers | drain threads, statistics |
//! | `types[n].name` | registration of a new type | statistics, supervisor |
//! | `spreads` | registration of a new type | producers |
//! | `idle_handlers` | see [`IdleHandlers`] | drain threads after an empty cycle |

pub(crate) mod owner;
pub(crate) mod retirements;
pub(crate) mod type_handlers;
pub(crate) mod type_table;

use std::collections::BTreeMap;
use std::fmt;

use rustc_hash::FxHashMap;

use crate::config::{Config, Selector};
use crate::flow::handler::HandlerRef;
use crate::flow::partition::Partition;
use crate::flow::partition::ready::{ReadySet, Scan};
use crate::flow::route::owner::OwnerWord;
use crate::flow::route::type_handlers::{Partitions, Target, TypeHandlers};
use crate::flow::route::type_table::{Found, TableUse, TypeEntry, TypeTable};
use crate::flow::segments::{SegmentPool, segment_size};
use crate::item::TypeKey;
use crate::sync::{AppendOnly, Arc, AtomicUsize, Mutex, Ordering, PublishedOption};

/// The place of a type, which a later type may reuse.
pub(crate) struct TypeRoute<T> {
    registered: PublishedOption<TypeHandlers<T>>,
    name: Mutex<Arc<str>>,
}

impl<T> TypeRoute<T> {
    pub(crate) fn registered(&self) -> Option<Arc<TypeHandlers<T>>> {
        self.registered.load()
    }

    /// Returns the handlers of the type with this key, if it still has the place.
    fn registered_for(&self, key: TypeKey) -> Option<Arc<TypeHandlers<T>>> {
        self.registered().filter(|registered| registered.key == key)
    }

    /// Publishes the handlers of the type, or none, under the control lock.
    pub(crate) fn publish(&self, registered: Option<Arc<TypeHandlers<T>>>) {
        self.registered.publish(registered);
    }
}

/// The partitions of a type that has several. They stay when the type is gone, because a producer
/// may be about to choose one of them.
#[derive(Debug)]
struct Spread {
    partitions: Partitions,
    /// Selects the partition for the next item.
    next: AtomicUsize,
}

pub(crate) struct Route<T> {
    /// Shared with the type table's entries. The list of pointers is dense and never rewritten, and
    /// each partition occupies separate cache lines.
    partitions: AppendOnly<Arc<Partition<T>>>,
    owners: AppendOnly<OwnerWord>,
    ready: ReadySet,
    type_table: TypeTable<T>,
    types: AppendOnly<TypeRoute<T>>,
    spreads: AppendOnly<Spread>,
    idle_handlers: IdleHandlers<T>,
    pub(crate) segment_pool: Arc<SegmentPool<T>>,
}

impl<T> Route<T> {
    pub(crate) fn new(config: &Config) -> Self {
        let segment_size = segment_size(config.buffer_size, config.max_batch_items);
        Self {
            partitions: AppendOnly::new(),
            owners: AppendOnly::new(),
            ready: ReadySet::new(),
            type_table: TypeTable::new(),
            types: AppendOnly::new(),
            spreads: AppendOnly::new(),
            idle_handlers: IdleHandlers::new(),
            segment_pool: Arc::new(SegmentPool::new(segment_size)),
        }
    }

    // ---- producers

    /// Returns the partition for a type's next item. An unknown type gets one by its key, where no
    /// handler accepts its items.
    #[inline]
    pub(crate) fn partition_for(&self, key: TypeKey) -> &Partition<T> {
        match self.type_table.find_direct(key) {
            Some(partition) => partition,
            None => self.search_partition_for(key),
        }
    }

    #[inline(never)]
    fn search_partition_for(&self, key: TypeKey) -> &Partition<T> {
        match self.type_table.find(key) {
            Some(Found { partition: Some(partition), .. }) => partition,
            Some(found) => self.partition_of(found.entry),
            None => self.partition_for_unknown_type(key),
        }
    }

    #[cold]
    fn partition_for_unknown_type(&self, key: TypeKey) -> &Partition<T> {
        // Keys may be addresses, so drop the low zero bits.
        let partition = self.partition((key.0 >> 4) % self.partition_count());
        partition.mix();
        partition
    }

    /// Returns the partition of a type whose slot does not refer to one.
    #[inline(never)]
    fn partition_of(&self, entry: TypeEntry) -> &Partition<T> {
        if entry.is_spread() {
            let Spread { partitions, next } = self.spread(entry.index());
            // Relaxed: any even spread will do.
            self.partition(partitions[next.fetch_add(1, Ordering::Relaxed) % partitions.len()])
        } else {
            self.partition(entry.index())
        }
    }

    fn spread(&self, number: usize) -> &Spread {
        match self.spreads.get(number) {
            Some(spread) => spread,
            None => unreachable!("an entry is published after its spread"),
        }
    }

    /// Whether the items of a type go to several partitions.
    pub(crate) fn is_spread(&self, key: TypeKey) -> bool {
        self.type_table.find(key).is_some_and(|found| found.entry.is_spread())
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

    // ---- drain threads

    /// Returns the partitions that may have items, in one round that starts after `after`.
    pub(crate) fn ready_after(&self, after: usize) -> Scan<'_> {
        self.ready.scan(self.partition_count(), after)
    }

    /// Returns the handler for items of a type that were in `partition`.
    ///
    /// With the selector `ByType` a partition delivers only to types routed to it: an item put
    /// before its type had a handler may be in another partition, and delivery from there would
    /// break the type's order.
    pub(crate) fn target(
        &self,
        key: TypeKey,
        partition: usize,
        selector: Selector,
    ) -> Option<Target<T>> {
        let entry = self.type_table.find(key)?.entry;
        let registered = self.place_of(entry).registered_for(key)?;
        if selector != Selector::ByType {
            return Some(Target::only(registered));
        }
        let position = registered.partitions.iter().position(|&home| home == partition)?;
        let instance = if registered.handlers.len() == 1 { 0 } else { position };
        Some(Target { registered, instance })
    }

    /// Returns the current or former handler of a type in one of its partitions.
    pub(crate) fn target_in(registered: Arc<TypeHandlers<T>>, partition: usize) -> Target<T> {
        let position = registered.partitions.iter().position(|&home| home == partition);
        let instance = position.filter(|&at| at < registered.handlers.len()).unwrap_or(0);
        Target { registered, instance }
    }

    /// Returns the handlers with `on_idle` whose home `is_mine`.
    pub(crate) fn idle_handlers(&self, is_mine: impl Fn(usize) -> bool) -> Vec<IdleHandler<T>> {
        self.idle_handlers.of(is_mine)
    }

    /// Whether any handler has `on_idle`.
    pub(crate) fn has_idle_handlers(&self) -> bool {
        self.idle_handlers.any()
    }

    /// Whether a handler is still listed as one with `on_idle`.
    pub(crate) fn lists_idle(&self, handler: &HandlerRef<T>) -> bool {
        self.idle_handlers.includes(handler)
    }

    // ---- types

    /// Returns the place of a type that has a handler.
    pub(crate) fn find(&self, key: TypeKey) -> Option<&TypeRoute<T>> {
        let found = self.type_table.find(key).map(|found| self.place_of(found.entry));
        found.filter(|place| place.registered_for(key).is_some())
    }

    fn place_of(&self, entry: TypeEntry) -> &TypeRoute<T> {
        self.place(entry.number())
    }

    /// Returns the place with a number.
    pub(crate) fn place(&self, number: usize) -> &TypeRoute<T> {
        match self.types.get(number) {
            Some(place) => place,
            None => unreachable!("an entry is published after its type"),
        }
    }

    /// Returns the largest number of types that have existed at the same time.
    pub(crate) fn type_count(&self) -> usize {
        self.types.len()
    }

    pub(crate) fn name_of(&self, number: usize) -> String {
        self.types.get(number).map_or_else(String::new, |place| place.name.lock().to_string())
    }

    /// Returns the places of all types, some of which may be free.
    pub(crate) fn types(&self) -> impl Iterator<Item = &TypeRoute<T>> {
        (0..self.type_count()).filter_map(|number| self.types.get(number))
    }

    /// Returns every handler instance that currently handles a type, listed once, with its home
    /// partition.
    pub(crate) fn instances(&self) -> Vec<IdleHandler<T>> {
        let mut known = rustc_hash::FxHashSet::default();
        let mut instances = Vec::new();
        for type_route in self.types() {
            let Some(registered) = type_route.registered() else { continue };
            let homes = &registered.partitions;
            let homes = homes.iter().chain(std::iter::repeat(&homes[0]));
            for (handler, &home) in registered.instances().zip(homes) {
                if known.insert(handler.address()) {
                    instances.push(IdleHandler { handler: handler.clone(), home });
                }
            }
        }
        instances
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

// Changes of the route, under the control lock: partitions are added, types come and go.

impl<T> Route<T> {
    /// Adds partitions up to the `wanted` number.
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

    /// Adds a new type at the place given by the number of its handlers. `spread` is the number of
    /// its spread, if it has several partitions.
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

    /// Removes a type, which producers and drain threads no longer find from here on.
    pub(crate) fn remove_type(&self, usage: &mut TableUse, key: TypeKey) {
        self.type_table.remove(usage, key);
    }

    /// Adds a spread over these partitions and returns its number.
    pub(crate) fn add_spread(&self, partitions: Partitions) -> usize {
        self.spreads.push(Spread { partitions, next: AtomicUsize::new(0) });
        self.spreads.len() - 1
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn spread_count(&self) -> usize {
        self.spreads.len()
    }

    /// Returns the partitions of a spread.
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

    /// Removes handlers that no longer handle any type from that list.
    pub(crate) fn drop_idle_handlers(&self, gone: &[HandlerRef<T>]) {
        for handler in gone.iter().filter(|instance| instance.handler.has_on_idle()) {
            self.idle_handlers.remove(handler);
        }
    }
}

/// A handler instance with `on_idle`.
pub(crate) struct IdleHandler<T> {
    pub(crate) handler: HandlerRef<T>,
    /// The partition whose owner calls it.
    pub(crate) home: usize,
}

impl<T> Clone for IdleHandler<T> {
    fn clone(&self) -> Self {
        Self { handler: self.handler.clone(), home: self.home }
    }
}

/// The handlers by number, and their numbers by the address of the instance.
struct List<T> {
    handlers: BTreeMap<u64, IdleHandler<T>>,
    numbers: FxHashMap<usize, u64>,
    added: u64,
}

/// The handler instances with `on_idle`, in order of registration.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `list` | registration, removal, under the control lock | drain threads after an empty cycle |
/// | `count` | the same, under the lock of the list | the same |
struct IdleHandlers<T> {
    list: Mutex<List<T>>,
    count: AtomicUsize,
}

impl<T> IdleHandlers<T> {
    fn new() -> Self {
        let list = List { handlers: BTreeMap::new(), numbers: FxHashMap::default(), added: 0 };
        Self { list: Mutex::new(list), count: AtomicUsize::new(0) }
    }

    /// Adds an instance unless it is already listed.
    fn add(&self, handler: &HandlerRef<T>, home: usize) {
        let mut list = self.list.lock();
        let number = list.added;
        let List { handlers, numbers, added } = &mut *list;
        numbers.entry(handler.address()).or_insert_with(|| {
            *added += 1;
            handlers.insert(number, IdleHandler { handler: handler.clone(), home });
            number
        });
        self.note_count(&list);
    }

    fn remove(&self, handler: &HandlerRef<T>) {
        let mut list = self.list.lock();
        let number = list.numbers.remove(&handler.address());
        let removed = number.and_then(|number| list.handlers.remove(&number));
        self.note_count(&list);
        drop(list);
        // Outside the lock, because it may be the last reference to the user's handler.
        drop(removed);
    }

    fn includes(&self, handler: &HandlerRef<T>) -> bool {
        self.list.lock().numbers.contains_key(&handler.address())
    }

    fn any(&self) -> bool {
        // Relaxed: a thread that misses the first one calls it after its next empty cycle.
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Returns the handlers whose home `is_mine`.
    fn of(&self, is_mine: impl Fn(usize) -> bool) -> Vec<IdleHandler<T>> {
        if !self.any() {
            return Vec::new();
        }
        let list = self.list.lock();
        list.handlers.values().filter(|idle| is_mine(idle.home)).cloned().collect()
    }

    fn note_count(&self, list: &List<T>) {
        // Relaxed: as in `of`.
        self.count.store(list.handlers.len(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod idle_handlers_tests {
    use super::*;
    use crate::flow::batch::Batch;

    #[test]
    fn an_instance_is_listed_once_in_order_of_registration() {
        let idle = IdleHandlers::new();
        let handlers = [(); 3].map(|()| HandlerRef::new(|_: &mut Batch<u64>| {}));
        let homes = || idle.of(|_| true).iter().map(|idle| idle.home).collect::<Vec<_>>();
        for (home, handler) in handlers.iter().enumerate() {
            idle.add(handler, home);
            idle.add(handler, 7);
        }
        assert_eq!(homes(), [0, 1, 2]);
        idle.remove(&handlers[0]);
        assert!(!idle.includes(&handlers[0]) && idle.includes(&handlers[1]));
        idle.add(&handlers[0], 3);
        assert_eq!(homes(), [1, 2, 3]);
        assert_eq!(idle.of(|home| home == 2).len(), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::flow::route::type_handlers::CallSettings;
    use crate::flow::route::type_table::TableUse;
    use crate::testing::loom::{Number, ONE, Seen, TWO, config, model};

    // Look-ups of handlers while types come and go.

    fn add_type(route: &Route<Number>, usage: &mut TableUse, key: TypeKey) {
        let settings = CallSettings::of_queue(&config(1));
        let handlers = vec![Arc::new(Seen::default()).handler()];
        let registered = TypeHandlers::new(key, 0, "", handlers, settings);
        let home = Partitions::from_elem(0, 1);
        route.add_type(usage, Arc::new(registered.in_partitions(home)), None);
    }

    /// A type goes, and another gets its place and partition, between the two loads of a drain
    /// thread that looks up its handler: it does not find the handler of the other type.
    #[test]
    fn loom_look_up_while_the_place_changes_hands() {
        model(2, || {
            let route = Route::new(&config(1));
            route.grow(&config(1), 1, 1);
            let (route, mut usage) = (Arc::new(route), TableUse::default());
            add_type(&route, &mut usage, ONE);
            let drain_thread = {
                let route = route.clone();
                thread::spawn(move || {
                    let target = route.target(ONE, 0, Selector::ByType);
                    assert!(target.is_none_or(|target| target.registered.key == ONE));
                })
            };
            route.place(0).publish(None);
            route.remove_type(&mut usage, ONE);
            add_type(&route, &mut usage, TWO);
            drain_thread.join().unwrap();
        });
    }
}
