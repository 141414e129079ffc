//! The position of each party between two steps.

use smallvec::SmallVec;

use super::registry::Found;
use super::state::{Index, Owner};

/// The position of a drain thread; the partition is `Thread::at`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum At {
    Search,
    /// Between the cycle and the sleep: ends retirements.
    Notify,
    Prepare,
    SecondCheck,
    Asleep,
    Enter,
    CheckOwner,
    Take,
    Submit,
    /// Has found the entry of a type, with its number; its place is next.
    ReadPlace {
        kind: Index,
        number: Index,
    },
    HandlerLock(Index),
    BeforeLeave,
    /// Has finished a partition.
    CountDown,
    WakeAll,
    Leave,
    ReadWord,
    /// Exchanges the owner word that it read.
    Assign,
    /// Without compare-and-exchange: a store after a comparison.
    StoreWord,
    /// Has assigned the partition.
    Announce,
    Wake,
    BeginCall,
    Call,
    Settle,
    /// Counts the items that a partly failed call has consumed.
    SettlePart,
    /// Puts a job that failed for good into the box of dead letters.
    Bury,
    WakeForLetters,
    /// Serves that box, including at the end of the queue.
    Letters,
    LettersAtEnd,
    TakeLetters,
    RecallRefused,
    CallWithLetters,
    SettleLetters,
    EndJob,
    SetBit,
    WakeInside,
    Release,
    /// Resubmits tickets.
    Recall,
    RecallBit,
    RecallWake,
    /// Takes the job of a ticket.
    Serve,
    ServeBit,
    ServeWake,
    Discard,
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProducerAt {
    /// Looks the type up, where types come and go.
    LookUp,
    Put,
    Wake,
    /// Wakes the owner of a full partition.
    Press,
    Register,
    CheckAgain,
    Wait,
}

/// The position of a mover of partitions: a balancer or the supervisor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MoverAt {
    Idle,
    /// Exchanges the owner word that it read.
    Revoke {
        partition: Index,
        seen: Owner,
        to: Index,
    },
    ReadInside {
        partition: Index,
        from: Index,
        to: Index,
    },
    Assign {
        partition: Index,
        from: Index,
        to: Index,
    },
    /// Without compare-and-exchange: a store after a comparison.
    Store {
        partition: Index,
        next: Owner,
        to: Index,
    },
    Announce {
        partition: Index,
        to: Index,
    },
    Wake {
        partition: Index,
        to: Index,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CloserAt {
    Begin,
    Gate(Index),
    Publish,
    Wait,
    Expire(Index),
    Count,
    Done,
}

/// A shutdown that sets a deadline, before the close or after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeadlineAt {
    Begin,
    /// The deadline is published, but the threads have not been woken.
    Wake,
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlusherAt {
    Begin,
    Goals,
    Wake,
    Check,
    Wait,
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RemoverAt {
    Begin,
    /// Keeps lingering items of a partition for the handler.
    Keep(Index),
    Publish,
    /// Publishes the handler of a new type at its place, then the type itself.
    PublishNew,
    ListNew,
    Recall(Index),
    Bit(Index),
    Wake(Index),
    Pend,
    Wait,
}

/// A job in flight: the items stay in the lane's `job` until it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub struct InFlight {
    pub partition: Index,
    pub kind: Index,
    /// `None`: its type has no handler.
    pub lock: Option<Index>,
    pub fails: bool,
    /// Whether all but the first item of the failing job were counted as consumed.
    pub is_counted_in_part: bool,
    /// Whether it failed for good and found no room in the box.
    pub is_dead: bool,
    /// Whether it is not tried again, because a shutdown runs out of time.
    pub is_last: bool,
}

impl InFlight {
    pub fn new(partition: Index, kind: Index, lock: Option<Index>) -> Self {
        Self {
            partition,
            kind,
            lock,
            fails: false,
            is_counted_in_part: false,
            is_dead: false,
            is_last: false,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub struct Thread {
    pub at: At,
    pub partition: Index,
    /// The published partition that it is inside of.
    pub inside: Option<Index>,
    pub sleeps: bool,
    /// One bit for each partition with a timer.
    pub timers: u8,
    /// One bit for each timer that ends in time for the last try.
    pub early_timers: u8,
    pub in_flight: Option<InFlight>,
    /// The number of lanes of the partition left to submit after the call.
    pub left: u8,
    /// Whether the turn only submits jobs.
    pub only_submits: bool,
    /// Whether the queue was closing when the cycle began.
    pub saw_closing: bool,
    /// Whether the deadline of a shutdown was known when the cycle began.
    pub saw_deadline: bool,
    /// Whether producers may wait for the room that the turn makes.
    pub may_be_awaited: bool,
    /// Whether batches that are not full may wait in this turn; `None` until the first of them.
    pub is_patient: Option<bool>,
    /// The owner word that it read.
    pub seen: Option<Owner>,
    /// Jobs to resubmit.
    pub recalls: SmallVec<[(Index, Index); 4]>,
    /// The handler lock of a ticket that is being served or recalled.
    pub lock: Index,
    /// Whether the time of a shutdown was over before its call ended.
    pub is_cut_off: bool,
    /// The dead letters that it holds: partition, position.
    pub letters: SmallVec<[(Index, u8); 4]>,
    /// The position after it has served the box.
    pub after_letters: Option<At>,
}

impl Thread {
    pub fn new() -> Self {
        Self {
            at: At::Search,
            partition: 0,
            inside: None,
            sleeps: false,
            timers: 0,
            early_timers: 0,
            in_flight: None,
            left: 0,
            only_submits: false,
            saw_closing: false,
            saw_deadline: false,
            may_be_awaited: false,
            is_patient: None,
            seen: None,
            recalls: SmallVec::new(),
            lock: 0,
            is_cut_off: false,
            letters: SmallVec::new(),
            after_letters: None,
        }
    }

    pub fn after_leave(&mut self) {
        self.at = match self.in_flight {
            Some(in_flight) if in_flight.lock.is_none() => At::Settle,
            Some(_) => At::BeginCall,
            None => At::Search,
        };
    }

    /// Whether it is between the owner check and the leave.
    pub fn works_inside(&self) -> bool {
        matches!(
            self.at,
            At::Take
                | At::Submit
                | At::ReadPlace { .. }
                | At::HandlerLock(_)
                | At::BeforeLeave
                | At::CountDown
        )
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Producer {
    pub at: ProducerAt,
    /// The next item of its list.
    pub next: u8,
    pub waits: bool,
    pub is_notified: bool,
    /// The result of the look-up for its next item.
    pub route: Option<Found>,
}
