//! How statistics are read from a running queue.

use rustc_hash::FxHashMap;

use crate::control::balance::Balancing;
use crate::flow::handler::consumption::Consumption;
use crate::item::{Item, TypeKey};
use crate::observe::{Calling, Stats};
use crate::shared::Shared;
use crate::sync::Instant;

impl<T: Item> Shared<T> {
    /// What a thread is inside of, for logs and statistics.
    pub(crate) fn name_of(&self, calling: &Calling) -> String {
        match (calling, &self.consumption) {
            (Calling::Named(name), _) => name.to_string(),
            (Calling::Batch { number, .. }, Consumption::ByHandler) => self.route.name_of(*number),
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
        let route = &self.route;
        let (mut stats, expired) = {
            let mut control = self.control.lock();
            self.end_some_departures(&mut control);
            let (abandoned, longest_handoff) = (control.abandoned, control.longest_handoff);
            // An expiry after this is not seen: its items are still queued or in flight.
            let expired = self.ending.is_expired_under_lock();
            (Stats::new(self.config.buffer_size, abandoned, longest_handoff), expired)
        };
        if let Some(figures) = self.balancing.as_ref().map(Balancing::figures) {
            stats.rebalances = figures.rebalances;
            stats.moves = figures.moves;
            stats.load_ratio = figures.load_ratio;
        }
        stats.thread_count = self.threads.len();
        stats.taken_over = self.supervision.taken_over();
        let now = Instant::now();
        // Threads first: what is counted as handled here is counted as produced below.
        for (index, slot) in self.threads.iter().enumerate().filter(|(_, slot)| slot.has_run()) {
            stats.add_thread(index, &slot.figures(), now, |calling| self.name_of(calling));
        }
        let mut types: FxHashMap<usize, Vec<TypeKey>> = FxHashMap::default();
        for type_route in route.types() {
            let Some(registered) = type_route.registered() else { continue };
            for &partition in &registered.partitions {
                types.entry(partition).or_default().push(registered.key);
            }
            stats.add_handler(registered.key, registered.tally.counts());
        }
        for partition in route.partitions() {
            let counts = partition.counts();
            let owner = route.owner(partition.index).load().inside();
            let types = types.remove(&partition.index).unwrap_or_default();
            stats.add_partition(counts, owner, types, expired);
        }
        stats.finish(if expired { 0 } else { self.dead_letters.waiting_items() });
        stats
    }
}
