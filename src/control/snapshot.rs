//! Reads statistics from a running queue.

use rustc_hash::FxHashMap;

use crate::control::state::{Balancing, Control};
use crate::flow::route::TypeRoute;
use crate::flow::route::type_handlers::Consumption;
use crate::item::{Item, TypeKey};
use crate::observe::{Calling, HandlerCounts, HandlerHistograms, Stats};
use crate::sync::{Duration, now};

impl<T: Item> Control<T> {
    /// Returns the name of what a thread is calling, for logs and statistics.
    pub(crate) fn name_of(&self, calling: &Calling) -> String {
        match (calling, &self.flow.consumption) {
            (Calling::Named(name), _) => name.to_string(),
            (Calling::Batch { number, .. }, Consumption::ByHandler) => {
                self.flow.route.name_of(*number)
            }
            // A consumer's number is its position among the consumers.
            (Calling::Batch { .. }, Consumption::OneConsumer(consumer)) => {
                consumer.name.to_string()
            }
            (Calling::Batch { number, .. }, Consumption::PerThread(consumers)) => {
                consumers[*number].name.to_string()
            }
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let route = &self.flow.route;
        let (mut stats, expired) = {
            let mut state = self.state.lock();
            self.end_some_departures(&mut state);
            let (abandoned, longest_handoff) = (state.abandoned, state.longest_handoff);
            // A later expiry does not count here: its items are still queued or in flight.
            let expired = self.flow.ending.is_expired_under_lock();
            (Stats::new(self.flow.config.buffer_size, abandoned, longest_handoff), expired)
        };
        if let Some(figures) = self.balancing.as_ref().map(Balancing::figures) {
            stats.rebalances = figures.rebalances;
            stats.moves = figures.moves;
            stats.load_ratio = figures.load_ratio;
        }
        stats.thread_count = self.flow.threads.len();
        stats.taken_over = self.supervision.taken_over();
        let now = now();
        let log = self.log_helper.figures(now);
        (stats.log_waiting, stats.log_dropped) = (log.waiting, log.dropped);
        stats.log_in_line = log.in_line;
        // The longest running call of each handler, by handler number.
        let mut in_calls: FxHashMap<usize, Duration> = FxHashMap::default();
        // Threads first: whatever counts as handled here also counts as produced below.
        for (index, slot) in self.flow.threads.iter().enumerate().filter(|(_, slot)| slot.has_run())
        {
            let figures = slot.figures();
            if let Some((Calling::Batch { number, .. }, since)) = &figures.counts.calling {
                let in_call = in_calls.entry(*number).or_default();
                *in_call = now.saturating_duration_since(*since).max(*in_call);
            }
            stats.add_thread(index, &figures, now, |calling| self.name_of(calling));
        }
        let mut types: FxHashMap<usize, Vec<TypeKey>> = FxHashMap::default();
        for type_route in route.types() {
            let Some(registered) = type_route.registered() else { continue };
            for &partition in &registered.partitions {
                types.entry(partition).or_default().push(registered.key);
            }
            let in_call = in_calls.get(&registered.number).copied().unwrap_or_default();
            let add = |counts: &_| stats.add_handler(registered.key, counts, in_call);
            registered.tally.read(add);
        }
        if let Some(counts) = self.consumed_by_consumers() {
            let in_call = in_calls.into_values().max().unwrap_or_default();
            stats.add_handler(TypeKey::CONSUMER, &counts, in_call);
        }
        for partition in route.partitions() {
            let counts = partition.counts();
            let owner = route.owner(partition.index).load().inside();
            let types = types.remove(&partition.index).unwrap_or_default();
            if !expired {
                stats.add_waiting(partition.oldest_put(), now);
            }
            stats.add_partition(counts, owner, types, expired);
        }
        stats.finish(if expired { 0 } else { self.flow.dead_letters.waiting_items() });
        stats
    }

    pub(crate) fn histograms(&self) -> Vec<(TypeKey, HandlerHistograms)> {
        let registered = self.flow.route.types().filter_map(TypeRoute::registered);
        let by_type = registered.map(|registered| (registered.key, registered.tally.counts()));
        let of_consumers = self.consumed_by_consumers().map(|counts| (TypeKey::CONSUMER, counts));
        by_type.chain(of_consumers).map(|(key, counts)| (key, counts.into())).collect()
    }

    /// Returns the merged counts of all consumers, or `None` if the queue has handlers.
    fn consumed_by_consumers(&self) -> Option<HandlerCounts> {
        match &self.flow.consumption {
            Consumption::ByHandler => None,
            Consumption::OneConsumer(consumer) => Some(consumer.tally.counts()),
            Consumption::PerThread(consumers) => {
                let mut all = HandlerCounts::default();
                for consumer in consumers {
                    consumer.tally.read(|counts| all.merge(counts));
                }
                Some(all)
            }
        }
    }
}
