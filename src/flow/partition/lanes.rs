//! The lanes of a partition: its items that are taken and not settled.
//!
//! Everything here changes under the partition's `lanes` lock, which is held for a few statements
//! and never during a call of a handler.

use std::collections::{BTreeSet, VecDeque};

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::flow::batch::Batch;
use crate::flow::deadlines::LastTry;
use crate::flow::handler::lock::JobPlace;
use crate::flow::partition::lane::{Job, Lane, Outstanding, STALLED_AFTER, Since, State};
use crate::flow::segments::PutTime;
use crate::item::{Item, TypeKey};
use crate::observe::{CallTime, measures};
use crate::sync::{Deadline, Duration, Instant};

/// The events that the lanes of a partition wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LaneUse {
    /// There are no lanes.
    Empty,
    /// All lanes wait for calls.
    Calls,
    /// As `Calls`, and the owner has noted that it waits, so the end of a call notifies it.
    NotedCalls,
    /// No lane has work for the owner now; some back off, or wait elsewhere, until a deadline.
    Timer,
    /// At least one lane waits for the owner, now or later.
    Owner,
}

impl LaneUse {
    pub(crate) fn of(number: u8) -> Self {
        match number {
            0 => Self::Empty,
            1 => Self::Calls,
            2 => Self::NotedCalls,
            3 => Self::Timer,
            _ => Self::Owner,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Lanes<T> {
    all: Slab<Lane<T>>,
    /// The lane of one type, kept apart from `others`: most partitions hold one type, which then
    /// needs no hashing.
    first: Option<(TypeKey, usize)>,
    others: FxHashMap<TypeKey, usize>,
    ready: VecDeque<usize>,
    /// The lanes that have a deadline.
    due: BTreeSet<(Deadline, usize)>,
    /// Items that are not in flight, by weight.
    held: usize,
    /// Held items of stalled lanes, by weight.
    stalled: usize,
    /// Types that are no longer stalled, which is still to be published.
    recovered: Vec<TypeKey>,
    /// Items settled so far, by weight.
    settled: u64,
    /// The durations of the calls of its handlers.
    calls: CallTime,
    /// Whether a lane stopped a turn.
    was_stopped: bool,
    /// The number of the news of deadlines at which the last tries began here.
    last_tries: Option<usize>,
}

impl<T> Lanes<T> {
    pub(crate) fn new() -> Self {
        Self {
            all: Slab::new(),
            first: None,
            others: FxHashMap::default(),
            ready: VecDeque::new(),
            due: BTreeSet::new(),
            held: 0,
            stalled: 0,
            recovered: Vec::new(),
            settled: 0,
            calls: CallTime::default(),
            was_stopped: false,
            last_tries: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn lane_use(&self) -> LaneUse {
        if self.is_empty() {
            LaneUse::Empty
        } else if !self.ready.is_empty() {
            LaneUse::Owner
        } else if !self.due.is_empty() {
            self.use_of_due()
        } else if self.was_stopped {
            LaneUse::NotedCalls
        } else {
            LaneUse::Calls
        }
    }

    pub(crate) fn count_ready(&self) -> usize {
        self.ready.len()
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Returns the held items that count against the bound.
    pub(crate) fn counted(&self) -> usize {
        self.held - self.stalled
    }

    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// Returns the position before which no item of any lane was put; `taken` if there are no
    /// lanes.
    pub(crate) fn completed(&self, taken: u64) -> u64 {
        self.all.iter().map(|(_, lane)| lane.start.taken).min().unwrap_or(taken)
    }

    // ---- take

    /// Notes that a turn left something undone because of the lanes: the end of a lane brings the
    /// owner back.
    pub(crate) fn note_stopped(&mut self) {
        self.was_stopped = true;
    }

    /// Returns the lane of a type, to which items are about to be added. Creates it if there is
    /// none.
    #[inline]
    pub(crate) fn lane_of(&mut self, key: TypeKey, since: Since) -> usize {
        if let Some(lane) = self.find(key) {
            self.all[lane].begin_run(since);
            return lane;
        }
        let lane = self.all.insert(Lane::new(key, since));
        self.ready.push_back(lane);
        if self.first.is_none() {
            self.first = Some((key, lane));
        } else {
            self.others.insert(key, lane);
        }
        lane
    }

    #[inline]
    fn find(&self, key: TypeKey) -> Option<usize> {
        match self.first {
            Some((first, lane)) if first == key => Some(lane),
            _ if self.others.is_empty() => None,
            _ => self.others.get(&key).copied(),
        }
    }

    /// Adds a segment to the tail of a lane.
    #[inline]
    pub(crate) fn add_segment(&mut self, lane: usize, segment: Vec<T>, weight: usize) {
        self.all[lane].tail.push_segment(segment, weight);
        self.note_added(lane, weight);
    }

    #[inline]
    fn note_added(&mut self, index: usize, weight: usize) {
        let lane = &mut self.all[index];
        lane.note_added(weight);
        self.held += weight;
        if lane.is_stalled {
            self.stalled += weight;
        }
        if lane.is_full() {
            self.make_ready(index);
        }
    }

    // ---- submit

    /// Removes the next lane from the list of ready ones. The caller decides its next state.
    pub(crate) fn next_ready(&mut self) -> Option<usize> {
        self.ready.pop_front()
    }

    /// Whether the lane's job waits for room in a box of dead letters.
    pub(crate) fn is_dead(&self, lane: usize) -> bool {
        self.all[lane].failed.as_ref().is_some_and(|job| job.dead.is_some())
    }

    pub(crate) fn key(&self, lane: usize) -> TypeKey {
        self.all[lane].key
    }

    /// Returns the drain thread whose consumer has tried the lane's job, if each thread has its own
    /// consumer.
    pub(crate) fn tried_by(&self, lane: usize) -> Option<usize> {
        self.all[lane].failed.as_ref().and_then(|job| job.tried_by)
    }

    /// Posts a lane whose job has a ticket at a handler lock. With a deadline, the job is submitted
    /// again at that time.
    pub(crate) fn post(&mut self, lane: usize, lock: usize, until: Option<Deadline>) {
        self.set_state(lane, State::Posted(lock, until));
    }

    pub(crate) fn is_posted(&self, lane: usize, lock: usize) -> bool {
        let state = self.all.get(lane).map(|lane| lane.state);
        matches!(state, Some(State::Posted(at, _)) if at == lock)
    }

    pub(crate) fn is_ready(&self, lane: usize) -> bool {
        self.all.get(lane).is_some_and(|lane| lane.state == State::Ready)
    }

    /// Makes a lane that was posted at a handler lock ready. Returns `false` if it no longer waits
    /// there.
    pub(crate) fn recall(&mut self, lane: usize, lock: usize) -> bool {
        let is_posted = self.is_posted(lane, lock);
        if is_posted {
            self.make_ready(lane);
        }
        is_posted
    }

    /// Resubmits the job of a type whose handler has changed. Returns whether there is a job that
    /// is not in flight.
    pub(crate) fn recall_type(&mut self, key: TypeKey) -> bool {
        let Some(lane) = self.find(key) else { return false };
        match self.all[lane].state {
            State::Ready => true,
            State::Running(_) => false,
            State::Posted(..) | State::BackingOff(_) | State::Lingering { .. } => {
                self.make_ready(lane);
                true
            }
        }
    }

    fn make_ready(&mut self, lane: usize) {
        self.set_state(lane, State::Ready);
        self.ready.push_back(lane);
    }

    #[inline]
    fn set_state(&mut self, index: usize, state: State) {
        let lane = &mut self.all[index];
        if let Some(until) = lane.state.due() {
            self.due.remove(&(until, index));
        }
        lane.state = state;
        if let Some(until) = state.due() {
            self.due.insert((until, index));
        }
    }

    /// Takes the job of a lane: the one to be retried, or else up to `most` items of the tail.
    /// `lock` is the address of the handler's lock, or 0.
    #[inline]
    pub(crate) fn take_job(
        &mut self,
        partition: usize,
        index: usize,
        most: usize,
        lock: usize,
    ) -> Job<T>
    where
        T: Item,
    {
        self.set_state(index, State::Running(lock));
        let lane = &mut self.all[index];
        let failed = lane.failed.take().map(|failed| *failed);
        let job = failed.unwrap_or_else(|| {
            let outstanding = lane.outstanding.take();
            let most = outstanding.as_ref().map_or(most, |outstanding| outstanding.items.min(most));
            let put_at = measures().then(|| lane.tail_start().put_at.into());
            let (batch, excess) = lane.split_tail(most);
            Job {
                place: JobPlace { partition, lane: index },
                items: batch.len(),
                excess,
                batch,
                pieces: Vec::new(),
                tries: 0,
                took: Duration::ZERO,
                put_at,
                call: None,
                tried_by: None,
                dead: None,
                _unsettled: outstanding.map(|outstanding| outstanding.unsettled),
            }
        });
        let weight = job.weight();
        self.held -= weight;
        if lane.is_stalled {
            self.stalled -= weight;
            self.end_stall_if_empty(index);
        }
        job
    }

    // ---- settle

    /// Notes the duration of a call.
    #[inline]
    pub(crate) fn note_call(&mut self, took: Duration) {
        self.calls.add(took);
    }

    #[inline]
    pub(crate) fn calls(&self) -> CallTime {
        self.calls
    }

    /// Whether there are lanes, and all of them back off.
    pub(crate) fn back_off(&self) -> bool {
        !self.is_empty()
            && self.all.iter().all(|(_, lane)| matches!(lane.state, State::BackingOff(_)))
    }

    /// Ends the settled job of a lane. Returns whether the owner has something to do here.
    #[inline]
    pub(crate) fn end(&mut self, index: usize, items: usize) -> bool {
        self.settled += items as u64;
        // Outstanding items may still be queued.
        if self.all[index].end_job() || self.all[index].outstanding.is_some() {
            self.make_ready(index);
        } else {
            let key = self.all.remove(index).key;
            if self.first.is_some_and(|(first, _)| first == key) {
                self.first = None;
            } else {
                self.others.remove(&key);
            }
        }
        std::mem::take(&mut self.was_stopped) || !self.ready.is_empty()
    }

    /// Puts back the rest of a lane's job, to be retried at `until`, ahead of the tail. `settled`
    /// of its items are settled.
    pub(crate) fn retry(&mut self, job: Job<T>, until: Deadline, settled: usize) {
        // A box announces its room to the lanes posted at its address.
        let state = match &job.dead {
            Some(dead) => State::Posted(dead.to.address(), Some(until)),
            None => State::BackingOff(until),
        };
        self.settled += settled as u64;
        let weight = job.weight();
        self.held += weight;
        let index = job.place.lane;
        let lane = &mut self.all[index];
        if lane.is_stalled {
            self.stalled += weight;
        }
        lane.failed = Some(Box::new(job));
        self.set_state(index, state);
    }

    /// Takes out all items that are not in flight, after expiry.
    pub(crate) fn discard(&mut self) -> Vec<Batch<T>> {
        let mut items = Vec::new();
        for (_, lane) in &mut self.all {
            if let Some(job) = lane.failed.take() {
                items.push(job.batch);
                items.extend(job.pieces.into_iter().map(|piece| piece.batch));
            }
            items.push(std::mem::take(&mut lane.tail));
            if std::mem::take(&mut lane.is_stalled) {
                self.recovered.push(lane.key);
            }
        }
        self.all.retain(|_, lane| matches!(lane.state, State::Running(_)));
        self.ready.clear();
        self.due.clear();
        (self.held, self.stalled) = (0, 0);
        items
    }
}

// Stalled lanes, whose items do not count against the bound; see `partition/room.rs`.

impl<T> Lanes<T> {
    /// Marks the lanes whose job has waited too long as stalled, and calls `each` with their types.
    pub(crate) fn mark_stalled(&mut self, now: Instant, mut each: impl FnMut(TypeKey)) {
        for (_, lane) in &mut self.all {
            let held = lane.held();
            if held > 0 && !lane.is_stalled && lane.has_waited(STALLED_AFTER, now) {
                lane.is_stalled = true;
                self.stalled += held;
                each(lane.key);
            }
        }
    }

    /// Ends the stall of a lane that holds nothing outside its job in flight.
    #[cold]
    fn end_stall_if_empty(&mut self, index: usize) {
        let lane = &mut self.all[index];
        if lane.held() == 0 {
            lane.is_stalled = false;
            self.recovered.push(lane.key);
        }
    }

    #[inline]
    pub(crate) fn has_recovered(&self) -> bool {
        !self.recovered.is_empty()
    }

    pub(crate) fn take_recovered(&mut self) -> Vec<TypeKey> {
        std::mem::take(&mut self.recovered)
    }
}

// The batch limit: the rest that it leaves in a lane, and how the rest is filled up.

impl<T> Lanes<T> {
    /// Returns how many items the only lane lacks for a batch of `most`, if the lane is ready or
    /// lingers and its next job comes from the tail.
    pub(crate) fn room_in_only(&self, most: usize) -> Option<usize> {
        let (_, lane) = self.all.iter().next().filter(|_| self.all.len() == 1)?;
        let takes_more = matches!(lane.state, State::Ready | State::Lingering { .. });
        let takes_more = takes_more && lane.failed.is_none();
        takes_more.then(|| most.saturating_sub(lane.tail.len())).filter(|&room| room > 0)
    }

    /// Puts back the rest of an item that was cut at the batch limit. Returns it if the tail was
    /// discarded meanwhile.
    pub(crate) fn put_back(&mut self, lane: usize, rest: T) -> Option<T> {
        let tail = &mut self.all[lane].tail;
        if tail.is_empty() {
            return Some(rest);
        }
        tail.push_front(rest);
        None
    }

    /// Removes the weight of an item's lost rest from the tail: it counts with the job in flight.
    pub(crate) fn lose_rest(&mut self, index: usize, weight: usize) {
        let lane = &mut self.all[index];
        if lane.tail.is_empty() {
            return;
        }
        lane.lose(weight);
        self.held -= weight;
        if lane.is_stalled {
            self.stalled -= weight;
            self.end_stall_if_empty(index);
        }
    }
}

// Sorter: adds items of several types to their lanes, one by one.
//
// Finding the lane of an item and counting the item there takes longer than moving it. So the lanes
// of recent types are cached, and the items that each of them got are counted together.

/// Items that a lane got and has not counted yet.
#[derive(Debug)]
struct Run {
    key: TypeKey,
    lane: usize,
    weight: usize,
}

/// The lanes of at most 2^4 types are cached.
const PLACE_BITS: u32 = 4;

/// Borrows the lanes while it adds items. Its drop counts what they got.
#[derive(Debug)]
pub(crate) struct Sorter<'a, T> {
    lanes: &'a mut Lanes<T>,
    since: Since,
    /// The run of a type is at the place of its key, or at the adjacent one.
    runs: [Option<Run>; 1 << PLACE_BITS],
}

impl<T> Lanes<T> {
    /// Returns a sorter for the items of one segment.
    pub(crate) fn sorter(&mut self, since: Since) -> Sorter<'_, T> {
        Sorter { lanes: self, since, runs: [const { None }; 1 << PLACE_BITS] }
    }
}

impl<T> Sorter<'_, T> {
    /// Adds an item to the tail of the lane of its type. A new segment comes from `room`.
    #[inline]
    pub(crate) fn add(
        &mut self,
        key: TypeKey,
        item: T,
        weight: usize,
        room: impl FnOnce() -> Vec<T>,
    ) {
        let place = key.place(PLACE_BITS);
        let lane = match &mut self.runs[place] {
            Some(run) if run.key == key => {
                run.weight += weight;
                run.lane
            }
            _ => self.look_up(key, place, weight),
        };
        self.lanes.all[lane].tail.push(item, weight, room);
    }

    /// Returns the lane of a type that is not at its first place: it is at the adjacent one, or not
    /// cached.
    fn look_up(&mut self, key: TypeKey, place: usize, weight: usize) -> usize {
        let adjacent = place ^ 1;
        let is_its = |run: &&mut Run| run.key == key;
        if let Some(run) = self.runs[adjacent].as_mut().filter(is_its) {
            run.weight += weight;
            return run.lane;
        }
        let takes_first = self.runs[place].is_none() || self.runs[adjacent].is_some();
        let place = if takes_first { place } else { adjacent };
        self.end_run(place);
        let lane = self.lanes.lane_of(key, self.since);
        self.runs[place] = Some(Run { key, lane, weight });
        lane
    }

    fn end_run(&mut self, place: usize) {
        if let Some(Run { lane, weight, .. }) = self.runs[place].take() {
            self.lanes.note_added(lane, weight);
        }
    }
}

impl<T> Drop for Sorter<'_, T> {
    fn drop(&mut self) {
        (0..self.runs.len()).for_each(|place| self.end_run(place));
    }
}

// Views of lanes for the check of waits; see `awaited.rs`.

/// A snapshot of one lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneView {
    pub(crate) key: TypeKey,
    /// The address of the handler lock at which its job is running.
    pub(crate) running_at: Option<usize>,
    /// The drain thread whose consumer has tried its job, if each thread has its own consumer.
    pub(crate) tried_by: Option<usize>,
    /// Whether the lane holds items that are not in flight.
    pub(crate) holds_items: bool,
    pub(crate) is_stalled: bool,
}

impl LaneView {
    /// Creates the view of a lane that does not exist yet.
    pub(crate) fn new(key: TypeKey) -> Self {
        Self { key, running_at: None, tried_by: None, holds_items: false, is_stalled: false }
    }
}

impl<T> Lanes<T> {
    /// Whether a lane waits for its batch to become full.
    pub(crate) fn has_lingering(&self) -> bool {
        self.all.iter().any(|(_, lane)| lane.lingers())
    }

    /// Returns the position of the first item that is not in flight and does not linger, or an
    /// earlier position.
    pub(crate) fn first_held(&self) -> Option<u64> {
        let waiting = self.all.iter().filter(|(_, lane)| !lane.lingers());
        waiting.filter_map(|(_, lane)| lane.first_held()).min()
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = LaneView> {
        self.all.iter().map(|(_, lane)| LaneView {
            key: lane.key,
            running_at: match lane.state {
                State::Running(lock) => Some(lock),
                _ => None,
            },
            tried_by: lane.failed.as_ref().and_then(|job| job.tried_by),
            holds_items: lane.held() > 0,
            is_stalled: lane.is_stalled,
        })
    }
}

// Lanes that have a deadline: those that back off, and those that linger; see `flow/partition.rs`.

impl<T> Lanes<T> {
    /// Makes the lanes whose deadline has come ready.
    #[inline]
    pub(crate) fn make_due_ready(&mut self) {
        while let Some(&(until, lane)) = self.due.first()
            && until.time_left().is_none()
        {
            self.make_ready(lane);
        }
    }

    /// Begins the last tries: makes the lanes that back off ready. Newer news than number `news`
    /// end this.
    #[cold]
    pub(crate) fn begin_last_tries(&mut self, news: usize) {
        self.last_tries = Some(news);
        self.make_all_ready(|state| matches!(state, State::BackingOff(_)));
    }

    /// Returns the number of failed batches that wait, and the number of items in all tails.
    pub(crate) fn backlog(&self) -> (usize, usize) {
        let failed = self.all.iter().filter(|(_, lane)| lane.failed.is_some()).count();
        (failed, self.all.iter().map(|(_, lane)| lane.tail.len()).sum())
    }

    /// Whether the last tries have begun, with no news since.
    pub(crate) fn are_last_tries(&self, news: usize) -> bool {
        self.last_tries == Some(news)
    }

    /// Returns when the next lane is due if those that back off do so until `last_try` at most.
    pub(crate) fn next_due_before(&self, last_try: LastTry) -> Option<Deadline> {
        let backs_off =
            |&(_, lane): &(_, usize)| matches!(self.all[lane].state, State::BackingOff(_));
        let due = self.next_due()?;
        Some(if self.due.iter().any(backs_off) { last_try.or_sooner(due) } else { due })
    }

    fn make_all_ready(&mut self, are: impl Fn(State) -> bool) {
        let lanes: Vec<usize> = self.due.iter().map(|&(_, lane)| lane).collect();
        for lane in lanes {
            if are(self.all[lane].state) {
                self.make_ready(lane);
            }
        }
    }

    #[cold]
    fn use_of_due(&self) -> LaneUse {
        let lingers = |&(_, lane): &(_, usize)| self.all[lane].lingers();
        if self.due.iter().any(lingers) { LaneUse::Owner } else { LaneUse::Timer }
    }

    /// Returns when the next lane with a deadline is due.
    pub(crate) fn next_due(&self) -> Option<Deadline> {
        self.due.first().map(|&(until, _)| until)
    }

    /// Returns the items so far of a lane's next batch, if it may wait for more; a retry may not.
    pub(crate) fn gathered(&self, lane: usize) -> Option<usize> {
        let lane = &self.all[lane];
        (lane.failed.is_none() && lane.outstanding.is_none()).then(|| lane.tail.len())
    }

    /// Keeps items for a handler that is about to be removed, with batches of `full` items: it
    /// still gets those that linger, or would linger after a call, and the `queued` items behind
    /// them.
    pub(crate) fn keep_outstanding(
        &mut self,
        key: TypeKey,
        queued: usize,
        full: usize,
        outstanding: impl FnOnce(usize) -> Outstanding,
    ) {
        let Some(lane) = self.find(key).map(|lane| &mut self.all[lane]) else { return };
        let items = lane.tail.len() + queued;
        if lane.failed.is_none() && (1..full).contains(&items) {
            lane.outstanding = Some(Box::new(outstanding(items)));
        }
    }

    /// Returns what a removed handler still gets of a lane.
    pub(crate) fn outstanding(&self, lane: usize) -> Option<&Outstanding> {
        let lane = &self.all[lane];
        lane.outstanding.as_deref().filter(|_| lane.failed.is_none())
    }

    /// Returns when the first item of a lane's next batch was put, or an earlier time; `None` if
    /// the batch was tried before.
    #[inline]
    pub(crate) fn put_time(&self, lane: usize) -> Option<PutTime> {
        let lane = &self.all[lane];
        lane.failed.is_none().then(|| lane.tail_start().put_at)
    }

    /// Returns the same for the oldest item of all lanes that no call has had.
    pub(crate) fn oldest_untried(&self) -> Option<PutTime> {
        let waiting = self.all.iter().filter(|(_, lane)| !lane.tail.is_empty());
        waiting.map(|(_, lane)| lane.tail_start().put_at).min()
    }

    /// Makes the lanes that linger ready.
    #[cold]
    pub(crate) fn end_linger(&mut self) {
        self.make_all_ready(|state| matches!(state, State::Lingering { .. }));
    }

    /// Lets a lane wait until its batch has `full` items, or until a deadline.
    pub(crate) fn linger(&mut self, lane: usize, until: Deadline, full: usize) {
        self.set_state(lane, State::Lingering { until, full });
    }
}

#[cfg(all(test, not(loom)))]
mod sorter_tests {
    use super::*;
    use crate::flow::segments::PutTime;
    use proptest::prelude::*;

    /// Returns the lanes by key, with their items and runs.
    fn contents(lanes: &Lanes<usize>) -> Vec<String> {
        let lanes = lanes.all.iter().map(|(_, lane)| {
            let items: Vec<_> = lane.tail.iter().collect();
            format!("{:?} {items:?} {} {:?}", lane.key, lane.tail.len(), lane.runs())
        });
        lanes.collect()
    }

    proptest! {
        #[test]
        fn all_items_come_to_their_lanes_in_order_and_are_counted(
            takes in prop::collection::vec(
                prop::collection::vec((0..40_usize, 1..4_usize), 0..90),
                1..4,
            ),
        ) {
            let (mut together, mut one_by_one) = (Lanes::new(), Lanes::new());
            let mut taken = 0;
            for items in takes {
                let since = Since { taken: taken as u64, put_at: PutTime::default() };
                let mut sorter = together.sorter(since);
                for (number, (key, weight)) in items.into_iter().enumerate() {
                    let (key, item) = (TypeKey(key), taken + number);
                    sorter.add(key, item, weight, Vec::new);
                    let lane = one_by_one.lane_of(key, since);
                    one_by_one.add_segment(lane, vec![item], weight);
                    taken += weight;
                }
                drop(sorter);
                prop_assert_eq!(contents(&together), contents(&one_by_one));
                prop_assert_eq!(together.held(), one_by_one.held());
                prop_assert_eq!(together.count_ready(), one_by_one.count_ready());
            }
            prop_assert_eq!(together.held(), taken);
        }
    }
}
