//! Switches that turn one protocol rule off, so that its test can be seen red.
//!
//! In a build without the feature `faults`, [`off`] is the constant `false` and costs nothing. With
//! it, the rule named by the environment variable `BATCHQUEUE_FAULT` is left out. `make faults`
//! runs every test that guards a rule with that rule off and fails if the test stays green.

/// One rule that can be turned off. The names are the values of `BATCHQUEUE_FAULT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // The names are only read with the feature on.
pub(crate) enum Fault {
    /// P1: `dispatch` enters a handler without its entry token.
    EntryToken,
    /// P3: a take swaps the open segment out before the sealed ones.
    SealedFirst,
    /// P5: a put does not compare with the bound.
    Bound,
    /// P2: a refusal is not counted.
    CountRefused,
    /// P2: a handler that raised counts its batch as consumed.
    CountFailed,
    /// P2: an item without a handler is not counted.
    CountUnhandled,
    /// P4: space in a full partition is not told to those who wait.
    TellWaiting,
    /// P4: who listens for space does not fence between that and its look.
    ListenFence,
    /// P4: room behind heavy items, which fill an open segment alone, is not told.
    TellBehindHeavy,
    /// P4: a heavy item waits for half a buffer's room, whatever others leave it.
    SmallerPieces,
    /// P4: the sleeper does not look again after it has said that it sleeps.
    LookAgain,
    /// P4: pressure is not left with a drain thread that is awake.
    PressAwake,
    /// P4: a put does not fence between its append and its look at the sleep flag.
    PutFence,
    /// P2: a take that stops at its budget does not set the ready bit again.
    BudgetBit,
    /// P2: a put does not look at the closed flag.
    ClosedFlag,
    /// P2: a drain thread leaves on the closing mark, without a last look under the lock.
    LastLook,
    /// P9: producers that wait are not told about the close.
    TellClosed,
    /// P2: `taken` is stored after the gate is unlocked.
    TakenLate,
    /// P2: who takes the open segment or closes the gate leaves the plan in place by which a put
    /// looks at nothing.
    TakePlanBack,
    /// P2: a batch that comes back after a shutdown drew its line is counted once more.
    DrawLine,
    /// P2: the route for dispatch is the one that the cycle began with.
    RouteAfterTake,
    /// P2: a partition is not marked when items of a second type may come.
    MarkMixed,
    /// P4: a flush is not told about a quiescent point.
    TellFlush,
    /// P4: a producer of many waits for a gate while it holds others.
    TryNextGate,
    /// P9: a handler may wait for space that only its own drain thread can make.
    Reentrant,
    /// P9: a forced unwind at the end of the interpreter meets Rust frames without a guard.
    ExitGuard,
    /// P9: a forked child takes the parent's queue for its own.
    ForkGeneration,
    /// P9: a wait does not look for signals.
    CheckSignals,
    /// P1: a drain thread takes from a partition that is on its way to it.
    TakeWhenWanted,
    /// P1: the owner word is looked at and then stored, not compared and exchanged.
    CompareExchange,
    /// P4: a quiescent point hands partitions over before it has stored `completed`.
    CompleteFirst,
    /// P6: a drain thread that goes to sleep does not look for partitions that were revoked from
    /// it.
    LookForRevoked,
    /// P1: a removal does not wait until the owner has passed a quiescent point.
    WaitForRetired,
    /// P1: a removal waits for the thread that a partition is on its way to, not for the one
    /// inside.
    RetireInside,
    /// P6: a revoked partition's owner is not told.
    RevokeWake,
    /// P6: the new owner, or the old one after a take-back, is not told what waits.
    AssignWake,
    /// P6: nobody takes a partition back from a thread that does not come to hand it over.
    TakeBack,
    /// P2: types and partitions are added although the queue closes.
    GrowWhileClosing,
    /// P9: a close does not end the wait between two tries of a batch.
    CloseEndsBackOff,
    /// P9: a drain thread that waits for a handler keeps the interpreter, or whatever its host is.
    LeaveForToken,
    /// P9: a panic or an exception in a handler ends its drain thread.
    CatchPanic,
    /// P2: a task that is notified while it runs forgets it.
    NotifiedWhileRunning,
    /// P1: a task that is notified while it runs is given to a second worker.
    OneWorkerPerTask,
    /// P4: a worker that takes a task leaves the timers, and other tasks, to nobody.
    PassOn,
    /// P9: nobody takes the place of a worker that blocks.
    Compensate,
    /// P9: nobody takes the place of a worker whose handler works elsewhere.
    StandInForLoop,

    // What broke in the queue that this one follows; the tests are in `tests/it/regressions.rs`.
    /// P4: growth loses the owners that partitions have got by moves.
    GrowthForgetsOwners,
    /// P6: a partition is handed over only when its owner has nothing to do.
    HandoffWhenIdle,
    /// P4: the balancer needs a drain thread that is free.
    RebalanceOnDrainThreads,
    /// P9: a handler that shuts its queue down waits for its own end.
    ShutdownWaitsForItself,
    /// P3: a type's partition depends on how many there are.
    GrowthMovesTypes,
    /// P4: what a custom balancer returns is believed.
    UnvalidatedPlan,
    /// P6: partitions are dealt anew at every run, whatever the difference.
    ChurnOnNoise,
    /// P5: what drain threads have in hand counts as gone.
    UsageWithoutInFlight,
    /// P4: a snapshot waits for the balancer's run.
    StatsWait,
    /// P1: the items of one class share one partition, whoever consumes them.
    ConsumerByType,
}

/// Whether `fault` is switched on, that is: whether its rule is off.
#[cfg(not(feature = "faults"))]
#[inline(always)]
#[allow(clippy::inline_always)] // It must vanish from the path of an item.
pub(crate) const fn off(_fault: Fault) -> bool {
    false
}

#[cfg(feature = "faults")]
pub(crate) fn off(fault: Fault) -> bool {
    use std::sync::OnceLock;
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var("BATCHQUEUE_FAULT").ok()).as_deref()
        == Some(&format!("{fault:?}"))
}
