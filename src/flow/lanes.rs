//! The lanes of a partition: what was taken from it and is not settled.
//!
//! A lane is the order of one type in one partition. It exists only while it holds something: at
//! most one job, which is the next call of the type's handler, and behind it the tail, which later
//! jobs are made of. Everything here changes under the partition's `lanes` lock, which is held over
//! a few statements and never over a handler.
//!
//! ```text
//!              add          submit: the desk is free
//!   (no lane) ─────▶ ready ──────────────────────────▶ running ──end, no tail──▶ (no lane)
//!                     ▲ │                               │   │
//!                     │ └─submit: the desk is held─▶ posted │──end, a tail──▶ ready
//!                     │                  │  └─the holder serves it─▶ running
//!                     ├──────recall──────┘                  │
//!                     └──────────due───── backing off ◀─────┘ failed, to be tried again
//! ```

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::{SmallVec, smallvec};

use crate::flow::handler::Batch;
use crate::item::{Item, TypeKey};
use crate::rules::{Rule, rule_off};
use crate::sync::{Deadline, Duration};

/// Where a job belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobPlace {
    pub(crate) partition: usize,
    pub(crate) lane: usize,
}

/// The items of one type of one partition that one call of a handler gets.
#[derive(Debug)]
pub(crate) struct Job<T> {
    pub(crate) place: JobPlace,
    pub(crate) batch: Batch<T>,
    /// The items of the batch before its first try, by weight.
    pub(crate) items: usize,
    /// Tries so far.
    pub(crate) tries: u32,
    /// The time in the handler so far.
    pub(crate) took: Duration,
    /// The drain thread whose consumer tried it, with one consumer for each thread.
    pub(crate) tried_by: Option<usize>,
}

/// A job that failed and is tried again, without its place.
#[derive(Debug)]
struct Retry<T> {
    batch: Batch<T>,
    items: usize,
    tries: u32,
    took: Duration,
    tried_by: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the list of ready lanes.
    Ready,
    /// A ticket for it is at the desk with this address. With a deadline, it is submitted again
    /// when that has come.
    Posted(usize, Option<Deadline>),
    /// A thread has its job in hand.
    Running,
    BackingOff(Deadline),
}

impl State {
    fn due(self) -> Option<Deadline> {
        match self {
            Self::BackingOff(until) | Self::Posted(_, Some(until)) => Some(until),
            _ => None,
        }
    }
}

/// What the lanes of a partition wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LaneUse {
    /// There are none.
    Empty,
    /// All of them for calls, whose end comes back to the owner: it has noted that it waits.
    Calls,
    /// One at least for the owner, now or at a later time.
    Owner,
}

impl LaneUse {
    pub(crate) fn of(number: u8) -> Self {
        match number {
            0 => Self::Empty,
            1 => Self::Calls,
            _ => Self::Owner,
        }
    }
}

#[derive(Debug)]
struct Lane<T> {
    key: TypeKey,
    state: State,
    retry: Option<Retry<T>>,
    tail: Batch<T>,
    /// No item of the job was put before this many others of the partition.
    start: u64,
    /// The same for the runs of items that the tail consists of, with their weights.
    marks: SmallVec<[(usize, u64); 1]>,
}

impl<T> Lane<T> {
    fn note_added(&mut self, weight: usize) {
        if let Some((items, _)) = self.marks.last_mut() {
            *items += weight;
        }
    }

    /// After `items` were taken from the front of the tail.
    fn note_split(&mut self, mut items: usize) {
        let gone = self.marks.iter().take_while(|(run, _)| {
            let is_gone = *run <= items;
            items -= if is_gone { *run } else { 0 };
            is_gone
        });
        let gone = gone.count();
        self.marks.drain(..gone);
        if let Some((run, _)) = self.marks.first_mut() {
            *run -= items;
        }
    }

    /// The start of its tail, or that of its job if the tail is empty.
    fn tail_start(&self) -> u64 {
        self.marks.first().map_or(self.start, |(_, start)| *start)
    }
}

#[derive(Debug)]
pub(crate) struct Lanes<T> {
    all: Slab<Lane<T>>,
    /// Most partitions hold one type, which needs no hashing.
    first: Option<(TypeKey, usize)>,
    others: FxHashMap<TypeKey, usize>,
    ready: VecDeque<usize>,
    /// Lanes that have a deadline, in no order; some may have left that state.
    due: Vec<usize>,
    /// Items, by weight, that no thread has in hand.
    held: usize,
    /// Items settled so far, by weight.
    settled: u64,
    /// A turn found a lane in its way, or no room to hold what it takes.
    was_stopped: bool,
}

impl<T> Lanes<T> {
    pub(crate) fn new() -> Self {
        Self {
            all: Slab::new(),
            first: None,
            others: FxHashMap::default(),
            ready: VecDeque::new(),
            due: Vec::new(),
            held: 0,
            settled: 0,
            was_stopped: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn lane_use(&self) -> LaneUse {
        if self.is_empty() {
            LaneUse::Empty
        } else if self.ready.is_empty() && self.due.is_empty() && self.was_stopped {
            LaneUse::Calls
        } else {
            LaneUse::Owner
        }
    }

    pub(crate) fn count_ready(&self) -> usize {
        self.ready.len()
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// No item of any lane was put before this many others, of the `taken` ones.
    pub(crate) fn completed(&self, taken: u64) -> u64 {
        self.all.iter().map(|(_, lane)| lane.start).min().unwrap_or(taken)
    }

    // ---- take

    /// A turn left something undone because of the lanes: the end of a lane brings the owner back.
    pub(crate) fn note_stopped(&mut self) {
        self.was_stopped = true;
    }

    /// The lane of a type, which is made if there is none. `taken`: how many items of the partition
    /// were taken before.
    #[inline]
    pub(crate) fn lane_of(&mut self, key: TypeKey, taken: u64) -> usize {
        let known = match self.first {
            Some((first, lane)) if first == key => Some(lane),
            _ if self.others.is_empty() => None,
            _ => self.others.get(&key).copied(),
        };
        if let Some(lane) = known.filter(|_| !rule_off(Rule::AppendToLane)) {
            let marks = &mut self.all[lane].marks;
            if marks.last().is_none_or(|(_, start)| *start != taken) {
                marks.push((0, taken));
            }
            return lane;
        }
        let lane = self.all.insert(Lane {
            key,
            state: State::Ready,
            retry: None,
            tail: Batch::default(),
            start: taken,
            marks: smallvec![(0, taken)],
        });
        self.ready.push_back(lane);
        if self.first.is_none() {
            self.first = Some((key, lane));
        } else {
            self.others.insert(key, lane);
        }
        lane
    }

    /// Adds a segment to the tail of a lane.
    #[inline]
    pub(crate) fn add_segment(&mut self, lane: usize, segment: Vec<T>, weight: usize) {
        self.all[lane].tail.push_segment(segment, weight);
        self.all[lane].note_added(weight);
        self.held += weight;
    }

    /// Adds an item to the tail of a lane. A new segment comes from `room`, once the last one has
    /// `most` items.
    pub(crate) fn add(&mut self, lane: usize, item: T, most: usize, room: impl FnOnce() -> Vec<T>)
    where
        T: Item,
    {
        let weight = item.weight();
        self.held += weight;
        self.all[lane].note_added(weight);
        self.all[lane].tail.push(item, most, room);
    }

    // ---- submit

    /// Makes lanes ready whose deadline has come, and `all` that back off if there is no time left
    /// for that.
    pub(crate) fn make_due_ready(&mut self, all: bool) {
        if self.due.is_empty() {
            return;
        }
        let (lanes, ready) = (&mut self.all, &mut self.ready);
        self.due.retain(|&index| {
            let Some(lane) = lanes.get_mut(index) else { return false };
            let Some(until) = lane.state.due() else { return false };
            let is_due = all && matches!(lane.state, State::BackingOff(_));
            if !is_due && until.time_left().is_some() {
                return true;
            }
            lane.state = State::Ready;
            ready.push_back(index);
            false
        });
    }

    /// When the next lane that backs off is due.
    pub(crate) fn next_due(&self) -> Option<Deadline> {
        let due = |&lane: &usize| self.all.get(lane)?.state.due();
        self.due.iter().filter_map(due).min()
    }

    /// Takes a lane off the list of ready ones; the caller decides its next state.
    pub(crate) fn next_ready(&mut self) -> Option<usize> {
        self.ready.pop_front()
    }

    pub(crate) fn key(&self, lane: usize) -> TypeKey {
        self.all[lane].key
    }

    /// The drain thread whose consumer has tried the lane's job, with one consumer for each thread.
    pub(crate) fn tried_by(&self, lane: usize) -> Option<usize> {
        self.all[lane].retry.as_ref().and_then(|retry| retry.tried_by)
    }

    /// Its job has a ticket at a desk. With a deadline, it is submitted again when that has come.
    pub(crate) fn post(&mut self, lane: usize, desk: usize, until: Option<Deadline>) {
        self.all[lane].state = State::Posted(desk, until);
        if until.is_some() {
            self.due.push(lane);
        }
    }

    pub(crate) fn is_posted(&self, lane: usize, desk: usize) -> bool {
        let state = self.all.get(lane).map(|lane| lane.state);
        matches!(state, Some(State::Posted(at, _)) if at == desk)
    }

    fn back_off(&mut self, lane: usize, until: Deadline) {
        self.all[lane].state = State::BackingOff(until);
        self.due.push(lane);
    }

    /// Submits a job again that was posted at a desk. Returns `false` if it does not wait there any
    /// more.
    pub(crate) fn recall(&mut self, lane: usize, desk: usize) -> bool {
        let is_posted = self.is_posted(lane, desk);
        if is_posted {
            self.all[lane].state = State::Ready;
            self.ready.push_back(lane);
        }
        is_posted
    }

    /// The handler of a type has changed: its job is submitted to the new one. Returns whether
    /// there is one that no thread has in hand.
    pub(crate) fn recall_type(&mut self, key: TypeKey) -> bool {
        let lane = match self.first {
            Some((first, lane)) if first == key => lane,
            _ => match self.others.get(&key) {
                Some(&lane) => lane,
                None => return false,
            },
        };
        match self.all[lane].state {
            State::Ready => true,
            State::Running => false,
            State::Posted(..) | State::BackingOff(_) => {
                self.all[lane].state = State::Ready;
                self.ready.push_back(lane);
                true
            }
        }
    }

    /// Takes the job of a lane in hand: what is to be tried again, or else the items of the tail,
    /// up to `most` rounded up to a segment.
    #[inline]
    pub(crate) fn take_job(&mut self, partition: usize, index: usize, most: usize) -> Job<T>
    where
        T: Item,
    {
        let lane = &mut self.all[index];
        lane.state = State::Running;
        let place = JobPlace { partition, lane: index };
        let Retry { batch, items, tries, took, tried_by } =
            lane.retry.take().unwrap_or_else(|| {
                let batch = lane.tail.split_front(most);
                let items = batch.len();
                lane.start = lane.tail_start();
                lane.note_split(items);
                Retry { batch, items, tries: 0, took: Duration::ZERO, tried_by: None }
            });
        self.held -= items;
        Job { place, batch, items, tries, took, tried_by }
    }

    // ---- settle

    /// The job of a lane is settled. Returns whether the owner has something to do here.
    #[inline]
    pub(crate) fn end(&mut self, index: usize, items: usize) -> bool {
        self.settled += items as u64;
        let lane = &mut self.all[index];
        if lane.tail.is_empty() {
            let key = lane.key;
            self.all.remove(index);
            if self.first.is_some_and(|(first, _)| first == key) {
                self.first = None;
            } else {
                self.others.remove(&key);
            }
        } else {
            lane.start = lane.tail_start();
            lane.state = State::Ready;
            self.ready.push_back(index);
        }
        let was_stopped = std::mem::take(&mut self.was_stopped) && !rule_off(Rule::StoppedTake);
        was_stopped || !self.ready.is_empty()
    }

    /// The job of a lane failed, and is tried again when `until` has come, ahead of the tail.
    pub(crate) fn retry(&mut self, job: Job<T>, until: Deadline) {
        let Job { place, batch, items, tries, took, tried_by } = job;
        self.held += items;
        if rule_off(Rule::FailedToHead) {
            let lane = &mut self.all[place.lane];
            lane.tail.append(batch);
            lane.marks.push((items, lane.start));
        } else {
            self.all[place.lane].retry = Some(Retry { batch, items, tries, took, tried_by });
        }
        self.back_off(place.lane, until);
    }

    /// After the end of time: takes all items out that no thread has in hand.
    pub(crate) fn discard(&mut self) -> Vec<Batch<T>> {
        let mut items = Vec::new();
        for (_, lane) in &mut self.all {
            items.extend(lane.retry.take().map(|retry| retry.batch));
            items.push(std::mem::take(&mut lane.tail));
        }
        self.all.retain(|_, lane| lane.state == State::Running);
        self.ready.clear();
        self.held = 0;
        items
    }
}
