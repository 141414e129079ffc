"""A worker in this process."""

import os
from collections.abc import Callable

from batchqueue._words import counted
from batchqueue.cli.command import FAILED, OK
from batchqueue.cli.groups.link import Report
from batchqueue.cli.text import duration
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.groups.errors import HandlerFailedError, ReplacedError, TruncatedError
from batchqueue.groups.worker import Worker, WorkerSummary

_FINAL = (HandlerFailedError, ReplacedError, TruncatedError)
"""Errors that need the user: another process would only get them again."""


def work(
    worker: Worker,
    *,
    max_seconds: float | None,
    until_idle: float | None,
    reported: Callable[[Report], None] = lambda report: None,
) -> int:
    """Run a worker, and print a line at its start and its end.

    Args:
        worker: The worker.
        max_seconds: As in `Worker.run`.
        until_idle: As in `Worker.run`.
        reported: Gets the report.

    Returns:
        0; 1 if records in hand were given up.

    Raises:
        BatchQueueError: As `Worker.run`.
    """
    where = f"group {worker.settings.group}, stream {worker.source.stream}, pid {os.getpid()}"
    print(f"worker {worker.name} starts: {where}", flush=True)
    try:
        summary = worker.run(max_seconds=max_seconds, until_idle=until_idle)
    except ConfigError:
        raise
    except BatchQueueError as error:
        # The summary of a worker that failed; what it did counts as well.
        summary = worker.leave()
        _print_end(worker, summary)
        reported(report_of(summary, is_final=isinstance(error, _FINAL)))
        raise
    _print_end(worker, summary)
    reported(report_of(summary, is_final=True))
    return FAILED if summary.unfinished else OK


def report_of(summary: WorkerSummary, *, is_final: bool) -> Report:
    """Return what the supervisor needs of a summary."""
    return Report(
        handled=summary.handled,
        dead=summary.dead,
        skipped=summary.skipped,
        unfinished=sum(summary.unfinished.values()),
        is_final=is_final,
    )


def counts(report: Report) -> str:
    """Return the counts as text; those that are 0 and need no attention are left out."""
    others = (
        (report.dead, "dead letter"),
        (report.skipped, "skipped record"),
        (report.unfinished, "unfinished record"),
    )
    parts = [f"{counted(report.handled, 'record')} handled"]
    parts += [counted(number, noun) for number, noun in others if number]
    return ", ".join(parts)


def _print_end(worker: Worker, summary: WorkerSummary) -> None:
    done = counts(report_of(summary, is_final=True))
    lost = f", {counted(summary.lost, 'partition')} lost to other workers" if summary.lost else ""
    print(f"worker {worker.name} ended after {duration(summary.seconds)}: {done}{lost}", flush=True)
