//! Switches that turn a rule off, to see its tests fail.
//!
//! `make faults` puts this file into a copy of the crate, beside the switches of `switches.diff`. A
//! process with the environment variable `BATCHQUEUE_RULE_OFF` runs without the rule that it names.

/// A rule that can be turned off. The names are the values of `BATCHQUEUE_RULE_OFF`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule {
    /// P1: a handler is entered only by the thread that holds its lock.
    HoldHandlerLock,
    /// P1: a thread that calls `on_idle` checks the list of handlers again at the handler lock.
    ListAtLock,
    /// P4: a thread that releases a handler lock takes its next ticket.
    TicketsAtRelease,
    /// P3: items of a type that has a lane are appended to it.
    AppendToLane,
    /// P3: a batch that failed is tried again before later items of its type.
    FailedToHead,
    /// P4: the end of a job sets the ready bit if the lanes have work.
    ResultBit,
    /// P4: the end of a job also wakes the thread inside the partition.
    ResultWake,
    /// P4: a turn that a lane stopped, or kept from finishing its partition, continues when the
    /// lane ends.
    StoppedTake,
    /// P4: an assign of a partition with lanes sets its ready bit.
    AssignLanes,
    /// P5: items that are held count against the bound.
    HeldCounts,
    /// P4: a type that is held up does not take the room of others in its partition.
    MarkStalled,
    /// P7: the put that fills a batch notifies the owner, which waits for it.
    EndSuppression,
    /// P4: a second type in a partition is noticed while the first one's batch fills there.
    SecondTypeEndsSuppression,
    /// P4: a removed handler still gets the items that linger.
    KeepLingering,
    /// P4: a flush does not wait for batches to fill.
    FlushEndsLinger,
    /// P4: a thread does not sleep while dead letters wait for a handler that is free.
    AwakeForDeadLetters,
    /// P4: a thread that is about to call a slow handler leaves its partitions to the others.
    LeaveForSlowCall,
    /// P4: of handlers that would wait for each other forever, one gives up.
    CheckWaits,
    /// P4: a flush waits for the oldest lane.
    CompletedBehindLanes,
    /// P2: a partition is finished only without lanes.
    FinishWithoutLanes,
    /// P1: a removal takes the lock of the lanes in which its handler may be looked up, and submits
    /// their waiting jobs again.
    RecallType,
    /// P4: a batch that fails while its handler is replaced or removed does not back off.
    RecallFailed,
    /// P3: a take receives the sealed segments before it swaps the open one out.
    SealedFirst,
    /// P5: a put compares with the bound.
    Bound,
    /// P2: a refusal is counted.
    CountRefused,
    /// P2: a batch whose handler failed counts as failed.
    CountFailed,
    /// P2: an item without a handler is counted.
    CountUnhandled,
    /// P4: space in a full partition is announced to the producers that wait for it.
    NotifyWaiting,
    /// P4: a listener fences between its registration and its check for space.
    ListenFence,
    /// P4: waiting producers are notified of room behind weighted items, each of which may fill an
    /// open segment alone.
    NotifyBehindWeighted,
    /// P4: a weighted item halves the piece that it waits for with each try, so that lighter
    /// producers cannot keep it out.
    SmallerPieces,
    /// P4: a sleeper checks for work once more after it has announced that it sleeps.
    CheckBeforeSleep,
    /// P4: pressure that meets an awake drain thread is kept until the thread prepares to sleep.
    KeepPressure,
    /// P4: a put fences between its append and its read of the sleep state.
    PutFence,
    /// P2: a take that stops at its budget sets the ready bit again.
    BudgetBit,
    /// P2: a put checks the closed flag.
    ClosedFlag,
    /// P2: a drain thread leaves only after a final check under the lock, not on the closing mark.
    FinalCheck,
    /// P9: producers that wait are notified of the close.
    NotifyClosed,
    /// P2: `taken` is stored before the gate is unlocked.
    TakenBeforeUnlock,
    /// P2: taking the open segment, or closing the gate, withdraws the plan by which a put skips
    /// its checks.
    WithdrawPlan,
    /// P2: a batch that returns after the cut-off of an expired shutdown is not counted again.
    CutOff,
    /// P2: the route for dispatch is read after the take.
    RouteAfterTake,
    /// P2: a partition is marked before items of a second type can arrive.
    MarkMixed,
    /// P2: a lookup in the type table is repeated if the table was exchanged meanwhile.
    TableVersion,
    /// P2: a place answers only for the type that it was given to.
    KeyOfPlace,
    /// P3: a type that comes back soon gets its former partitions.
    ReturnHome,
    /// P3: a type is remembered for a whole round over all partitions.
    WholeRound,
    /// P3: a partition delivers only to types that are routed to it.
    OnlyAtHome,
    /// P2: a type that was leaving and has a handler again does not go.
    StayAfterReturn,
    /// P3: a type goes only when what was put before its removal is settled.
    GoWhenSettled,
    /// P4: a flush is notified when a thread leaves a partition.
    NotifyFlush,
    /// P4: a producer of many items only tries further gates while it holds one.
    TryNextGate,
    /// P9: a handler is refused a wait for space that only its own drain thread can make.
    RefuseReentrant,
    /// P9: a forced unwind at interpreter exit meets a guard before Rust frames.
    ExitGuard,
    /// P9: a forked child recognises the parent's queue as foreign.
    ForkGeneration,
    /// P9: a wait checks for signals.
    CheckSignals,
    /// P9: a shutdown that runs out of time ends the futures of what it abandons.
    AbandonFutures,
    /// P2: no handler gets an item that was cancelled.
    SkipCancelled,
    /// P1: a drain thread takes only from partitions that it owns, not from one that is moving to
    /// it.
    TakeOnlyWhenOwned,
    /// P1: the owner word changes by compare-exchange, not by a load and a store.
    CompareExchange,
    /// P1: a drain thread publishes which partition it enters before it checks that it owns it.
    InsideBeforeCheck,
    /// P1: a move completes immediately only if the owner is not inside.
    MoverChecksInside,
    /// P6: a thread that leaves a partition completes its move, even if the thread is saturated.
    CompleteAtLeave,
    /// P2: the consumed items of a batch that failed in part are not tried again.
    DropConsumed,
    /// P1: a removal waits for the thread that is inside the handler.
    WaitForRetired,
    /// P4: other threads take over from one that is held up in a handler.
    TakeOver,
    /// P9: a separate thread writes the lines about a queue.
    LogApart,
    /// P4: the supervisor fences after it has ended its visits, before it checks for new turns.
    DisarmFence,
    /// P4: slow handlers leave one thread to the quick ones.
    SpareQuickWork,
    /// P4: the end of a slow call resubmits the job that has waited longest for one.
    RecallSlow,
    /// P4: slow handlers are called in the order in which their jobs came.
    SlowInTurn,
    /// P6: an assign wakes the new owner if items wait.
    AssignWake,
    /// P2: no type and no partition is added while the queue closes.
    NoGrowthWhileClosing,
    /// P9: an expiring shutdown ends the waits of the others.
    NotifyExpiry,
    /// P9: what backs off is tried once more shortly before a shutdown runs out of time.
    TryBeforeDeadline,
    /// P9: a thread does not sleep before it has seen the last deadline of a shutdown.
    AwakeForNews,
    /// P9: a drain thread leaves its host while it waits at a handler lock for a last call.
    LeaveHostAtLock,
    /// P9: a panic in a handler fails its batch and not its drain thread.
    CatchPanic,
    /// P9: an item that panics when it is dropped ends neither its drain thread nor other items.
    CatchDropPanic,
    /// P2: a task that is notified while it runs remembers it.
    RememberNotification,
    /// P1: a task that is notified while it runs is not given to a second worker.
    OneWorkerPerTask,
    /// P4: a worker that takes a task passes the timers and the other tasks on.
    PassOn,
    /// P9: another worker takes the place of one that blocks.
    Compensate,
    /// P9: another worker takes the place of one whose handler works on an event loop.
    CompensateForLoop,

    // Failures of the original queue; the tests are in `tests/it/regressions.rs`.
    /// P4: growth keeps the owners that partitions got by moves.
    GrowthKeepsOwners,
    /// P4: the balancer runs while all drain threads are busy.
    RebalanceWhenSaturated,
    /// P9: a handler that shuts its queue down does not wait for its own end.
    ShutdownFromHandlerReturns,
    /// P3: a type keeps its partitions, however many are added.
    TypesKeepPartitions,
    /// P4: the result of a custom balancer is validated.
    ValidatePlan,
    /// P6: partitions stay where they are while the difference is noise.
    IgnoreNoise,
    /// P5: items in flight count as used.
    UsageCountsInFlight,
    /// P4: a snapshot does not wait for the balancer's run.
    StatsNeverWait,
    /// P1: the items of one class are spread over all partitions if the selector says so.
    SpreadForConsumers,

    // Admission to a stage of a pipeline; the tests are in `src/stages.rs`.
    /// An empty stage admits any chunk.
    LargeChunkAlone,
    /// A stage holds no more bytes than its limit.
    StageBytes,
    /// A worker holds no more rows than its limit.
    WorkerRows,
    /// A chunk does not overtake one that waits for bytes.
    TurnAtTheGate,
    /// A chunk that waits for its worker may be overtaken.
    PassWaitingWorker,
    /// A chunk for any worker goes to the one that holds the fewest rows.
    LeastHeldWorker,
}

/// Whether a rule is switched off.
macro_rules! rule_off {
    ($rule:ident) => {
        crate::rules::is_off(crate::rules::Rule::$rule)
    };
}

pub(crate) fn is_off(rule: Rule) -> bool {
    use std::sync::OnceLock;
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var("BATCHQUEUE_RULE_OFF").ok()).as_deref()
        == Some(&format!("{rule:?}"))
}
