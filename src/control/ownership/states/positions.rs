//! Where each of the parties is between two steps.

use super::state::{Index, Owner};

/// Where a drain thread is; the partition is `Thread::at`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum At {
    Search,
    /// Between the cycle and the sleep: ends retirements.
    Quiet,
    Prepare,
    SecondCheck,
    Asleep,
    Enter,
    CheckOwner,
    Take,
    Submit,
    Desk(Index),
    BeforeLeave,
    /// Has finished a partition.
    CountDown,
    WakeAll,
    Leave,
    ReadWord,
    /// Exchanges the owner word that it read.
    Assign,
    /// Without compare-and-exchange: it stores, after a comparison.
    StoreWord,
    /// Has assigned the partition.
    Announce,
    Wake,
    BeginCall,
    Call,
    Settle,
    /// Counts what a call that failed in part has consumed.
    SettlePart,
    EndJob,
    SetBit,
    WakeInside,
    Release,
    /// Submits tickets again.
    Recall,
    RecallBit,
    RecallWake,
    /// Takes the job of a ticket in hand.
    Serve,
    ServeBit,
    ServeWake,
    Discard,
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProducerAt {
    Put,
    Wake,
    /// Wakes the owner of a full partition.
    Press,
    Register,
    CheckAgain,
    Wait,
}

/// Moves partitions: a balancer, and the supervisor.
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
    /// Without compare-and-exchange: it stores, after a comparison.
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
    /// Leaves what lingers in a partition to the handler.
    Owe(Index),
    Publish,
    Recall(Index),
    Bit(Index),
    Wake(Index),
    Pend,
    Wait,
    Done,
}
