//! Waits of handlers for queues, and detection of those that would never end.
//!
//! A handler waits if it puts an item into a full queue or shuts a queue down. While it waits it
//! keeps its handler lock, and a thread of the queue that called it. If what it waits for needs one
//! of these, perhaps through the waits of other handlers, they deadlock. So these waits are
//! recorded here, and checked while they last:
//!
//! 1. assume that all of them are stuck;
//! 2. free each wait whose wish may come true without what the stuck waits keep;
//! 3. repeat step 2 until it frees none.
//!
//! The waits that are left would never end. They are the largest set in which each wait needs
//! another one of the set: the usual test for deadlocks where a wish may have alternatives. Of
//! those on a circle, one gives up: a shutdown returns before the queue has ended, or else the
//! newest put is refused. The queues are not read at the same moment, so a wait gives up only if
//! two checks in a row find it.
//!
//! Waits of threads that no queue needs are not recorded, nor are waits for room with a deadline,
//! which end anyway. Circles through the user's own locks are not detected, nor those through
//! partitions that do not move because `takeover_after` is long.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `table` | threads that begin, check or end such a wait | the writers |
//!
//! Queues are called outside the lock, because a call may drop the last reference to a handler.

use std::convert::Infallible;
use std::fmt::Write;

use slab::Slab;

use crate::item::TypeKey;
use crate::sync::{Arc, AtomicBool, Duration, Forgettable, Instant, Mutex, Ordering};
use crate::threads::context::{KnownThread, call_has_ended, drained_queue, held_lock};

/// How often a waiting handler checks whether its wait can end.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(50);

static WAITS: Forgettable<Waits> = Forgettable::new();

/// The goal of a handler's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Room for items of a type.
    Room { partition: usize, key: TypeKey },
    /// The end of the queue.
    End,
}

/// The resources that a handler keeps while it waits, as addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) lock: Option<usize>,
    /// The queue that lacks the waiting thread.
    pub(crate) thread_of: Option<usize>,
}

/// The resources kept by waits that are assumed to be stuck.
#[derive(Debug, Default)]
pub(crate) struct Stuck(Vec<Kept>);

impl Stuck {
    /// Removes duplicates: a handler that waits for several queues keeps one lock and one thread.
    fn of(all: impl Iterator<Item = Kept>) -> Self {
        let mut stuck = Self::default();
        for kept in all {
            if !stuck.0.contains(&kept) {
                stuck.0.push(kept);
            }
        }
        stuck
    }

    /// Returns the number of stuck threads of a queue.
    pub(crate) fn threads_of(&self, queue: usize) -> usize {
        self.0.iter().filter(|kept| kept.thread_of == Some(queue)).count()
    }

    pub(crate) fn locks(&self) -> impl Iterator<Item = usize> {
        self.0.iter().filter_map(|kept| kept.lock)
    }
}

/// A queue that handlers wait for.
pub(crate) trait Awaited: Send + Sync {
    fn name(&self) -> &str;

    /// Returns the name of the handler with this lock.
    fn handler_at(&self, lock: usize) -> Option<String>;

    /// Whether a wish may come true while `stuck` is never released.
    fn may_come_true(&self, wish: Wish, stuck: &Stuck) -> bool;

    /// Whether a wish needs a resource that a waiting handler keeps.
    fn needs(&self, wish: Wish, kept: Kept) -> bool;

    /// Drops a reference, which may be the last.
    fn let_go(self: Arc<Self>);
}

#[derive(Default)]
struct Waits {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// In the order in which the first wait of each began.
    records: Vec<Record>,
    begun: u64,
    checked: Option<Instant>,
}

/// The waits of one handler call with the same wish.
#[derive(Clone)]
struct Record {
    number: u64,
    kept: Kept,
    queue: Arc<dyn Awaited>,
    wish: Wish,
    /// The number of waits: more than one is possible on an event loop.
    waits: usize,
    /// On an event loop: whether the call has ended before its waits.
    call_has_ended: Option<Arc<AtomicBool>>,
    /// Whether the last check found it on a circle.
    was_on_circle: bool,
    /// The circle for which the wait is given up.
    circle: Option<String>,
}

impl Record {
    fn is_of_ended_call(&self) -> bool {
        // Relaxed: the flag publishes nothing else.
        self.call_has_ended.as_ref().is_some_and(|ended| ended.load(Ordering::Relaxed))
    }
}

/// A wait that a check found on a circle.
struct Found {
    number: u64,
    circle: String,
    is_for_end: bool,
}

/// Returns the positions of the waits that would never end.
fn stuck(records: &[Record]) -> Vec<usize> {
    let mut stuck: Vec<usize> =
        (0..records.len()).filter(|&index| !records[index].is_of_ended_call()).collect();
    loop {
        let before = stuck.len();
        let kept = Stuck::of(stuck.iter().map(|&index| records[index].kept));
        stuck.retain(|&index| {
            let Record { queue, wish, .. } = &records[index];
            !queue.may_come_true(*wish, &kept)
        });
        if stuck.len() == before {
            return stuck;
        }
    }
}

/// Returns the waits on circles, in the order in which they began.
fn find_circles(records: &[Record]) -> Vec<Found> {
    let stuck = stuck(records);
    let found = stuck.iter().filter_map(|&start| {
        let circle = shortest_circle(records, start, &stuck)?;
        let Record { number, wish, .. } = records[start];
        let circle = describe(records, &circle);
        Some(Found { number, circle, is_for_end: wish == Wish::End })
    });
    found.collect()
}

/// Returns the shortest path from a wait, along waits that it needs, back to itself.
fn shortest_circle(records: &[Record], start: usize, stuck: &[usize]) -> Option<Vec<usize>> {
    let mut ways = vec![vec![start]];
    let mut seen = Vec::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let Record { queue, wish, .. } = &records[*way.last()?];
            for &next in stuck {
                if seen.contains(&next) || !queue.needs(*wish, records[next].kept) {
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

/// Describes each handler of a circle and what it waits for.
fn describe(records: &[Record], circle: &[usize]) -> String {
    let mut text = String::new();
    // The previous wait is for the queue that needs this handler.
    let before = circle.iter().cycle().skip(circle.len() - 1);
    for (before, index) in before.zip(circle) {
        let (needed_by, record) = (&records[*before].queue, &records[*index]);
        let handler = record.kept.lock.and_then(|lock| needed_by.handler_at(lock));
        let handler =
            handler.map_or_else(|| "a handler".to_owned(), |name| format!("the handler of {name}"));
        let what = match record.wish {
            Wish::Room { partition, .. } => format!("room in partition {partition}"),
            Wish::End => "the end".to_owned(),
        };
        let (of, queue) = (needed_by.name(), record.queue.name());
        let separator = if text.is_empty() { "" } else { "; " };
        let _ =
            write!(text, "{separator}{handler} in queue {of} waits for {what} of queue {queue}");
    }
    text
}

impl Table {
    /// Gives up one of the waits that two checks in a row found on a circle: the newest for the end
    /// of a queue, which ends all the same, or else the newest for room.
    fn give_up(&mut self, mut found: Vec<Found>) {
        let mut is_giving_up = false;
        for record in &mut self.records {
            let again = found.iter().position(|found| found.number == record.number);
            if again.is_none() {
                record.circle = None;
            }
            // A wait that is given up ends soon, and may free all others.
            is_giving_up |= record.circle.is_some();
            let was_on_circle = std::mem::replace(&mut record.was_on_circle, again.is_some());
            if let Some(again) = again.filter(|_| !was_on_circle) {
                found.remove(again);
            }
        }
        // The newest; waits for an end take precedence.
        let given_up = found.into_iter().max_by_key(|found| (found.is_for_end, found.number));
        if let Some(given_up) = given_up.filter(|_| !is_giving_up)
            && let Some(record) =
                self.records.iter_mut().find(|record| record.number == given_up.number)
        {
            record.circle = Some(given_up.circle);
        }
    }

    fn find(&mut self, number: u64) -> Option<usize> {
        self.records.iter().position(|record| record.number == number)
    }
}

/// A guard while a handler waits.
pub(crate) struct Waiting(u64);

impl Waiting {
    /// Returns `None` if the calling thread holds no handler lock and drains no queue.
    pub(crate) fn begin(queue: Arc<dyn Awaited>, wish: Wish) -> Option<Self> {
        let kept = Kept { lock: held_lock(), thread_of: drained_queue() };
        // Not under loom, whose locks cannot be in a static. The table changes under one lock
        // anyway.
        let is_kept = kept.lock.is_some() || kept.thread_of.is_some();
        if !is_kept || cfg!(loom) {
            return None;
        }
        let call_has_ended = call_has_ended();
        let waits = WAITS.get();
        let mut table = waits.table.lock();
        let same_call = |record: &Record| match (&record.call_has_ended, &call_has_ended) {
            (Some(call), Some(other)) => Arc::ptr_eq(call, other),
            (None, None) => true,
            _ => false,
        };
        let same = |record: &&mut Record| {
            (record.kept, record.wish) == (kept, wish)
                && Arc::ptr_eq(&record.queue, &queue)
                && same_call(record)
        };
        if let Some(record) = table.records.iter_mut().find(same) {
            record.waits += 1;
            return Some(Self(record.number));
        }
        table.begun += 1;
        let number = table.begun;
        table.records.push(Record {
            number,
            kept,
            queue,
            wish,
            waits: 1,
            call_has_ended,
            was_on_circle: false,
            circle: None,
        });
        Some(Self(number))
    }

    /// Returns the circle if the wait is given up. Checks all waits, unless the last check was less
    /// than [`CHECK_EVERY`] ago.
    pub(crate) fn circle(&self) -> Option<String> {
        let waits = WAITS.get();
        let mut table = waits.table.lock();
        let now = Instant::now();
        let is_recent = |last: Instant| now.saturating_duration_since(last) < CHECK_EVERY;
        if !table.checked.is_some_and(is_recent) {
            table.checked = Some(now);
            let records = table.records.clone();
            drop(table);
            let found = find_circles(&records);
            for record in records {
                record.queue.let_go();
            }
            table = waits.table.lock();
            table.give_up(found);
        }
        let index = table.find(self.0)?;
        table.records[index].circle.clone()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waits = WAITS.get();
        let mut table = waits.table.lock();
        let Some(index) = table.find(self.0) else { return };
        table.records[index].waits -= 1;
        let gone = (table.records[index].waits == 0).then(|| table.records.remove(index));
        drop(table);
        if let Some(record) = gone {
            record.queue.let_go();
        }
    }
}

/// Resets the waits in a forked child, where no drain thread exists and the lock may never be
/// released.
#[cfg(feature = "python")]
pub(crate) fn forget() {
    WAITS.forget();
}

/// A producer that waits for room.
#[derive(Debug, Clone)]
pub(crate) struct WaitingProducer {
    pub(crate) since: Instant,
    pub(crate) partition: usize,
    pub(crate) key: TypeKey,
    pub(crate) thread: Arc<KnownThread>,
}

/// The producers that wait for room in a queue. Written under the lock by producers that begin or
/// end a wait, read by the watchdog.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitingProducers(Arc<Mutex<Slab<WaitingProducer>>>);

/// A guard while a producer waits.
#[derive(Debug)]
pub(crate) struct WatchedWait {
    producers: WaitingProducers,
    number: usize,
}

impl WaitingProducers {
    pub(crate) fn begin(
        &self,
        partition: usize,
        key: TypeKey,
        thread: Arc<KnownThread>,
    ) -> WatchedWait {
        let wait = WaitingProducer { since: Instant::now(), partition, key, thread };
        let number = self.0.lock().insert(wait);
        WatchedWait { producers: self.clone(), number }
    }

    /// Returns the wait that has lasted longest, and the number of waits.
    pub(crate) fn longest(&self) -> Option<(WaitingProducer, usize)> {
        let waits = self.0.lock();
        let longest = waits.iter().map(|(_, wait)| wait).min_by_key(|wait| wait.since)?;
        Some((longest.clone(), waits.len()))
    }
}

impl Drop for WatchedWait {
    fn drop(&mut self) {
        self.producers.0.lock().remove(self.number);
    }
}

// Waits of callers, in slices between which a caller can give up.

/// A caller's way to wait. In Rust it just waits; in Python it releases the interpreter while it
/// waits, and checks for signals between slices.
pub trait Pause {
    /// The reason for giving up a wait.
    type Interrupt;

    /// Calls `wait` with the length of one slice; `None` means no limit.
    ///
    /// # Errors
    /// The caller gives up waiting.
    fn pause(
        &mut self,
        wait: &mut (dyn FnMut(Option<Duration>) + Send),
    ) -> Result<(), Self::Interrupt>;
}

/// Waits without slices or interrupts.
#[derive(Debug, Default, Clone, Copy)]
pub struct Wait;

impl Pause for Wait {
    type Interrupt = Infallible;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> Result<(), Infallible> {
        wait(None);
        Ok(())
    }
}

/// Returns the shorter of a pause's slice and the time until `deadline`.
pub(crate) fn slice(limit: Option<Duration>, deadline: Option<Instant>) -> Option<Duration> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    shorter(limit, left)
}

/// Returns the shorter of two limits; `None` means no limit.
pub(crate) fn shorter(first: Option<Duration>, second: Option<Duration>) -> Option<Duration> {
    match (first, second) {
        (Some(first), Some(second)) => Some(first.min(second)),
        (first, second) => first.or(second),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A queue whose room and end need certain handler locks: all of them, or any.
    struct Fake {
        name: &'static str,
        all: &'static [usize],
        any: &'static [usize],
    }

    impl Awaited for Fake {
        fn name(&self) -> &str {
            self.name
        }

        fn handler_at(&self, lock: usize) -> Option<String> {
            (self.all.contains(&lock) || self.any.contains(&lock)).then(|| format!("Type{lock}"))
        }

        fn may_come_true(&self, _wish: Wish, stuck: &Stuck) -> bool {
            let is_held = |lock: &usize| stuck.locks().any(|held| held == *lock);
            !self.all.iter().any(is_held) && (self.any.is_empty() || !self.any.iter().all(is_held))
        }

        fn needs(&self, _wish: Wish, kept: Kept) -> bool {
            kept.lock.is_some_and(|lock| self.handler_at(lock).is_some())
        }

        fn let_go(self: Arc<Self>) {}
    }

    const ROOM: Wish = Wish::Room { partition: 3, key: TypeKey(0) };

    /// Adds a wait of the handler with this lock for a queue that needs all these handler locks.
    fn wait_for_all(table: &mut Table, lock: usize, wish: Wish, all: &'static [usize]) {
        wait_for(table, lock, wish, Fake { name: "q", all, any: &[] });
    }

    fn wait_for(table: &mut Table, lock: usize, wish: Wish, queue: Fake) {
        table.begun += 1;
        let (number, kept) = (table.begun, Kept { lock: Some(lock), thread_of: None });
        let queue = Arc::new(queue);
        table.records.push(Record {
            number,
            kept,
            queue,
            wish,
            waits: 1,
            call_has_ended: None,
            was_on_circle: false,
            circle: None,
        });
    }

    fn check(table: &mut Table) {
        table.give_up(find_circles(&table.records));
    }

    /// Returns the waits that are given up after two checks.
    fn given_up(table: &mut Table) -> Vec<usize> {
        check(table);
        check(table);
        let all = table.records.iter().enumerate();
        all.filter(|(_, record)| record.circle.is_some()).map(|(index, _)| index).collect()
    }

    #[test]
    fn of_a_circle_of_puts_the_newest_gives_up_and_names_it() {
        let mut table = Table::default();
        wait_for(&mut table, 1, ROOM, Fake { name: "b", all: &[2], any: &[] });
        assert!(given_up(&mut table).is_empty());
        wait_for(&mut table, 2, ROOM, Fake { name: "a", all: &[1], any: &[] });
        assert_eq!(given_up(&mut table), [1]);
        assert_eq!(
            table.records[1].circle.as_deref(),
            Some(
                "the handler of Type2 in queue b waits for room in partition 3 of queue a; the \
                 handler of Type1 in queue a waits for room in partition 3 of queue b"
            )
        );
        // The other does not give up: this one's end will free it.
        assert_eq!(given_up(&mut table), [1]);
    }

    #[test]
    fn a_wait_for_an_end_gives_up_before_a_put_that_is_newer() {
        let mut table = Table::default();
        wait_for_all(&mut table, 1, Wish::End, &[2]);
        wait_for_all(&mut table, 2, ROOM, &[1]);
        assert_eq!(given_up(&mut table), [0]);
    }

    #[test]
    fn a_wait_behind_a_circle_does_not_give_up() {
        let mut table = Table::default();
        for (lock, needs) in [(1, &[2][..]), (2, &[3]), (3, &[1]), (4, &[1])] {
            wait_for_all(&mut table, lock, ROOM, needs);
        }
        assert_eq!(given_up(&mut table), [2]);
    }

    #[test]
    fn each_of_two_circles_has_a_wait_that_gives_up() {
        let mut table = Table::default();
        for (lock, needs) in [(1, &[2][..]), (2, &[1]), (3, &[4]), (4, &[3])] {
            wait_for_all(&mut table, lock, ROOM, needs);
        }
        assert_eq!(given_up(&mut table), [3]);
        table.records.remove(3);
        assert_eq!(given_up(&mut table), [1]);
    }

    #[test]
    fn a_wish_with_an_alternative_is_not_stuck() {
        let mut table = Table::default();
        wait_for(&mut table, 1, ROOM, Fake { name: "b", all: &[], any: &[2, 3] });
        wait_for_all(&mut table, 2, ROOM, &[1]);
        assert!(given_up(&mut table).is_empty());
        // The alternative is stuck as well.
        wait_for_all(&mut table, 3, ROOM, &[2]);
        assert_eq!(given_up(&mut table), [2]);
    }

    #[test]
    fn a_wait_gives_up_only_if_two_checks_in_a_row_find_it() {
        let mut table = Table::default();
        wait_for_all(&mut table, 1, ROOM, &[2]);
        wait_for_all(&mut table, 2, ROOM, &[1]);
        check(&mut table);
        assert!(table.records.iter().all(|record| record.circle.is_none()));
        table.records.remove(1);
        check(&mut table);
        wait_for_all(&mut table, 2, ROOM, &[1]);
        check(&mut table);
        assert!(table.records.iter().all(|record| record.circle.is_none()));
        check(&mut table);
        assert!(table.records[1].circle.is_some());
        // The circle was gone before the wait ended.
        table.records.remove(0);
        check(&mut table);
        assert!(table.records[0].circle.is_none());
    }

    #[test]
    fn a_call_that_has_ended_keeps_nothing() {
        let mut table = Table::default();
        wait_for_all(&mut table, 1, ROOM, &[2]);
        wait_for_all(&mut table, 2, ROOM, &[1]);
        let ended = Arc::new(AtomicBool::new(false));
        table.records[0].call_has_ended = Some(ended.clone());
        assert_eq!(find_circles(&table.records).len(), 2);
        ended.store(true, Ordering::Relaxed);
        assert_eq!(find_circles(&table.records).len(), 0);
    }

    #[test]
    fn a_handler_that_waits_for_several_queues_keeps_one_thread() {
        let kept = |lock| Kept { lock: Some(lock), thread_of: Some(7) };
        let stuck = Stuck::of([kept(1), kept(1), kept(2)].into_iter());
        assert_eq!((stuck.threads_of(7), stuck.threads_of(8), stuck.locks().count()), (2, 0, 2));
    }
}
