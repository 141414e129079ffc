"""The entry of an epoch in the ledger: what was written, and what it cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from batchqueue._words import counted
from batchqueue.spark.stage.process import CpuSummary
from batchqueue.spark.stage.stage_summary import StageSummary
from batchqueue.spark.task.contents import Contents, total
from batchqueue.spark.task.message import AttemptSummary


def epoch_summary(
    batch_id: int,
    attempts: Sequence[AttemptSummary],
    *,
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
        - `rows`: rows from Spark;
        - `contents`: what they contained, see `Contents`, by which a replay is recognized, or null;
        - `skipped`: rows that a step left out because of a null key, counted for each step;
        - `bad_rows`: rows that could not be read, and were left out as `on_bad_row` says, and
          `bad_row_error`: what was wrong with one of them, or null;
        - `items`: items made of them, 0 where Spark SQL is L1;
        - `partials`: what L1 left of them;
        - `l1_ratio`: items, or rows where there are no items, per partial;
        - `stages`: the fields of `StageSummary` under `l1`, `l2` and `persist`;
        - `l1_thread_items`: items by index of the drain thread;
        - `drain_cpu_s`, `rest_cpu_s`: of all `write()` calls;
        - `attempt_wall_s`: `min`, `median` and `max` over the attempts;
        - `commit_bytes`: bytes of the partials on their way to the commit;
        - `commit_drain_cpu_s`, `commit_rest_cpu_s`, `commit_wall_s`: of the commit;
        - `committed_at`: seconds since 1970, UTC.

        The commit adds `late`, partials for a time bucket that was final before, and
        `final_before`, the time bucket before which all are final, or null. A write that replaces
        time buckets has also `replaced`: the first, and the one after them. It
        adds `changed_at`, the position of the newest lists of changed keys, or null.
    """
    l1 = StageSummary.total([attempt.l1 for attempt in attempts])
    rows = sum(attempt.rows for attempt in attempts)
    wall_s = [attempt.cpu.wall_s for attempt in attempts if attempt.cpu.wall_s] or [0.0]
    contents = epoch_contents(attempts)
    by_thread = zip_longest(*(attempt.thread_items for attempt in attempts), fillvalue=0)
    return {
        "batch_id": batch_id,
        "guarantee": guarantee,
        "rows": rows,
        "contents": None if contents is None else str(contents),
        "skipped": sum(attempt.skipped for attempt in attempts),
        "bad_rows": sum(attempt.bad_rows for attempt in attempts),
        "bad_row_error": next(
            (attempt.bad_row_error for attempt in attempts if attempt.bad_row_error), None
        ),
        "items": l1.produced,
        "partials": l2.produced,
        "l1_ratio": l1_ratio(rows, l1.produced, l2.produced),
        "stages": {"l1": asdict(l1), "l2": asdict(l2), "persist": asdict(persist)},
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
    """Return what the rows of an epoch contained; None if that is not known."""
    return total(each.contents for each in attempts if each.rows or each.contents is not None)


def _median(values: Sequence[float]) -> float:
    # That of `statistics` would bring modules into each worker that take longer to import.
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
