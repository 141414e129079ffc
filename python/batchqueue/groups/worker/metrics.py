"""`metrics_of`, `summary_of`, `stats_of`: readings of a membership."""

import json
from dataclasses import asdict

from batchqueue._background_log import log_lines_dropped, log_stuck_s
from batchqueue.groups.worker.held import HeldPartition
from batchqueue.groups.worker.load import Load
from batchqueue.groups.worker.membership import Membership
from batchqueue.groups.worker.summary import PartitionMetrics, WorkerMetrics, WorkerSummary

_STUCK_S = 1.0


def metrics_of(member: Membership) -> WorkerMetrics:
    """Return what a worker does now."""
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
            fetched=counts.fetched,
            handled=counts.handled,
            dead=counts.dead,
            skipped=counts.skipped,
            dropped=counts.dropped,
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
    """Return what a worker has done."""
    with member.lock:
        counts, notes = member.counts, member.notes
        return WorkerSummary(
            fetched=counts.fetched,
            handled=counts.handled,
            dead=counts.dead,
            skipped=counts.skipped,
            dropped=counts.dropped,
            lost_records=notes.lost_records,
            assigned=notes.assigned,
            lost=notes.lost,
            unfinished=dict(notes.unfinished),
            seconds=(member.now_ms() - notes.started_ms) / 1_000,
        )


def stats_of(member: Membership) -> str:
    """Return what a beat says: JSON for the member that plans, and for `GroupMonitor`."""
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
    lanes = member.lanes.get(held.partition)
    return lanes is not None and any(lane.is_blocked(held) for lane in lanes.all)


def _partition(member: Membership, held: HeldPartition, load: Load | None) -> PartitionMetrics:
    tracker, now = held.tracker, member.now_ms()
    lanes = member.lanes.get(held.partition)
    stuck_ms = [] if lanes is None else [lanes.decoding.stuck_ms(now)]
    stuck_ms += [] if lanes is None else [lane.stuck_ms(now) for lane in lanes.all]
    counts = None if tracker is None else tracker.counts
    return PartitionMetrics(
        partition=held.partition,
        token=held.token,
        phase=member.control.holdings[held.partition].phase,
        done=None if tracker is None else tracker.mark.offset,
        in_hand=0 if counts is None else counts.in_hand,
        handled=0 if counts is None else counts.handled,
        dead=0 if counts is None else counts.dead,
        skipped=0 if counts is None else counts.skipped,
        lag=member.lags.get(held.partition),
        busy=None if load is None else load.busy,
        rate=None if load is None else load.rate,
        is_paused=held.is_paused,
        is_blocked=_is_blocked(member, held),
        stuck_s=max(stuck_ms, default=0.0) / 1_000,
    )
