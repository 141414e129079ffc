//! The route: which partition and which handler a type has. One immutable table, replaced as a whole.
//!
//! A type keeps its partition for the queue's life, so growth never reorders it and never lets a second thread into
//! its handler. Growth shares the old partitions, their owner words and their words of the ready set.

use std::fmt;

use rustc_hash::FxHashMap;

use crate::config::{Config, PartitionPolicy, Selector};
use crate::flow::handler::{HandledType, HandlerRef, TypeKey};
use crate::flow::partition::{Partition, segment_size};
use crate::flow::ready::{BITS, ReadyBit, ReadyWord, new_word};
use crate::observe::HandlerTally;
use crate::sync::Arc;

/// One registered type.
pub(crate) struct Registered<T> {
    pub(crate) key: TypeKey,
    /// How many types were registered before it.
    pub(crate) order: usize,
    pub(crate) partition: usize,
    pub(crate) handler: HandlerRef<T>,
    pub(crate) name: Arc<str>,
    pub(crate) tally: HandlerTally,
}

/// One handler instance, which may serve several types.
pub(crate) struct Instance<T> {
    pub(crate) handler: HandlerRef<T>,
    /// Its first type's partition: whoever owns that one calls `on_idle` and `on_close`.
    pub(crate) home: usize,
    pub(crate) has_on_idle: bool,
}

impl<T> Clone for Instance<T> {
    fn clone(&self) -> Self {
        Self { handler: self.handler.clone(), home: self.home, has_on_idle: self.has_on_idle }
    }
}

pub(crate) struct Route<T> {
    pub(crate) version: usize,
    pub(crate) partitions: Vec<Arc<Partition<T>>>,
    pub(crate) words: Vec<ReadyWord>,
    pub(crate) types: FxHashMap<TypeKey, Arc<Registered<T>>>,
    pub(crate) instances: Vec<Instance<T>>,
    types_per_partition: Vec<usize>,
    weight: f64,
}

impl<T> Route<T> {
    /// A route without types.
    pub(crate) fn new(config: &Config, threads: usize, partitions: usize) -> Self {
        let empty = Self {
            version: 0,
            partitions: Vec::new(),
            words: Vec::new(),
            types: FxHashMap::default(),
            instances: Vec::new(),
            types_per_partition: Vec::new(),
            weight: 0.0,
        };
        empty.grown(config, threads, partitions)
    }

    /// The partition of a type. One without a handler gets one by its key, and nothing there will handle it.
    pub(crate) fn partition_of(&self, key: TypeKey) -> usize {
        match self.types.get(&key) {
            Some(registered) => registered.partition,
            // Keys may be addresses: fold the low zero bits away.
            None => (key.0 >> 4) % self.partitions.len(),
        }
    }

    /// The route with one more type, and with the partitions that the policy wants for it.
    pub(crate) fn with_type(
        &self,
        config: &Config,
        threads: usize,
        item_type: HandledType,
        handler: HandlerRef<T>,
    ) -> Self {
        let HandledType { key, name, weight } = item_type;
        let weight = self.weight + weight;
        let wanted = match (config.selector, config.partitions) {
            (Selector::ByType, policy @ PartitionPolicy::Adaptive { .. }) => policy.resolve(threads, weight),
            _ => self.partitions.len(),
        };
        let mut next = self.grown(config, threads, wanted);
        // Its own partition while there are enough, else the one with the fewest types.
        let types = &next.types_per_partition;
        let partition = (0..types.len()).min_by_key(|&index| types[index]).unwrap_or(0);
        next.types_per_partition[partition] += 1;
        if !next.instances.iter().any(|instance| instance.handler.is(&handler)) {
            let has_on_idle = handler.handler.has_on_idle();
            next.instances.push(Instance { handler: handler.clone(), home: partition, has_on_idle });
        }
        let order = next.types.len();
        let registered =
            Registered { key, order, partition, handler, name: name.into(), tally: HandlerTally::default() };
        next.types.insert(key, Arc::new(registered));
        next.weight = weight;
        next
    }

    /// A copy with at least `wanted` partitions. The old ones are shared, counters, owners and all.
    fn grown(&self, config: &Config, threads: usize, wanted: usize) -> Self {
        let mut partitions = self.partitions.clone();
        let mut words = self.words.clone();
        let mut types_per_partition = self.types_per_partition.clone();
        let segment = segment_size(config.buffer_size, config.max_batch_items);
        for index in partitions.len()..wanted {
            if index / BITS == words.len() {
                words.push(new_word());
            }
            let ready = ReadyBit::new(words[index / BITS].clone(), index);
            partitions.push(Arc::new(Partition::new(index, index % threads, ready, config.buffer_size, segment)));
            types_per_partition.push(0);
        }
        Self {
            version: self.version + 1,
            partitions,
            words,
            types: self.types.clone(),
            instances: self.instances.clone(),
            types_per_partition,
            weight: self.weight,
        }
    }
}

impl<T> fmt::Debug for Route<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("version", &self.version)
            .field("partitions", &self.partitions.len())
            .field("types", &self.types.len())
            .finish_non_exhaustive()
    }
}
