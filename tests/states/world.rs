//! A small queue with a few tasks, and the condition for their end.

use smallvec::smallvec;

use super::changes::Change;
use super::explore::System;
use super::letters::{Keeper, Letters};
use super::positions::{CloserAt, DeadlineAt, FlusherAt, MoverAt, Producer, RemoverAt, Thread};
use super::registry::Registry;
use super::rules::Rule;
use super::state::{
    HandlerLock, Index, Lane, LaneState, Owner, PARTITIONS, Partition, State, TYPES,
};

/// The behaviour of handlers that do not simply return.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hang {
    #[default]
    No,
    /// The calls of the type's handler never return.
    Forever(Index),
    /// The calls return at any time; other threads take over before that.
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

/// The threads and the tasks of a queue. `World::new` has one thread, one partition, one type and
/// one handler.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub struct World {
    pub name: &'static str,
    pub threads: Index,
    pub partitions: Index,
    /// Whether a partition may hold several types.
    pub is_mixed: bool,
    /// Whether each thread has a consumer, which gets all types.
    pub has_consumers: bool,
    /// The lock of each type's handler.
    pub locks: [Index; TYPES],
    /// The items that each producer puts in: partition, type.
    pub puts: &'static [&'static [(Index, Index)]],
    pub bound: usize,
    /// The most items of a turn and of a job.
    pub batch: usize,
    /// The number of tries of each type's jobs that fail.
    pub failures: [u8; TYPES],
    /// The handler of items that failed for good.
    pub keeper: Option<Keeper>,
    /// Whether the first item of a job fails alone.
    pub fails_in_part: bool,
    /// Whether batches wait until they are full.
    pub lingers: bool,
    /// Whether a back-off, or the wait of a batch, outlasts everything else.
    pub has_long_waits: bool,
    pub hang: Hang,
    /// The moves: partition, and the thread that it goes to.
    pub moves: &'static [(Index, Index)],
    pub flushes: bool,
    pub closes: bool,
    /// Whether a shutdown has a deadline.
    pub has_deadline: bool,
    pub expires: bool,
    /// The changes of handlers, in order.
    pub changes: &'static [Change],
    /// Where types come and go: the partitions of types that have a handler at first. An item goes
    /// where its type lives; `puts` says where it goes if the type is unknown.
    pub homes: Option<[Option<Index>; TYPES]>,
    /// The type among these that has lost its handler, and may go.
    pub leaving: Option<Index>,
    /// Whether the first item of the first producer was put before its type came.
    pub is_early: bool,
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
            locks: [0, 1],
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
            has_deadline: false,
            expires: false,
            changes: &[],
            homes: None,
            leaving: None,
            is_early: false,
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

    /// Returns the lock of the handler that a lane's next job goes to.
    pub fn target(
        &self,
        state: &State,
        (of, kind): (usize, usize),
        lane: &Lane,
        thread: Index,
    ) -> Option<Index> {
        if self.has_consumers {
            Some(lane.tried_by.unwrap_or(thread))
        } else {
            self.handler_of(state, kind, of).or_else(|| lane.outstanding_for())
        }
    }

    /// Updates the room after a change of the lanes, under their lock.
    pub fn make_room(&self, state: &mut State, partition: usize, may_be_awaited: bool) {
        let each = &mut state.partitions[partition];
        let counted = if self.is_off(Rule::HeldCounts) { 0 } else { each.counted() };
        let released = each.taken - u8::try_from(counted).expect("few items");
        each.released = released;
        each.stalled = each.lanes.each_ref().map(|it| it.as_ref().is_some_and(|it| it.is_stalled));
        if may_be_awaited && !self.is_off(Rule::NotifyWaiting) {
            state.notify_producers(partition, self.puts);
        }
    }

    /// Returns the number of items of a full segment.
    pub fn segment(&self) -> usize {
        self.bound.div_ceil(4).min(self.batch)
    }

    /// Gives the job of a lane to a thread, under the lock of the lanes.
    pub fn take_job(&self, lane: &mut Lane) {
        if lane.job.is_empty() {
            let outstanding = usize::from(std::mem::take(&mut lane.outstanding));
            lane.in_call_for = (outstanding > 0).then_some(lane.outstanding_to);
            let most = if outstanding > 0 { outstanding.min(self.batch) } else { self.batch };
            let count = lane.tail.len().min(most);
            lane.job = lane.tail.drain(..count).collect();
            (lane.tries, lane.tried_by, lane.has_waited) = (0, None, false);
        }
        lane.state = LaneState::Running;
        lane.is_stalled &= lane.held() > 0;
    }

    /// Whether a partition may hold several types.
    pub fn has_several_types(&self, its: &Partition) -> bool {
        self.is_mixed || its.is_mixed
    }

    /// Returns one bit for each retired handler that no thread is inside; the others are watched.
    pub fn idle_handlers(state: &mut State) -> u8 {
        let mut idle = 0;
        for (at, lock) in (0..).zip(&mut state.locks).filter(|(at, _)| state.retires & 1 << at != 0)
        {
            let mut lanes = state.partitions.iter().flat_map(Partition::lanes);
            let has_outstanding = lanes.any(|lane| {
                lane.outstanding > 0 && lane.outstanding_to == at || lane.in_call_for == Some(at)
            });
            let is_idle = !lock.is_held && !has_outstanding;
            lock.is_watched |= !is_idle;
            idle |= if is_idle { 1 << at } else { 0 };
        }
        idle
    }
}

impl System for World {
    type State = State;
    type Step = Step;

    fn start(&self) -> State {
        let mut locks = self.threads.max(*self.locks.iter().max().unwrap_or(&0) + 2);
        let added = self.changes.iter().filter_map(|change| change.lock());
        let keeper = self.keeper.map(|keeper| keeper.lock);
        locks = added.chain(keeper).map(|lock| lock + 1).fold(locks, Index::max);
        let producer = Producer {
            at: self.first_step(),
            next: 0,
            waits: false,
            is_notified: false,
            route: None,
        };
        let mut state = State {
            partitions: (0..self.partitions)
                .map(|partition| Partition::new(partition % self.threads))
                .collect(),
            threads: (0..self.threads).map(|_| Thread::new()).collect(),
            locks: smallvec![HandlerLock::default(); usize::from(locks)],
            handlers: self.locks.map(Some),
            producers: self.puts.iter().map(|_| producer.clone()).collect(),
            is_controlled: false,
            mover: MoverAt::Idle,
            moves: 0,
            closer: CloserAt::Begin,
            is_closing: false,
            deadline: DeadlineAt::Begin,
            is_late: false,
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
            changes: 0,
            before: None,
            retires: 0,
            retired: 0,
            registry: self
                .homes
                .map(|homes| Box::new(Registry::new(homes, self.locks, self.leaving))),
            broken: None,
        };
        if self.is_early {
            self.put_early(&mut state);
        }
        state
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
        if self.has_deadline {
            self.deadline_steps(state, each);
        }
        if self.flushes {
            self.flusher_steps(state, each);
        }
        self.change_steps(state, each);
        self.departure_steps(state, each);
        self.clock_steps(state, each);
    }

    fn broken(&self, state: &State) -> Option<String> {
        self.broken_promise(state).map(str::to_owned)
    }

    fn is_good_end(&self, state: &State) -> bool {
        self.has_ended_well(state)
    }
}

/// A step: the kind and number of the actor, the action, and its partition, type or thread.
#[derive(Clone, Copy, Debug)]
pub struct Step(pub &'static str, pub Index, pub &'static str, pub Index);

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(who, number, what, object) = self;
        write!(f, "{who} {number}: {what} {object}")
    }
}
