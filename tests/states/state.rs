//! The state of a small queue: shared state, and the position of each thread.

use smallvec::SmallVec;

use super::letters::Letters;
use super::positions::{At, CloserAt, DeadlineAt, FlusherAt, MoverAt, Producer, RemoverAt, Thread};
use super::registry::{Origin, Registry};

pub const PARTITIONS: usize = 2;
pub const THREADS: usize = 3;
pub const TYPES: usize = 2;

/// The number of a partition, drain thread, type or handler lock.
pub type Index = u8;

/// An item: its type, and its position in the partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Item {
    pub kind: Index,
    pub position: u8,
    /// The number of items of the partition that had been taken when this one was.
    pub run: u8,
    /// Only where types come and go.
    pub origin: Origin,
}

pub type Items = SmallVec<[Item; 4]>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    Owned(Index),
    Revoked { from: Index, to: Index },
}

impl Owner {
    pub fn inside(self) -> Index {
        match self {
            Self::Owned(thread) | Self::Revoked { from: thread, .. } => thread,
        }
    }

    pub fn wanted(self) -> Index {
        match self {
            Self::Owned(thread) | Self::Revoked { to: thread, .. } => thread,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaneState {
    Ready,
    Posted(Index),
    Running,
    BackingOff {
        is_due: bool,
    },
    Lingering {
        is_due: bool,
    },
    /// The lane's dead job waits for room in the box.
    AwaitsRoom {
        is_due: bool,
    },
}

impl LaneState {
    /// Whether the time it waits for has come; `None` if it waits for no time.
    pub fn is_due(self) -> Option<bool> {
        match self {
            Self::BackingOff { is_due }
            | Self::Lingering { is_due }
            | Self::AwaitsRoom { is_due } => Some(is_due),
            Self::Ready | Self::Posted(_) | Self::Running => None,
        }
    }

    pub fn backs_off(self) -> bool {
        matches!(self, Self::BackingOff { .. })
    }

    pub fn awaits_room(self) -> bool {
        matches!(self, Self::AwaitsRoom { .. })
    }

    pub fn is_lingering(self) -> bool {
        matches!(self, Self::Lingering { .. })
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub struct Lane {
    pub state: LaneState,
    /// The job that is in flight, or that failed and comes before the tail.
    pub job: Items,
    pub tries: u8,
    /// With one consumer per thread: the thread whose consumer has tried the job.
    pub tried_by: Option<Index>,
    pub tail: Items,
    pub is_stalled: bool,
    /// Whether the job failed for good.
    pub is_dead: bool,
    /// Whether its next batch has waited as long as it may.
    pub has_waited: bool,
    /// The number of items that the removed handler still gets.
    pub outstanding: u8,
    pub outstanding_to: Index,
    /// If the job consists of such items: the lock of their handler.
    pub in_call_for: Option<Index>,
}

impl Lane {
    pub fn new() -> Self {
        Self {
            state: LaneState::Ready,
            job: Items::new(),
            tries: 0,
            tried_by: None,
            tail: Items::new(),
            is_stalled: false,
            is_dead: false,
            has_waited: false,
            outstanding: 0,
            outstanding_to: 0,
            in_call_for: None,
        }
    }

    /// Returns the lock of the removed handler that still gets the next job.
    pub fn outstanding_for(&self) -> Option<Index> {
        (self.outstanding > 0 && self.job.is_empty()).then_some(self.outstanding_to)
    }

    pub fn held(&self) -> usize {
        let job = if self.state == LaneState::Running { 0 } else { self.job.len() };
        job + self.tail.len()
    }

    fn start(&self) -> Option<u8> {
        self.job.iter().chain(&self.tail).map(|item| item.run).next()
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub struct Partition {
    pub owner: Owner,
    pub is_ready: bool,
    /// Whether it is marked as possibly holding several types.
    pub is_mixed: bool,
    // ---- under the gate
    pub queue: Items,
    /// The number of queued items in the open segment.
    pub open: u8,
    pub is_closed: bool,
    // ---- under the lock of the lanes
    pub is_locked: bool,
    pub lanes: [Option<Lane>; TYPES],
    pub was_stopped: bool,
    pub is_finished: bool,
    pub taken: u8,
    pub released: u8,
    pub stalled: [bool; TYPES],
    /// Puts before this position do not notify.
    pub notify_at: u8,
    /// Whether a producer found no room.
    pub is_wanted: bool,
    // ---- what really happened
    /// The types of the items that were put, in order.
    pub put: SmallVec<[Index; 6]>,
    /// One bit for each settled item.
    pub settled: u8,
    /// One bit for each item that lingered when its handler was removed.
    pub outstanding: u8,
    /// One bit for each dead letter.
    pub buried: u8,
}

/// The event that the lanes of a partition wait for.
#[derive(PartialEq, Eq)]
pub enum LaneUse {
    Empty,
    Calls,
    NotedCalls,
    Owner,
    /// The owner, but not before a time for which it has a timer.
    Timer,
}

impl Partition {
    pub fn new(owner: Index) -> Self {
        Self {
            owner: Owner::Owned(owner),
            is_ready: false,
            is_mixed: false,
            queue: Items::new(),
            open: 0,
            is_closed: false,
            is_locked: false,
            lanes: [const { None }; TYPES],
            was_stopped: false,
            is_finished: false,
            taken: 0,
            released: 0,
            stalled: [false; TYPES],
            notify_at: 0,
            is_wanted: false,
            put: SmallVec::new(),
            settled: 0,
            outstanding: 0,
            buried: 0,
        }
    }

    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().flatten()
    }

    pub fn has_lanes(&self) -> bool {
        self.lanes().next().is_some()
    }

    pub fn first_ready(&self) -> Option<usize> {
        let is_ready =
            |lane: &Option<Lane>| lane.as_ref().is_some_and(|lane| lane.state == LaneState::Ready);
        self.lanes.iter().position(is_ready)
    }

    pub fn lane_use(&self) -> LaneUse {
        let waits_for_owner =
            |lane: &Lane| matches!(lane.state, LaneState::Ready | LaneState::Lingering { .. });
        if !self.has_lanes() {
            LaneUse::Empty
        } else if self.lanes().any(waits_for_owner) {
            LaneUse::Owner
        } else if self.lanes().any(|lane| lane.state.is_due().is_some()) {
            LaneUse::Timer
        } else if self.was_stopped {
            LaneUse::NotedCalls
        } else {
            LaneUse::Calls
        }
    }

    /// Whether its owner has something to do while the queue closes.
    pub fn must_be_finished(&self) -> bool {
        !matches!(self.lane_use(), LaneUse::NotedCalls | LaneUse::Timer)
    }

    pub fn held(&self) -> usize {
        self.lanes().map(Lane::held).sum()
    }

    /// Returns the number of held items that count against the bound.
    pub fn counted(&self) -> usize {
        self.lanes().filter(|lane| !lane.is_stalled).map(Lane::held).sum()
    }

    /// Returns the position up to which all items are settled, as the queue sees it.
    pub fn completed(&self) -> u8 {
        self.lanes().filter_map(Lane::start).min().unwrap_or(self.taken)
    }

    /// Returns the number of items that stalled lanes hold.
    pub fn stalled(&self) -> usize {
        self.held() - self.counted()
    }

    pub fn is_buried(&self, position: u8) -> bool {
        self.buried & 1 << position != 0
    }

    pub fn is_settled(&self, position: u8) -> bool {
        self.settled & 1 << position != 0
    }
}

#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct HandlerLock {
    pub is_held: bool,
    /// Partition and type.
    pub tickets: SmallVec<[(Index, Index); 4]>,
    pub is_watched: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub struct State {
    pub partitions: SmallVec<[Partition; PARTITIONS]>,
    pub threads: SmallVec<[Thread; THREADS]>,
    pub locks: SmallVec<[HandlerLock; THREADS]>,
    /// The lock of each type's handler.
    pub handlers: [Option<Index>; TYPES],
    pub producers: SmallVec<[Producer; 2]>,
    /// Whether the control lock is held.
    pub is_controlled: bool,
    pub mover: MoverAt,
    /// The number of planned moves made so far.
    pub moves: u8,
    pub closer: CloserAt,
    pub is_closing: bool,
    pub deadline: DeadlineAt,
    /// Whether it is time for the last try before the deadline.
    pub is_late: bool,
    pub is_expired: bool,
    pub unfinished: u8,
    /// Items counted as settled, and as abandoned.
    pub counted: u8,
    pub abandoned: u8,
    pub flusher: FlusherAt,
    pub goals: [u8; PARTITIONS],
    pub letters: Letters,
    /// The number of letters that a flush waits for, once all items are settled.
    pub letters_goal: Option<u8>,
    pub flush_waits: bool,
    pub flush_is_notified: bool,
    pub remover: RemoverAt,
    /// The number of planned handler changes made so far.
    pub changes: u8,
    /// The lock of the handler that the change removes.
    pub before: Option<Index>,
    /// One bit for the lock of each handler whose retirement has not ended.
    pub retires: u8,
    /// One bit for the lock of each handler whose retirement has ended.
    pub retired: u8,
    /// Only where types come and go.
    pub registry: Option<Box<Registry>>,
    /// The first promise that a step broke.
    pub broken: Option<&'static str>,
}

impl State {
    pub fn wake(&mut self, thread: Index) {
        let thread = &mut self.threads[usize::from(thread)];
        thread.sleeps = false;
        if thread.at == At::Asleep {
            thread.at = At::Search;
        }
    }

    pub fn wake_all(&mut self) {
        for thread in 0..self.threads.len() {
            self.wake(u8::try_from(thread).expect("few threads"));
        }
    }

    pub fn is_over(&self) -> bool {
        self.is_expired || self.is_closing && self.unfinished == 0
    }

    /// Whether the time that a lane of the partition waits for has come.
    pub fn has_due(&self, partition: Index) -> Option<bool> {
        let lanes = self.partitions[usize::from(partition)].lanes();
        lanes.filter_map(|lane| lane.state.is_due()).reduce(|due, is_due| due || is_due)
    }

    pub fn has_deadline(&self) -> bool {
        self.deadline != DeadlineAt::Begin
    }

    /// Whether the timer that a thread has for a partition is due.
    pub fn is_timer_due(&self, thread: Index, partition: Index) -> bool {
        let me = &self.threads[usize::from(thread)];
        let mut lanes = self.partitions[usize::from(partition)].lanes();
        let is_set = |timers: u8| timers & 1 << partition != 0;
        is_set(me.timers) && self.has_due(partition) == Some(true)
            || is_set(me.early_timers) && self.is_late && lanes.any(|lane| lane.state.backs_off())
    }

    /// Notifies the producers that wait in front of a partition.
    pub fn notify_producers(&mut self, partition: usize, puts: &[&[(Index, Index)]]) {
        for (producer, items) in self.producers.iter_mut().zip(puts) {
            let found = producer.route.map(|route| route.partition);
            let planned = items.get(usize::from(producer.next)).map(|&(planned, _)| planned);
            let is_here = found.or(planned).is_some_and(|at| usize::from(at) == partition);
            producer.is_notified |= producer.waits && is_here;
        }
    }

    pub fn notify_flush(&mut self) {
        if self.flush_waits {
            self.flush_is_notified = true;
        }
    }

    pub fn break_promise(&mut self, promise: &'static str) {
        self.broken.get_or_insert(promise);
    }
}
