"""What a worker says about itself: `WorkerSummary` at its end, `WorkerMetrics` at any time."""

from dataclasses import dataclass, field

from batchqueue.groups.orders import Phase, Seat


@dataclass(frozen=True, kw_only=True)
class WorkerSummary:
    """What a worker did, from its start to its end.

    Attributes:
        fetched: Records that were read.
        handled: Records whose handler returned.
        dead: Records that were set aside.
        skipped: Records that failed and were skipped.
        dropped: Records that were read and left to another owner.
        lost_records: Records that were trimmed from the stream before they were read.
        assigned: Partitions that were assigned, each time counted.
        lost: Partitions that another worker took over because this one was too late.
        unfinished: Records that come again, by partition: in hand when the grace was over, or
            handled, and their commit was refused.
        seconds: The time from start to end.
    """

    fetched: int = 0
    handled: int = 0
    dead: int = 0
    skipped: int = 0
    dropped: int = 0
    lost_records: int = 0
    assigned: int = 0
    lost: int = 0
    unfinished: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PartitionMetrics:
    """A partition that a worker holds.

    Attributes:
        partition: Its number.
        token: The token of the assignment.
        phase: Where it is between its grant and its end.
        done: The offset up to which everything is done; None before it is open.
        in_hand: Records that were read and have not ended.
        handled: Records whose handler returned, under this assignment.
        dead: Records that were set aside.
        skipped: Records that failed and were skipped.
        lag: Records that are in the stream and not done, as of the last second; None if unknown.
        busy: Seconds per second that its handlers are busy, a moving average over 30 s; None at
            first.
        rate: Records per second that are handled, likewise.
        is_paused: Whether the user has paused it.
        is_blocked: Whether it waits for another attempt at records, or at a call that the server
            refuses, and the attempts are used up.
        stuck_s: For how long a handler, or the codec, has been in its call.
    """

    partition: int
    token: int
    phase: Phase
    done: int | None
    in_hand: int
    handled: int
    dead: int
    skipped: int
    lag: int | None
    busy: float | None
    rate: float | None
    is_paused: bool
    is_blocked: bool
    stuck_s: float


@dataclass(frozen=True, kw_only=True)
class WorkerMetrics:
    """A worker at one moment. The counts are since its start.

    Attributes:
        group: Its group.
        stream: Its stream.
        name: Its name.
        seat: Whether it is a member.
        partitions: What it holds, by partition.
        fetched: As in `WorkerSummary`.
        handled: As in `WorkerSummary`.
        dead: As in `WorkerSummary`.
        skipped: As in `WorkerSummary`.
        dropped: As in `WorkerSummary`.
        in_hand: Records that were read and have not ended.
        lost_records: As in `WorkerSummary`.
        failed_attempts: Calls of handlers that raised.
        assigned: As in `WorkerSummary`.
        lost: As in `WorkerSummary`.
        fenced: Tokens that a partition or a sink refused.
        late_heartbeats: Heartbeats that were sent after half of the lease.
        blocked_partitions: Partitions that are blocked, see `PartitionMetrics`.
        stuck_handlers: For how many seconds a handler has been in its call, by partition, from one
            second up.
        hot_partitions: Partitions that lag behind the others, see `SkewDetectionConfig`.
        log_stuck_s: For how many seconds the log has been taking a line; 0.0 if it is not. Lines of
            runs and workers wait meanwhile, and nothing else does.
        log_lines_dropped: Lines that were dropped, in this process, because 1,000 waited.
    """

    group: str
    stream: str
    name: str
    seat: Seat
    partitions: dict[int, PartitionMetrics]
    fetched: int
    handled: int
    dead: int
    skipped: int
    dropped: int
    in_hand: int
    lost_records: int
    failed_attempts: int
    assigned: int
    lost: int
    fenced: int
    late_heartbeats: int
    blocked_partitions: tuple[int, ...]
    stuck_handlers: dict[int, float]
    hot_partitions: tuple[int, ...]
    log_stuck_s: float
    log_lines_dropped: int
