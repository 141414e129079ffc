//! How a snapshot is read from a running queue.

use rustc_hash::FxHashMap;

use crate::control::balance::Balancing;
use crate::flow::handler::{Item, TypeKey};
use crate::observe::{Calling, DrainThreadStats, HandlerStats, PartitionStats, Stats};
use crate::rules::{Rule, rule_off};
use crate::shared::{Consumption, Shared};
use crate::sync::{Duration, Instant, Ordering};

/// A handler that a thread has been inside for longer counts as stuck.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(1);

impl<T: Item> Shared<T> {
    /// What a thread is inside of, for people.
    pub(crate) fn name_of(&self, calling: &Calling) -> String {
        match (calling, &self.consumption) {
            (Calling::Named(name), _) => name.to_string(),
            (Calling::Type(number), Consumption::ByHandler) => self.route.name_of(*number),
            // A consumer's number is its place among them.
            (Calling::Type(_), Consumption::OneConsumer(consumer)) => consumer.name.to_string(),
            (Calling::Type(number), Consumption::PerThread(consumers)) => {
                consumers[*number].name.to_string()
            }
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let route = &self.route;
        let abandoned = self.control.lock().abandoned;
        let balance = self.balancing.as_ref().map(Balancing::figures);
        let now = Instant::now();
        let mut stats = Stats {
            buffer_size: self.config.buffer_size,
            attempts: 0,
            produced: 0,
            refused: 0,
            consumed: 0,
            failed: 0,
            unhandled: 0,
            abandoned,
            queued: 0,
            in_flight: 0,
            rebalances: balance.map_or(0, |figures| figures.rebalances),
            moves: balance.map_or(0, |figures| figures.moves),
            load_ratio: balance.map_or(1.0, |figures| figures.load_ratio),
            longest_handoff: Duration::ZERO,
            partitions: Vec::with_capacity(route.partition_count()),
            handlers: Vec::new(),
            drain_threads: Vec::with_capacity(self.threads.len()),
            stuck_handlers: Vec::new(),
        };
        // Threads first: what is counted as handled here is counted as produced below.
        for (index, slot) in self.threads.iter().enumerate() {
            let counts = slot.tally.counts();
            stats.consumed += counts.consumed;
            stats.failed += counts.failed;
            stats.unhandled += counts.unhandled;
            if let Some((calling, since)) = counts.calling
                && now.duration_since(since) > STUCK_AFTER
            {
                stats.stuck_handlers.push(self.name_of(&calling));
            }
            // Relaxed, as below: figures of each thread, ordered by nothing.
            let handoff = Duration::from_nanos(slot.longest_handoff_ns.load(Ordering::Relaxed));
            stats.longest_handoff = stats.longest_handoff.max(handoff);
            stats.drain_threads.push(DrainThreadStats {
                index,
                items: counts.consumed + counts.failed + counts.unhandled,
                cycles: slot.cycles.load(Ordering::Relaxed),
                cpu: Duration::from_nanos(slot.cpu_ns.load(Ordering::Relaxed)),
            });
        }
        let mut types: FxHashMap<usize, Vec<TypeKey>> = FxHashMap::default();
        for type_route in route.types() {
            let Some(registered) = type_route.registered() else { continue };
            for &partition in &type_route.partitions {
                types.entry(partition).or_default().push(registered.key);
            }
            let counts = registered.tally.counts();
            stats.handlers.push(HandlerStats {
                key: registered.key,
                consumed: counts.consumed,
                failed: counts.failed,
                batches: counts.batches,
                ns_per_item: counts.ns_per_item,
            });
        }
        // What an expired shutdown left behind is abandoned and no longer in use.
        let expired = self.expired.load(Ordering::Acquire);
        for partition in route.partitions() {
            let counts = partition.counts();
            stats.attempts += counts.attempts;
            stats.produced += counts.pushed;
            stats.refused += counts.refused;
            let (queued, mut in_flight) = if expired {
                (0, 0)
            } else {
                (counts.pushed - counts.taken, counts.taken - counts.completed)
            };
            if rule_off(Rule::UsageCountsInFlight) {
                in_flight = 0;
            }
            stats.queued += queued;
            stats.in_flight += in_flight;
            stats.partitions.push(PartitionStats {
                index: partition.index,
                used: queued + in_flight,
                owner: route.owner(partition.index).load().inside(),
                attempts: counts.attempts,
                types: types.remove(&partition.index).unwrap_or_default(),
            });
        }
        stats
    }
}
