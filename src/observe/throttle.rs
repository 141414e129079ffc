//! Log lines at most once per subject and minute, with the number of items since the last line.

use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use crate::sync::{Duration, Instant, Mutex};

const INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Said {
    at: Instant,
    items_since: u64,
}

/// Decides whether a line about a subject is due.
#[derive(Debug)]
pub(crate) struct Throttle<K>(Mutex<FxHashMap<K, Said>>);

impl<K: Eq + Hash> Throttle<K> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(FxHashMap::default()))
    }

    /// Adds `items` to what is known of `subject`. Returns the number since the last line if a line
    /// is due.
    pub(crate) fn note(&self, subject: K, items: u64, now: Instant) -> Option<u64> {
        match self.0.lock().entry(subject) {
            Entry::Vacant(first) => {
                first.insert(Said { at: now, items_since: 0 });
                Some(items)
            }
            Entry::Occupied(mut known) => {
                let said = known.get_mut();
                said.items_since += items;
                if now.duration_since(said.at) < INTERVAL {
                    return None;
                }
                said.at = now;
                Some(std::mem::take(&mut said.items_since))
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_with_the_number_since_the_last() {
        let throttle = Throttle::new();
        let start = Instant::now();
        assert_eq!(throttle.note("A", 3, start), Some(3));
        assert_eq!(throttle.note("A", 4, start + Duration::from_secs(59)), None);
        assert_eq!(throttle.note("B", 1, start + Duration::from_secs(59)), Some(1));
        assert_eq!(throttle.note("A", 5, start + Duration::from_secs(60)), Some(9));
        assert_eq!(throttle.note("A", 2, start + Duration::from_secs(61)), None);
    }
}
