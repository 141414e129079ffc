//! Limits log lines to one per subject and minute, with the number of items since the last line.
//!
//! A few subjects have their own lines; all others share one.

use std::hash::Hash;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::sync::{Duration, Instant, Mutex};

const INTERVAL: Duration = Duration::from_secs(60);

/// The most subjects with their own lines. A subject that was quiet for two intervals makes room.
const MOST_SUBJECTS: usize = 16;

/// A line that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// A line about the subject, with the number of its items since its last line.
    Subject(u64),
    /// A line about all subjects without their own lines.
    Others(Others),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Others {
    pub(crate) items: u64,
    /// The number of subjects that the items belong to.
    pub(crate) subjects: usize,
}

/// Items that were counted but never logged, with subjects by label.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) subjects: Vec<(String, u64)>,
    pub(crate) others: Option<Others>,
}

#[derive(Debug)]
struct Said {
    /// The time of the last line.
    at: Instant,
    /// The time of the last item.
    last: Instant,
    items_since: u64,
    label: String,
}

#[derive(Debug)]
struct Known<K> {
    subjects: FxHashMap<K, Said>,
    /// The time of the last item of each forgotten subject. A forgotten subject keeps its place
    /// until it would have been quiet for two intervals: otherwise each new subject would get a
    /// line.
    forgotten: Vec<Instant>,
    others: FxHashSet<K>,
    /// Forgotten subjects that had no lines, or had unlogged items.
    forgotten_others: usize,
    other_items: u64,
    others_at: Option<Instant>,
}

/// Decides whether a line about a subject is due.
#[derive(Debug)]
pub(crate) struct Throttle<K>(Mutex<Known<K>>);

impl<K: Eq + Hash> Throttle<K> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Known {
            subjects: FxHashMap::default(),
            forgotten: Vec::new(),
            others: FxHashSet::default(),
            forgotten_others: 0,
            other_items: 0,
            others_at: None,
        }))
    }

    /// Counts `items` of `subject`. Returns the line that is due, if any.
    pub(crate) fn note(&self, subject: K, items: u64, now: Instant) -> Option<Due> {
        let known = &mut *self.0.lock();
        if let Some(said) = known.subjects.get_mut(&subject) {
            said.items_since += items;
            said.last = now;
            if now.duration_since(said.at) < INTERVAL {
                return None;
            }
            said.at = now;
            return Some(Due::Subject(std::mem::take(&mut said.items_since)));
        }
        known.forget_quiet(now);
        if known.has_room() {
            known
                .subjects
                .insert(subject, Said { at: now, last: now, items_since: 0, label: String::new() });
            return Some(Due::Subject(items));
        }
        known.others.insert(subject);
        known.other_items += items;
        if known.others_at.is_some_and(|at| now.duration_since(at) < INTERVAL) {
            return None;
        }
        known.others_at = Some(now);
        known.take_others().map(Due::Others)
    }

    /// Forgets a subject whose key will be reused. Its unlogged items count as items of others.
    pub(crate) fn forget(&self, subject: &K) {
        let known = &mut *self.0.lock();
        if let Some(said) = known.subjects.remove(subject) {
            known.forgotten.push(said.last);
            known.other_items += said.items_since;
            known.forgotten_others += usize::from(said.items_since > 0);
        } else if known.others.remove(subject) {
            known.forgotten_others += 1;
        }
    }

    /// [`note`](Self::note) for a throttle with few subjects: returns the number of items since the
    /// last line if a line is due.
    pub(crate) fn items_due(&self, subject: K, items: u64, now: Instant) -> Option<u64> {
        match self.note(subject, items, now)? {
            Due::Subject(items) => Some(items),
            Due::Others(_) => None,
        }
    }

    /// Sets the name of a subject in [`Rest`]. Called with each of its lines.
    pub(crate) fn label(&self, subject: &K, label: &str) {
        if let Some(said) = self.0.lock().subjects.get_mut(subject)
            && said.label != label
        {
            label.clone_into(&mut said.label);
        }
    }

    /// Takes the items that were counted but never logged.
    pub(crate) fn take_rest(&self) -> Rest {
        let known = &mut *self.0.lock();
        let take = |said: &mut Said| {
            let items = std::mem::take(&mut said.items_since);
            (items > 0).then(|| (said.label.clone(), items))
        };
        let subjects = known.subjects.values_mut().filter_map(take).collect();
        Rest { subjects, others: known.take_others() }
    }
}

impl<K: Eq + Hash> Known<K> {
    fn has_room(&self) -> bool {
        self.subjects.len() + self.forgotten.len() < MOST_SUBJECTS
    }

    fn forget_quiet(&mut self, now: Instant) {
        if !self.has_room() {
            self.forgotten.retain(|last| now.duration_since(*last) < 2 * INTERVAL);
            let is_quiet = |said: &Said| {
                said.items_since == 0 && now.duration_since(said.last) >= 2 * INTERVAL
            };
            self.subjects.retain(|_, said| !is_quiet(said));
        }
    }

    fn take_others(&mut self) -> Option<Others> {
        let subjects = self.others.len() + std::mem::take(&mut self.forgotten_others);
        let items = std::mem::take(&mut self.other_items);
        // Releases its memory, too.
        self.others = FxHashSet::default();
        (items > 0).then_some(Others { items, subjects })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_one_line_a_minute_with_all_items_since() {
        let throttle = Throttle::new();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(throttle.note("A", 3, start), Some(Due::Subject(3)));
        assert_eq!(throttle.note("A", 4, at(59)), None);
        assert_eq!(throttle.note("B", 1, at(59)), Some(Due::Subject(1)));
        assert_eq!(throttle.note("A", 5, at(60)), Some(Due::Subject(9)));
        assert_eq!(throttle.note("A", 2, at(61)), None);
        throttle.label(&"A", "type A");
        let subjects = vec![("type A".to_owned(), 2)];
        assert_eq!(throttle.take_rest(), Rest { subjects, others: None });
        assert_eq!(throttle.take_rest(), Rest { subjects: vec![], others: None });
    }

    #[test]
    fn further_subjects_share_a_line() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        let lines = (0..20_000).filter_map(|subject| throttle.note(subject, 2, start)).collect();
        let lines: Vec<Due> = lines;
        assert_eq!(lines.len(), MOST_SUBJECTS + 1);
        assert_eq!(lines.last(), Some(&Due::Others(Others { items: 2, subjects: 1 })));
        let subjects = 20_000 - MOST_SUBJECTS - 1;
        let others = Some(Others { items: 2 * subjects as u64, subjects });
        assert_eq!(throttle.take_rest(), Rest { subjects: vec![], others });
    }

    #[test]
    fn subjects_that_are_quiet_make_room() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        for subject in 0..MOST_SUBJECTS {
            throttle.note(subject, 1, start);
        }
        let later = start + 2 * INTERVAL;
        assert_eq!(throttle.note(1_000, 1, later), Some(Due::Subject(1)));
        assert_eq!(throttle.0.lock().subjects.len(), 1);
    }

    #[test]
    fn forgotten_subjects_are_counted_and_keep_their_places() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        let mut lines = 0;
        for subject in 0..20_000 {
            lines += usize::from(throttle.note(subject, 2, start).is_some());
            throttle.note(subject, 3, start);
            throttle.forget(&subject);
        }
        assert_eq!(lines, MOST_SUBJECTS + 1, "each would have a line otherwise");
        {
            let known = throttle.0.lock();
            assert!(known.subjects.is_empty() && known.others.is_empty());
            assert_eq!(known.forgotten.len(), MOST_SUBJECTS);
        }
        // The line about others had the unlogged items of those before, and the first items of this
        // one.
        let logged = 2 * MOST_SUBJECTS + (3 * MOST_SUBJECTS + 2);
        let (items, subjects) = ((5 * 20_000 - logged) as u64, 20_000 - MOST_SUBJECTS);
        let others = Some(Others { items, subjects });
        assert_eq!(throttle.take_rest(), Rest { subjects: vec![], others });
        assert!(throttle.note(0, 1, start + 2 * INTERVAL).is_some());
        assert!(throttle.0.lock().forgotten.is_empty());
    }
}
