//! A small queue with a few things to do, and what counts as done.

use smallvec::{SmallVec, smallvec};

use super::explore::System;
use super::letters::{Keeper, Letters};
use super::positions::{At, CloserAt, FlusherAt, MoverAt, Producer, ProducerAt, RemoverAt, Thread};
use super::state::{Desk, Index, Lane, LaneState, Owner, PARTITIONS, Partition, State, TYPES};
use crate::rules::Rule;

/// What a handler does that does not simply return.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hang {
    #[default]
    No,
    /// The calls of the type's handler never return.
    Forever(Index),
    /// They return at any time; other threads take over before.
    Long(Index),
}

impl Hang {
    pub fn kind(self) -> Option<Index> {
        match self {
            Self::No => None,
            Self::Forever(kind) | Self::Long(kind) => Some(kind),
        }
    }
}

/// The threads of a queue, and what is asked of it. `World::new` is one thread, one partition, one
/// type, one handler.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub struct World {
    pub name: &'static str,
    pub threads: Index,
    pub partitions: Index,
    /// Whether a partition may hold several types.
    pub is_mixed: bool,
    /// Each thread has a consumer, which gets all types.
    pub has_consumers: bool,
    /// The desk of each type's handler.
    pub desks: [Index; TYPES],
    /// What each producer puts in: partition, type.
    pub puts: &'static [&'static [(Index, Index)]],
    pub bound: usize,
    /// The most items of a turn and of a job.
    pub batch: usize,
    /// So many tries of each type's jobs fail.
    pub failures: [u8; TYPES],
    /// What failed for good goes there.
    pub keeper: Option<Keeper>,
    /// Whether the first item of a job fails alone.
    pub fails_in_part: bool,
    /// Whether batches wait until they are full.
    pub lingers: bool,
    /// Whether a back-off, or the wait of a batch, lasts longer than all else.
    pub has_long_waits: bool,
    pub hang: Hang,
    /// Partition, and the thread that it goes to.
    pub moves: &'static [(Index, Index)],
    pub flushes: bool,
    pub closes: bool,
    pub expires: bool,
    /// The handler of this type is removed, or replaced by the one with this desk.
    pub removes: Option<(Index, Option<Index>)>,
    /// The rule that is left out.
    pub off: Option<Rule>,
}

impl World {
    pub fn new(name: &'static str, puts: &'static [&'static [(Index, Index)]]) -> Self {
        Self {
            name,
            threads: 1,
            partitions: 1,
            is_mixed: false,
            has_consumers: false,
            desks: [0, 1],
            puts,
            bound: 8,
            batch: 8,
            failures: [0; TYPES],
            keeper: None,
            fails_in_part: false,
            lingers: false,
            has_long_waits: false,
            hang: Hang::No,
            moves: &[],
            flushes: false,
            closes: false,
            expires: false,
            removes: None,
            off: None,
        }
    }

    pub fn is_off(&self, rule: Rule) -> bool {
        self.off == Some(rule)
    }

    pub fn owns(&self, state: &State, thread: Index, partition: Index) -> bool {
        let owner = state.partitions[usize::from(partition)].owner;
        if self.is_off(Rule::TakeOnlyWhenOwned) {
            owner.wanted() == thread
        } else {
            owner == Owner::Owned(thread)
        }
    }

    /// The desk of the handler that a lane's next job goes to.
    pub fn target(&self, state: &State, kind: usize, lane: &Lane, thread: Index) -> Option<Index> {
        if self.has_consumers {
            Some(lane.tried_by.unwrap_or(thread))
        } else {
            let owed = || self.retired_desk().filter(|_| lane.owed > 0 && lane.job.is_empty());
            state.handlers[kind].or_else(owed)
        }
    }

    /// Under the lock of the lanes, after a change of them.
    pub fn make_room(&self, state: &mut State, partition: usize, may_be_awaited: bool) {
        let each = &mut state.partitions[partition];
        let counted = if self.is_off(Rule::HeldCounts) { 0 } else { each.counted() };
        let released = each.taken - u8::try_from(counted).expect("few items");
        each.released = released;
        each.choked = each.lanes.each_ref().map(|it| it.as_ref().is_some_and(|it| it.is_choked));
        if may_be_awaited && !self.is_off(Rule::NotifyWaiting) {
            state.notify_producers(partition, self.puts);
        }
    }

    /// The items of a full segment.
    pub fn segment(&self) -> usize {
        self.bound.div_ceil(4).min(self.batch)
    }

    /// Under the lock of the lanes: the job of a lane is in a thread's hand.
    pub fn take_job(&self, lane: &mut Lane) {
        if lane.job.is_empty() {
            let owed = usize::from(std::mem::take(&mut lane.owed));
            lane.is_debt = owed > 0;
            let most = if lane.is_debt { owed.min(self.batch) } else { self.batch };
            let count = lane.tail.len().min(most);
            lane.job = lane.tail.drain(..count).collect();
            (lane.tries, lane.tried_by, lane.has_waited) = (0, None, false);
        }
        lane.state = LaneState::Running;
        lane.is_choked &= lane.held() > 0;
    }

    /// The desk of the handler that is removed.
    pub fn retired_desk(&self) -> Option<Index> {
        self.removes.map(|(kind, _)| self.desks[usize::from(kind)])
    }

    pub fn watch_retired(&self, state: &mut State) -> bool {
        let Some(desk) = self.retired_desk().filter(|_| state.retires) else { return false };
        let mut lanes = state.partitions.iter().flat_map(Partition::lanes);
        let is_owed = lanes.any(|lane| lane.owed > 0 || lane.is_debt);
        let desk = &mut state.desks[usize::from(desk)];
        let is_quiet = !desk.is_held && !is_owed;
        desk.is_watched |= !is_quiet;
        is_quiet
    }

    fn is_done(&self, state: &State) -> bool {
        // Producers of a type whose calls hang wait until the close.
        let is_over = |(producer, items): (&Producer, &&[(Index, Index)])| {
            items.get(usize::from(producer.next)).is_none_or(|&(_, kind)| {
                producer.at == ProducerAt::Wait && self.hang == Hang::Forever(kind) && !self.closes
            })
        };
        let all_put = state.producers.iter().zip(self.puts).all(is_over);
        let waits = self.is_stuck(state);
        let closed = if waits { CloserAt::Wait } else { CloserAt::Done };
        let is_moved = usize::from(state.moves) == self.moves.len() || self.closes;
        all_put
            && (is_moved && state.mover == MoverAt::Idle)
            && (!self.closes || state.closer == closed)
            && (!self.flushes || state.flusher == FlusherAt::Done)
            && (self.removes.is_none() || state.remover == RemoverAt::Done)
    }

    fn is_hung(&self, thread: &Thread) -> bool {
        let kind = thread.in_hand.map(|in_hand| in_hand.kind);
        thread.at == At::Call && kind.is_some_and(|kind| self.hang == Hang::Forever(kind))
    }

    /// Whether a shutdown waits for ever, for a call that hangs.
    fn is_stuck(&self, state: &State) -> bool {
        !self.expires && state.threads.iter().any(|thread| self.is_hung(thread))
    }

    /// Whether no item is left that could have been handled.
    fn is_handled(&self, state: &State) -> bool {
        let hung = match self.hang {
            Hang::Forever(kind) => Some(kind),
            _ => None,
        };
        let is_handled = |partition: &Partition| {
            let mut kinds = (0..).zip(&partition.put);
            self.may_linger(partition)
                || kinds.all(|(at, &kind)| partition.is_settled(at) || hung == Some(kind))
        };
        state.partitions.iter().all(is_handled)
    }

    /// After the end of a queue: every item is counted once, and where a thread came to its end
    /// none is left.
    fn is_conserved(state: &State) -> bool {
        let put: usize = state.partitions.iter().map(|partition| partition.put.len()).sum();
        let is_empty = |partition: &Partition| partition.queue.is_empty() && partition.held() == 0;
        let has_ended = state.threads.iter().any(|thread| thread.at == At::Ended);
        usize::from(state.counted + state.abandoned) == put
            && (!has_ended || state.partitions.iter().all(is_empty))
    }
}

impl System for World {
    type State = State;
    type Step = Step;

    fn start(&self) -> State {
        let desks = usize::from(self.threads.max(*self.desks.iter().max().unwrap_or(&0) + 2));
        let producer = Producer { at: ProducerAt::Put, next: 0, waits: false, is_notified: false };
        State {
            partitions: (0..self.partitions)
                .map(|partition| Partition::new(partition % self.threads))
                .collect(),
            threads: (0..self.threads).map(|_| Thread::new()).collect(),
            desks: smallvec![Desk::default(); desks],
            handlers: self.desks.map(Some),
            producers: self.puts.iter().map(|_| producer.clone()).collect(),
            is_controlled: false,
            mover: MoverAt::Idle,
            moves: 0,
            closer: CloserAt::Begin,
            is_closing: false,
            is_expired: false,
            unfinished: 0,
            counted: 0,
            abandoned: 0,
            flusher: FlusherAt::Begin,
            goals: [0; PARTITIONS],
            letters: Letters::default(),
            letters_goal: None,
            flush_waits: false,
            flush_is_notified: false,
            remover: RemoverAt::Begin,
            retires: false,
            has_retired: false,
            broken: None,
        }
    }

    fn steps(&self, state: &State, each: &mut dyn FnMut(Step, State)) {
        for thread in 0..self.threads {
            self.thread_steps(state, thread, each);
        }
        for producer in 0..self.puts.len() {
            self.producer_steps(state, producer, each);
        }
        self.mover_steps(state, each);
        if self.closes {
            self.closer_steps(state, each);
        }
        if self.flushes {
            self.flusher_steps(state, each);
        }
        if let Some((kind, replacement)) = self.removes {
            self.remover_steps(state, kind, replacement, each);
        }
        self.clock_steps(state, each);
    }

    fn broken(&self, state: &State) -> Option<String> {
        if let Some(promise) = state.broken {
            return Some(promise.to_owned());
        }
        for partition in 0..self.partitions {
            let is_inside =
                |thread: &&Thread| thread.works_inside() && thread.partition == partition;
            if state.threads.iter().filter(is_inside).count() > 1 {
                return Some("two threads are inside one partition".to_owned());
            }
        }
        let inside: SmallVec<[Index; 4]> = state
            .threads
            .iter()
            .filter_map(|thread| match thread.at {
                At::Call => thread.in_hand?.desk,
                At::CallWithLetters => self.keeper.map(|keeper| keeper.desk),
                _ => None,
            })
            .collect();
        if (1..inside.len()).any(|at| inside[at..].contains(&inside[at - 1])) {
            return Some("two threads are inside one handler".to_owned());
        }
        if state.has_retired && self.retired_desk().is_some_and(|desk| inside.contains(&desk)) {
            return Some("a thread is inside a removed handler".to_owned());
        }
        // A batch may come back to its lane when producers have filled the room that it had left.
        let parked = if self.failures == [0; TYPES] { 0 } else { self.batch };
        let is_over = |its: &Partition| {
            its.queue.len() + its.counted() > self.bound + parked
                || its.choked() > self.bound + self.batch
        };
        if state.partitions.iter().any(is_over) {
            return Some("a partition holds more than its bound".to_owned());
        }
        let settled = |its: &Partition| its.settled.count_ones();
        if state.partitions.iter().map(settled).sum::<u32>() != u32::from(state.counted) {
            return Some("an item is counted twice, or not".to_owned());
        }
        None
    }

    fn is_good_end(&self, state: &State) -> bool {
        let ends = self.closes && !self.is_stuck(state);
        let rests = if ends { At::Ended } else { At::Asleep };
        let at_rest = state.threads.iter().all(|it| it.at == rests || self.is_hung(it));
        let counts = !ends || Self::is_conserved(state);
        at_rest && counts && self.is_done(state) && (state.is_expired || self.is_handled(state))
    }
}

/// What happens: who, which of them, what, and to which partition, type or thread.
#[derive(Clone, Copy, Debug)]
pub struct Step(pub &'static str, pub Index, pub &'static str, pub Index);

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(who, number, what, object) = self;
        write!(f, "{who} {number}: {what} {object}")
    }
}
