//! The lanes of a partition: what was taken from it and is not settled.
//!
//! Everything here changes under the partition's `lanes` lock, which is held over a few statements
//! and never over a handler.

mod choked;
mod limit;
mod sorter;
mod view;
mod waiting;

use std::collections::{BTreeSet, VecDeque};

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::flow::desk::JobPlace;
use crate::flow::desk::lane::{Job, Lane, Since, State};
use crate::flow::handler::Batch;
use crate::item::{Item, TypeKey};
use crate::observe::{CallTime, measures};
use crate::sync::{Deadline, Duration};

pub(crate) use view::LaneView;

/// What the lanes of a partition wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LaneUse {
    /// There are none.
    Empty,
    /// All of them for calls.
    Calls,
    /// The same, and the end of a call comes back to the owner: it has noted that it waits.
    NotedCalls,
    /// None has something for the owner now; some back off, or wait elsewhere, until a deadline.
    Timer,
    /// One at least for the owner, now or at a later time.
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
    /// Most partitions hold one type, which needs no hashing.
    first: Option<(TypeKey, usize)>,
    others: FxHashMap<TypeKey, usize>,
    ready: VecDeque<usize>,
    /// The lanes that have a deadline.
    due: BTreeSet<(Deadline, usize)>,
    /// Items, by weight, that no thread has in hand.
    held: usize,
    /// Those of them that choked lanes hold.
    choked: usize,
    /// Types that are choked no more, to be published.
    unchoked: Vec<TypeKey>,
    /// Items settled so far, by weight.
    settled: u64,
    /// The calls of its handlers.
    calls: CallTime,
    /// A turn found a lane in its way.
    was_stopped: bool,
    /// The news of deadlines with which the last tries began here.
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
            choked: 0,
            unchoked: Vec::new(),
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

    /// The held items that count against the bound.
    pub(crate) fn counted(&self) -> usize {
        self.held - self.choked
    }

    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// No item of any lane was put before this many others, of the `taken` ones.
    pub(crate) fn completed(&self, taken: u64) -> u64 {
        self.all.iter().map(|(_, lane)| lane.start.taken).min().unwrap_or(taken)
    }

    // ---- take

    /// A turn left something undone because of the lanes: the end of a lane brings the owner back.
    pub(crate) fn note_stopped(&mut self) {
        self.was_stopped = true;
    }

    /// Returns the lane of a type, to which items are about to be added. A new type gets a new one.
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
        if lane.is_choked {
            self.choked += weight;
        }
        if lane.is_full() {
            self.make_ready(index);
        }
    }

    // ---- submit

    /// Takes a lane off the list of ready ones; the caller decides its next state.
    pub(crate) fn next_ready(&mut self) -> Option<usize> {
        self.ready.pop_front()
    }

    /// Whether its job waits for room in a box of dead letters.
    pub(crate) fn is_dead(&self, lane: usize) -> bool {
        self.all[lane].failed.as_ref().is_some_and(|job| job.dead.is_some())
    }

    pub(crate) fn key(&self, lane: usize) -> TypeKey {
        self.all[lane].key
    }

    /// The drain thread whose consumer has tried the lane's job, with one consumer for each thread.
    pub(crate) fn tried_by(&self, lane: usize) -> Option<usize> {
        self.all[lane].failed.as_ref().and_then(|job| job.tried_by)
    }

    /// Its job has a ticket at a desk. With a deadline, it is submitted again when that has come.
    pub(crate) fn post(&mut self, lane: usize, desk: usize, until: Option<Deadline>) {
        self.set_state(lane, State::Posted(desk, until));
    }

    pub(crate) fn is_posted(&self, lane: usize, desk: usize) -> bool {
        let state = self.all.get(lane).map(|lane| lane.state);
        matches!(state, Some(State::Posted(at, _)) if at == desk)
    }

    pub(crate) fn is_ready(&self, lane: usize) -> bool {
        self.all.get(lane).is_some_and(|lane| lane.state == State::Ready)
    }

    /// Submits a job again that was posted at a desk. Returns `false` if it does not wait there any
    /// more.
    pub(crate) fn recall(&mut self, lane: usize, desk: usize) -> bool {
        let is_posted = self.is_posted(lane, desk);
        if is_posted {
            self.make_ready(lane);
        }
        is_posted
    }

    /// The handler of a type has changed: its job is submitted to the new one. Returns whether
    /// there is one that no thread has in hand.
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

    /// Takes the job of a lane in hand: what is to be tried again, or else up to `most` items of
    /// the tail. `desk`: the address of the handler's, or 0.
    #[inline]
    pub(crate) fn take_job(
        &mut self,
        partition: usize,
        index: usize,
        most: usize,
        desk: usize,
    ) -> Job<T>
    where
        T: Item,
    {
        self.set_state(index, State::Running(desk));
        let lane = &mut self.all[index];
        let failed = lane.failed.take().map(|failed| *failed);
        let job = failed.unwrap_or_else(|| {
            let owed = lane.owed.take();
            let most = owed.as_ref().map_or(most, |owed| owed.items.min(most));
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
                _debt: owed.map(|owed| owed.debt),
            }
        });
        let weight = job.weight();
        self.held -= weight;
        if lane.is_choked {
            self.choked -= weight;
            self.unchoke_empty(index);
        }
        job
    }

    // ---- settle

    /// A call of a handler took so long.
    #[inline]
    pub(crate) fn note_call(&mut self, took: Duration) {
        self.calls.add(took);
    }

    #[inline]
    pub(crate) fn calls(&self) -> CallTime {
        self.calls
    }

    /// Whether it consists of lanes that wait for their next try, and there are any.
    pub(crate) fn back_off(&self) -> bool {
        !self.is_empty()
            && self.all.iter().all(|(_, lane)| matches!(lane.state, State::BackingOff(_)))
    }

    /// The job of a lane is settled. Returns whether the owner has something to do here.
    #[inline]
    pub(crate) fn end(&mut self, index: usize, items: usize) -> bool {
        self.settled += items as u64;
        // What it still owes may be queued.
        if self.all[index].end_job() || self.all[index].owed.is_some() {
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

    /// What is left of the job of a lane is tried again when `until` has come, ahead of the tail.
    /// So many items of it were `settled`.
    pub(crate) fn retry(&mut self, job: Job<T>, until: Deadline, settled: usize) {
        // The room of a box is announced there.
        let state = match &job.dead {
            Some(dead) => State::Posted(dead.to.address(), Some(until)),
            None => State::BackingOff(until),
        };
        self.settled += settled as u64;
        let weight = job.weight();
        self.held += weight;
        let index = job.place.lane;
        let lane = &mut self.all[index];
        if lane.is_choked {
            self.choked += weight;
        }
        lane.failed = Some(Box::new(job));
        self.set_state(index, state);
    }

    /// After the end of time: takes all items out that no thread has in hand.
    pub(crate) fn discard(&mut self) -> Vec<Batch<T>> {
        let mut items = Vec::new();
        for (_, lane) in &mut self.all {
            if let Some(job) = lane.failed.take() {
                items.push(job.batch);
                items.extend(job.pieces.into_iter().map(|piece| piece.batch));
            }
            items.push(std::mem::take(&mut lane.tail));
            if std::mem::take(&mut lane.is_choked) {
                self.unchoked.push(lane.key);
            }
        }
        self.all.retain(|_, lane| matches!(lane.state, State::Running(_)));
        self.ready.clear();
        self.due.clear();
        (self.held, self.choked) = (0, 0);
        items
    }
}
