//! Waits of handlers for queues, and which of them would never end.
//!
//! A handler that puts an item into a full queue waits, and so does one that shuts a queue down.
//! Meanwhile it holds its desk, and keeps a thread of the queue that called it. If what it waits
//! for needs one of these, perhaps through the waits of other handlers, they all wait for ever. So
//! these waits are recorded here, and checked while they last:
//!
//! 1. assume that all of them are stuck;
//! 2. free each whose wish may come true without what the stuck ones hold;
//! 3. repeat the second step until it frees none.
//!
//! What is left would never end: it is the largest set of waits each of which needs another one of
//! the set, the usual test for deadlocks where a wish may have alternatives. Of those on a circle,
//! one gives up: a shutdown returns without the end, or else the newest put is refused.
//!
//! Not recorded are waits of threads that no queue needs, and those for room with a deadline, which
//! end anyway. A circle through locks of the user's own is not seen.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `table` | threads that begin, check or end such a wait | the same |

use std::fmt::Write;

use crate::item::TypeKey;
use crate::rules::{Rule, rule_off};
use crate::sync::{Arc, Duration, Forgettable, Instant, Mutex};
use crate::thread_context::{drained_queue, held_desk};

/// How often a waiting handler checks whether its wait can end.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(50);

static WAITS: Forgettable<Waits> = Forgettable::new();

/// What a handler waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Room for so many items of a type.
    Room { partition: usize, key: TypeKey, weight: usize },
    /// The end of the queue.
    End,
}

/// What a handler keeps from others while it waits, as addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) desk: Option<usize>,
    /// The queue that is short of a thread.
    pub(crate) thread_of: Option<usize>,
}

/// What the waits keep that are assumed to be stuck.
#[derive(Debug, Default)]
pub(crate) struct Stuck(Vec<Kept>);

impl Stuck {
    /// How many threads of a queue are stuck.
    pub(crate) fn threads_of(&self, queue: usize) -> usize {
        self.0.iter().filter(|kept| kept.thread_of == Some(queue)).count()
    }

    pub(crate) fn desks(&self) -> impl Iterator<Item = usize> {
        self.0.iter().filter_map(|kept| kept.desk)
    }
}

/// A queue that handlers wait for.
pub(crate) trait Awaited: Send + Sync {
    fn name(&self) -> &str;

    /// What the handler with a desk is called.
    fn handler_at(&self, desk: usize) -> Option<String>;

    /// Whether a wish may come true while `stuck` stays as it is.
    fn may_come_true(&self, wish: Wish, stuck: &Stuck) -> bool;

    /// Whether a wish needs what a waiting handler keeps.
    fn needs(&self, wish: Wish, kept: Kept) -> bool;
}

#[derive(Default)]
struct Waits {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// In the order in which the waits began.
    records: Vec<Record>,
    begun: u64,
    checked: Option<Instant>,
}

struct Record {
    number: u64,
    kept: Kept,
    queue: Arc<dyn Awaited>,
    wish: Wish,
    /// Whether its thread comes back to see whether the wait is given up.
    comes_back: bool,
    /// The wait is given up, because it is on this circle.
    circle: Option<String>,
}

impl Table {
    /// The waits that never end, by position.
    fn stuck(&self) -> Vec<usize> {
        let mut stuck: Vec<usize> = (0..self.records.len()).collect();
        loop {
            let before = stuck.len();
            let kept = Stuck(stuck.iter().map(|&index| self.records[index].kept).collect());
            stuck.retain(|&index| {
                let Record { queue, wish, .. } = &self.records[index];
                !queue.may_come_true(*wish, &kept)
            });
            if stuck.len() == before {
                return stuck;
            }
        }
    }

    /// Gives up a wait on a circle, if there is one: the newest of those for the end of a queue,
    /// which ends all the same, or else the newest for room.
    fn check(&mut self) {
        let stuck = self.stuck();
        let circles: Vec<_> =
            stuck.iter().filter_map(|&start| Some((start, self.circle(start, &stuck)?))).collect();
        // A wait that is given up already ends soon, and may free all others.
        if circles.iter().any(|(start, _)| self.records[*start].circle.is_some()) {
            return;
        }
        let may_give_up = circles.iter().filter(|(start, _)| self.records[*start].comes_back);
        // The last of those that are equal.
        let given_up = may_give_up.max_by_key(|(start, _)| self.records[*start].wish == Wish::End);
        if let Some((start, circle)) = given_up {
            let text = self.describe(circle);
            self.records[*start].circle = Some(text);
        }
    }

    /// The shortest way from a wait over those that it needs back to itself.
    fn circle(&self, start: usize, stuck: &[usize]) -> Option<Vec<usize>> {
        let mut ways = vec![vec![start]];
        let mut seen = Vec::new();
        while !ways.is_empty() {
            let mut longer = Vec::new();
            for way in ways {
                let Record { queue, wish, .. } = &self.records[*way.last()?];
                for &next in stuck {
                    if seen.contains(&next) || !queue.needs(*wish, self.records[next].kept) {
                        continue;
                    }
                    if next == start {
                        return Some(way);
                    }
                    seen.push(next);
                    longer.push(way.iter().copied().chain([next]).collect());
                }
            }
            ways = longer;
        }
        None
    }

    /// Each handler of a circle, and what it waits for.
    fn describe(&self, circle: &[usize]) -> String {
        let mut text = String::new();
        // The queue that the one before waits for is the one that needs the handler.
        let before = circle.iter().cycle().skip(circle.len() - 1);
        for (before, index) in before.zip(circle) {
            let (needed_by, record) = (&self.records[*before].queue, &self.records[*index]);
            let handler = record.kept.desk.and_then(|desk| needed_by.handler_at(desk));
            let handler = handler
                .map_or_else(|| "a handler".to_owned(), |name| format!("the handler of {name}"));
            let what = match record.wish {
                Wish::Room { partition, .. } => format!("room in partition {partition}"),
                Wish::End => "the end".to_owned(),
            };
            let (of, queue) = (needed_by.name(), record.queue.name());
            let separator = if text.is_empty() { "" } else { "; " };
            let _ = write!(
                text,
                "{separator}{handler} in queue {of} waits for {what} of queue {queue}"
            );
        }
        text
    }
}

/// While it lives, a handler waits.
pub(crate) struct Waiting(u64);

impl Waiting {
    /// Returns `None` if the calling thread holds no desk and drains no queue.
    pub(crate) fn begin(queue: Arc<dyn Awaited>, wish: Wish) -> Option<Self> {
        let kept = Kept { desk: held_desk(), thread_of: drained_queue() };
        // Not in loom: its locks cannot be in a static. All of this happens under one lock.
        let is_kept = kept.desk.is_some() || kept.thread_of.is_some();
        if !is_kept || cfg!(loom) || rule_off(Rule::CheckWaits) {
            return None;
        }
        let waits = WAITS.get();
        let mut table = waits.table.lock();
        table.begun += 1;
        let number = table.begun;
        table.records.push(Record { number, kept, queue, wish, comes_back: true, circle: None });
        Some(Self(number))
    }

    /// Returns the circle if the wait is given up. Checks all waits, unless that was done within
    /// the last [`CHECK_EVERY`] and is not `due`.
    pub(crate) fn circle(&self, due: bool) -> Option<String> {
        let waits = WAITS.get();
        let mut table = waits.table.lock();
        let now = Instant::now();
        let is_recent = |last: Instant| now.saturating_duration_since(last) < CHECK_EVERY;
        if due || !table.checked.is_some_and(is_recent) {
            table.checked = Some(now);
            table.check();
        }
        table.records.iter().find(|record| record.number == self.0)?.circle.clone()
    }

    /// From now on, if the wait is on a circle, another one is given up.
    pub(crate) fn stay(&self) {
        let waits = WAITS.get();
        let mut table = waits.table.lock();
        if let Some(record) = table.records.iter_mut().find(|record| record.number == self.0) {
            record.comes_back = false;
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waits = WAITS.get();
        let mut table = waits.table.lock();
        let index = table.records.iter().position(|record| record.number == self.0);
        // Dropped outside the lock, with its reference to the queue.
        let record = index.map(|index| table.records.remove(index));
        drop(table);
        drop(record);
    }
}

/// In a forked child: no drain thread exists here, and the lock may be held for ever.
#[cfg(feature = "python")]
pub(crate) fn forget() {
    WAITS.forget();
}

#[cfg(all(test, not(loom)))]
mod tests;
