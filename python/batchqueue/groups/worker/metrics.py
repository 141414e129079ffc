"""`metrics_of`, `summary_of`, `stats_of`: readings of a membership."""

import json
from dataclasses import asdict, dataclass, field

from batchqueue.base.background_log import log_lines_dropped, log_stuck_s
from batchqueue.groups.control import Phase, Seat
from batchqueue.groups.worker.held import HeldPartition
from batchqueue.groups.worker.load import Load
from batchqueue.groups.worker.membership import Membership
from batchqueue.groups.worker.tracker import RecordCounts

# A worker's own reports: `WorkerSummary` at its end, `WorkerMetrics` at any time.


@dataclass(frozen=True, kw_only=True)
class WorkerSummary:
    """The counts of a worker from its start to its end.

    Attributes:
        fetched: Records that were read.
        handled: Records whose handler returned.
        dead: Records that were set aside.
        skipped: Records that failed and were skipped.
        dropped: Records that were read but left to another owner.
        lost_records: Records trimmed from the stream before they were read.
        assigned: Assignments of partitions; each counts.
        lost: Partitions that another worker took over because this one was too late.
        unfinished: Records that come again, by partition: in hand when the grace period ended, or
            handled but with a refused commit.
        seconds: The time from start to end in seconds.
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
class WorkerPartitionMetrics:
    """A partition that a worker holds.

    Attributes:
        partition: Its number.
        token: The token of the assignment.
        phase: Its state between its grant and its end.
        done: The offset up to which every record is done; None before it is open.
        in_hand: Records that were read and have not ended.
        handled: Records whose handler returned, under this assignment.
        dead: Records that were set aside.
        skipped: Records that failed and were skipped.
        lag: Records in the stream that are not done, as of the last second; None if unknown.
        busy: Seconds per second that its handlers are busy, a moving average over 30 s; None at
            first.
        rate: Records handled per second, likewise averaged.
        is_paused: Whether the user has paused it.
        is_blocked: Whether it waits to retry records, or a call that the server refuses, after all
            attempts are used up.
        stuck_s: How long its handler, or the codec, has been in its call, in seconds.
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
    """A worker at one moment. Counts are since its start.

    Attributes:
        group: Its group.
        stream: Its stream.
        name: Its name.
        seat: Whether it is a member.
        partitions: The partitions that it holds, by number.
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
        late_heartbeats: Heartbeats sent after half of the lease had passed.
        blocked_partitions: Partitions that are blocked; see `WorkerPartitionMetrics`.
        stuck_handlers: Seconds that a handler has been in its call, by partition, if at least
            one second.
        hot_partitions: Partitions that lag behind the others; see `SkewDetectionConfig`.
        log_stuck_s: Seconds that the log has been writing a line; 0.0 if it is not. Meanwhile only
            the log lines of runs and workers wait.
        log_lines_dropped: Lines dropped in this process because 1,000 were waiting.
    """

    group: str
    stream: str
    name: str
    seat: Seat
    partitions: dict[int, WorkerPartitionMetrics]
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


_STUCK_S = 1.0


def metrics_of(member: Membership) -> WorkerMetrics:
    """Return the current metrics of a worker."""
    with member.lock:
        counts, notes = member.counts, member.notes
        loads = member.load.measure(list(member.held), member.now_ms())
        partitions = {
            number: _partition(member, held, loads.get(number))
            for number, held in sorted(member.held.items())
            if number in member.control.holdings
        }
        return WorkerMetrics(
            group=member.settings.group,
            stream=member.stream,
            name=member.control.name,
            seat=member.control.seat,
            partitions=partitions,
            **asdict(counts),
            in_hand=counts.in_hand,
            lost_records=notes.lost_records,
            failed_attempts=notes.failed,
            assigned=notes.assigned,
            lost=notes.lost,
            fenced=notes.fenced,
            late_heartbeats=notes.late_beats,
            blocked_partitions=tuple(each for each, it in partitions.items() if it.is_blocked),
            stuck_handlers={
                each: it.stuck_s for each, it in partitions.items() if it.stuck_s >= _STUCK_S
            },
            hot_partitions=tuple(sorted(member.skew.hot)),
            log_stuck_s=log_stuck_s(),
            log_lines_dropped=log_lines_dropped(),
        )


def summary_of(member: Membership) -> WorkerSummary:
    """Return the summary of a worker."""
    with member.lock:
        counts, notes = member.counts, member.notes
        return WorkerSummary(
            **asdict(counts),
            lost_records=notes.lost_records,
            assigned=notes.assigned,
            lost=notes.lost,
            unfinished=dict(notes.unfinished),
            seconds=(member.now_ms() - notes.started_ms) / 1_000,
        )


def stats_of(member: Membership) -> str:
    """Return the statistics for a beat: JSON for the planning member, and for `GroupMonitor`."""
    with member.lock:
        loads = member.load.measure(list(member.held), member.now_ms())
        counts, notes = member.counts, member.notes
        return json.dumps(
            {
                "weights": {
                    each: round(load.weight(member.lags.get(each)), 6)
                    for each, load in loads.items()
                    if load.is_known
                },
                "rates": {each: round(load.rate, 3) for each, load in loads.items()},
                "busy": {each: round(load.busy, 6) for each, load in loads.items()},
                "counts": asdict(counts),
                "failed_attempts": notes.failed,
                "lost": notes.lost,
                "fenced": notes.fenced,
                "late_heartbeats": notes.late_beats,
                "blocked": [
                    number for number, held in member.held.items() if _is_blocked(member, held)
                ],
            }
        )


def _is_blocked(member: Membership, held: HeldPartition) -> bool:
    if held.refused is not None and held.refused.is_blocked:
        return True
    return any(lane.is_blocked(held) for lane in member.lanes_of(held))


def _partition(
    member: Membership, held: HeldPartition, load: Load | None
) -> WorkerPartitionMetrics:
    tracker, now = held.tracker, member.now_ms()
    lanes = member.lanes.get(held.partition)
    inside = () if lanes is None else (lanes.decoding, *lanes.all)
    counts = RecordCounts() if tracker is None else tracker.counts
    return WorkerPartitionMetrics(
        partition=held.partition,
        token=held.token,
        phase=member.control.holdings[held.partition].phase,
        done=None if tracker is None else tracker.mark.offset,
        in_hand=counts.in_hand,
        handled=counts.handled,
        dead=counts.dead,
        skipped=counts.skipped,
        lag=member.lags.get(held.partition),
        busy=None if load is None else load.busy,
        rate=None if load is None else load.rate,
        is_paused=held.partition in member.paused,
        is_blocked=_is_blocked(member, held),
        stuck_s=max((lane.stuck_ms(now) for lane in inside), default=0.0) / 1_000,
    )
