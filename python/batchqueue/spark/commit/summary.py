"""The entry of an epoch in the ledger: what was written, and what it cost."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from itertools import zip_longest
from typing import Any, Self, TypeVar

from batchqueue.base.background_log import BackgroundLog, flush_log
from batchqueue.base.words import counted
from batchqueue.exceptions import BatchQueueError
from batchqueue.outputs.store import Epoch, StoreUnavailableError
from batchqueue.queues.config import RetryPolicy, wait_ms
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import L1Choice
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.stage import CpuSummary, StageSummary
from batchqueue.spark.task.contents import Contents, total
from batchqueue.spark.task.message import AttemptSummary


def epoch_summary(
    batch_id: int,
    attempts: Sequence[AttemptSummary],
    *,
    l1: L1Choice,
    commit_bytes: int,
    l2: StageSummary,
    persist: StageSummary,
    commit_cpu: CpuSummary,
    guarantee: str,
    committed_at: float,
) -> dict[str, Any]:
    """Return an epoch's entry for the ledger.

    Returns:
        A dict that can be written as JSON; all times are in seconds:

        - `batch_id`;
        - `guarantee`: "exactly-once" or "at-least-once";
        - `l1_place`: "tasks" or "spark", where rows became partials, and `l1_why`: why there;
        - `rows`: rows from Spark;
        - `contents`: the contents of the rows, see `Contents`, which identify a replay, or null;
        - `skipped`: rows that a step left out because of a null key, counted for each step;
        - `bad_rows`: rows that could not be read, and were left out as `on_bad_row` says, and
          `bad_row_error`: what was wrong with one of them, or null;
        - `items`: items made of the rows, 0 if L1 ran in Spark SQL;
        - `partials`: partials that L1 made;
        - `l1_ratio`: items, or rows where there are no items, per partial;
        - `stages`: the fields of `StageSummary` under `l1`, `l2` and `persist`;
        - `l1_thread_items`: items by index of the drain thread;
        - `drain_cpu_s`, `rest_cpu_s`: of all `write()` calls;
        - `attempt_wall_s`: `min`, `median` and `max` over the attempts;
        - `commit_bytes`: bytes of the partials on their way to the commit;
        - `commit_drain_cpu_s`, `commit_rest_cpu_s`, `commit_wall_s`: of the commit;
        - `committed_at`: seconds since 1970, UTC.

        The commit adds `late`, partials for a time bucket that was final before; `final_before`,
        the time bucket before which all are final, or null; and `changed_at`, the position of the
        newest lists of changed keys, or null. A write that replaces time buckets also has
        `replaced`: the first of them, and the one after the last.
    """
    in_tasks = StageSummary.total([attempt.l1 for attempt in attempts])
    rows = sum(attempt.rows for attempt in attempts)
    wall_s = [attempt.cpu.wall_s for attempt in attempts if attempt.cpu.wall_s] or [0.0]
    contents = epoch_contents(attempts)
    by_thread = zip_longest(*(attempt.thread_items for attempt in attempts), fillvalue=0)
    return {
        "batch_id": batch_id,
        "guarantee": guarantee,
        "l1_place": l1.place,
        "l1_why": l1.why,
        "rows": rows,
        "contents": None if contents is None else str(contents),
        "skipped": sum(attempt.skipped for attempt in attempts),
        "bad_rows": sum(attempt.bad_rows for attempt in attempts),
        "bad_row_error": next(
            (attempt.bad_row_error for attempt in attempts if attempt.bad_row_error), None
        ),
        "items": in_tasks.produced,
        "partials": l2.produced,
        "l1_ratio": l1_ratio(rows, in_tasks.produced, l2.produced),
        "stages": {"l1": asdict(in_tasks), "l2": asdict(l2), "persist": asdict(persist)},
        "l1_thread_items": [sum(items) for items in by_thread],
        "drain_cpu_s": sum(attempt.cpu.drain_s for attempt in attempts),
        "rest_cpu_s": sum(attempt.cpu.rest_s for attempt in attempts),
        "attempt_wall_s": {
            "min": min(wall_s),
            "median": _median(wall_s),
            "max": max(wall_s),
        },
        "commit_bytes": commit_bytes,
        "commit_drain_cpu_s": commit_cpu.drain_s,
        "commit_rest_cpu_s": commit_cpu.rest_s,
        "commit_wall_s": commit_cpu.wall_s,
        "committed_at": round(committed_at, 3),
    }


def epoch_contents(attempts: Sequence[AttemptSummary]) -> Contents | None:
    """Return the contents of the rows of an epoch; None if unknown."""
    return total(each.contents for each in attempts if each.rows or each.contents is not None)


def _median(values: Sequence[float]) -> float:
    # `statistics.median` would make each worker import modules, which takes longer.
    ordered, middle = sorted(values), len(values) // 2
    return (ordered[middle] + ordered[~middle]) / 2


def l1_ratio(rows: int, items: int, partials: int) -> float:
    """Return the items, or rows where there are no items, per partial."""
    return round((items or rows) / max(partials, 1), 2)


def log_line(query_id: str, summary: Mapping[str, Any]) -> str:
    """Return an epoch's entry as one line for the log."""
    stages = summary["stages"]
    counts = {
        name: sum(stage.get(name, 0) for stage in stages.values())
        for name in ("refused", "failed", "unhandled", "dead_lettered")
    }
    if counts["dead_lettered"] == 0:
        del counts["dead_lettered"]  # few jobs have a handler for them
    rows = counted(summary["rows"], "row")
    late = f", {counted(summary['late'], 'late partial')}" if summary.get("late") else ""
    if summary["skipped"]:
        rows += f", {summary['skipped']:,} skipped"
    if summary["bad_rows"]:
        rows += f", {counted(summary['bad_rows'], 'bad row')} ({summary['bad_row_error']})"
    use = ", ".join(f"{name} {stage['peak_used_percent']:.0f} %" for name, stage in stages.items())
    return (
        f"epoch {summary['batch_id']} of query {query_id}: {rows}, "
        f"{counted(summary['items'], 'item')}, {counted(summary['partials'], 'partial')}{late} "
        f"(L1 ratio {summary['l1_ratio']:,}), {summary['commit_bytes']:,} bytes, "
        f"{', '.join(f'{count} {name}' for name, count in counts.items())}, queue use {use}, "
        f"commit {summary['commit_wall_s']:.2f} s, {summary['guarantee']}"
    )


# Running totals of a sink, carried from the summary of one epoch to that of the next.
#
# The ledger keeps only the newest summaries. Because each of them carries the totals, the last one
# says what the sink has done since it began, however seldom the ledger is read.


OUTCOMES = ("consumed", "failed", "refused", "unhandled", "abandoned")
"""Each item that was offered to a stage ends in exactly one of these."""

STAGES = ("l1", "l2", "persist")
"""The queues that an item passes: L1 in the tasks, L2 and the store writer in the commit."""

_KEY = "totals"


@dataclass(frozen=True)
class SinkTotals:
    """Sums over the epochs of a sink. They never fall, even when an overwrite deletes results.

    Attributes:
        epochs: Applied epochs, including batch writes.
        rows: Rows from Spark.
        skipped: Rows that steps left out because of a null key.
        bad_rows: Rows that could not be read, and were left out.
        late: Partials for time buckets that were final.
        items: Items made of the rows.
        partials: Partials that L1 made.
        commit_bytes: Bytes of the partials on their way to the commit.
        commit_wall_s: Seconds that the commits took.
        cpu_s: CPU seconds by place, "tasks" or "commit", and by threads, "drain" or "rest".
        stages: Items by stage and outcome, see `STAGES` and `OUTCOMES`.
    """

    epochs: int = 0
    rows: int = 0
    skipped: int = 0
    bad_rows: int = 0
    late: int = 0
    items: int = 0
    partials: int = 0
    commit_bytes: int = 0
    commit_wall_s: float = 0.0
    cpu_s: Mapping[str, Mapping[str, float]] = field(
        default_factory=lambda: {
            place: {"drain": 0.0, "rest": 0.0} for place in ("tasks", "commit")
        }
    )
    stages: Mapping[str, Mapping[str, int]] = field(
        default_factory=lambda: {stage: dict.fromkeys(OUTCOMES, 0) for stage in STAGES}
    )

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any]) -> Self:
        """Return what one epoch adds. A field that the summary lacks counts as 0."""
        stages = summary.get("stages", {})
        prefixes = {"tasks": "", "commit": "commit_"}
        return cls(
            epochs=1,
            **{name: summary.get(name, 0) for name in _SUMMED},
            cpu_s={
                place: {
                    threads: float(summary.get(f"{prefix}{threads}_cpu_s", 0.0))
                    for threads in ("drain", "rest")
                }
                for place, prefix in prefixes.items()
            },
            stages={
                stage: {outcome: stages.get(stage, {}).get(outcome, 0) for outcome in OUTCOMES}
                for stage in STAGES
            },
        )

    @classmethod
    def carried_by(cls, summary: Mapping[str, Any]) -> "SinkTotals | None":
        """Return the totals that a summary carries; None if its writer was too old to add them."""
        totals = summary.get(_KEY)
        if totals is None:
            return None
        known = {attribute.name for attribute in fields(cls)} & totals.keys()
        return cls(**{name: totals[name] for name in known})

    @classmethod
    def sum(cls, totals: Iterable["SinkTotals"]) -> "SinkTotals":
        """Return the sum, for instance over the shards of a sink."""
        return reduce(SinkTotals.__add__, totals, SinkTotals())

    def __add__(self, other: "SinkTotals") -> "SinkTotals":
        return SinkTotals(**_added(asdict(self), asdict(other)))


_SUMMED = tuple(
    each.name for each in fields(SinkTotals) if each.name not in ("epochs", "cpu_s", "stages")
)
"""The fields that a summary has under the same name."""


def with_totals(summary: Mapping[str, Any], before: SinkTotals) -> dict[str, Any]:
    """Return the summary of an epoch with the totals as of its end.

    Args:
        summary: See `epoch_summary`.
        before: The totals before the epoch.
    """
    return {**summary, _KEY: asdict(before + SinkTotals.from_summary(summary))}


def latest_totals(summaries: Callable[[int | None], list[Epoch]]) -> SinkTotals:
    """Return the totals of a sink as of its last epoch.

    Args:
        summaries: Reads the given number of newest summaries; None: all that the ledger keeps.
    """
    newest = summaries(1)
    if newest and SinkTotals.carried_by(newest[0].summary) is None:
        newest = summaries(None)
    total = SinkTotals()
    for epoch in newest:
        total = SinkTotals.carried_by(epoch.summary) or total + SinkTotals.from_summary(
            epoch.summary
        )
    return total


def _added(left: Any, right: Any) -> Any:
    if isinstance(left, Mapping):
        return {name: _added(value, right[name]) for name, value in left.items()}
    return left + right


# Retries of a store that is busy or down. After the last, the query fails and can be resumed.


T = TypeVar("T")

_log = BackgroundLog("batchqueue.spark")


def with_retries(policy: RetryPolicy, what: str, action: Callable[[], T]) -> T:
    """Run an action, and retry it while the store is unavailable.

    Args:
        policy: How often and when to retry. A transaction is not bisected.
        what: Names the action in the log.
        action: What to run, one transaction. A retry must itself find out whether the previous
            attempt was committed.

    Raises:
        SinkError: The store was unavailable in every attempt.
    """
    for attempt in itertools.count(1):
        try:
            return _with_its_lines(action)
        except BatchQueueError as error:
            if not _is_unavailable(error):
                raise
            if attempt == policy.attempts:
                raise SinkError(
                    f"{what} failed after {counted(attempt, 'attempt')}: {error}. Start the query "
                    "again with the same checkpoint when the store is back: it continues where it "
                    "was"
                ) from error
            of = "" if policy.attempts is None else f" of {policy.attempts}"
            _log.warning("%s failed in attempt %d%s: %s", what, attempt, of, error)
        time.sleep(wait_ms(policy, attempt) / 1_000)
    raise AssertionError("the loop has no end")


def _with_its_lines(action: Callable[[], T]) -> T:
    """Run an action, then wait until the log lines of its transaction are written."""
    try:
        return action()
    finally:
        flush_log()


def _is_unavailable(error: BaseException | None) -> bool:
    """Whether an unavailable store is the error, or caused it in a handler."""
    while error is not None:
        if isinstance(error, StoreUnavailableError):
            return True
        error = error.__cause__
    return False


def open_store(job: AggregationJob) -> None:
    """Open and prepare the store of a job before its tasks run, with retries.

    Raises:
        SinkError: The store was unavailable in every attempt.
    """
    with_retries(job.store_retry, f"opening {job.store!r}", job.store.prepare)
