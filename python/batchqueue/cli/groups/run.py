"""`groups run`: workers of a user's program."""

import argparse
import sys
from collections.abc import Sequence

from batchqueue.cli.command import Command
from batchqueue.cli.groups.link import Report, open_link, send_report
from batchqueue.cli.groups.process import work
from batchqueue.cli.groups.program import load_worker
from batchqueue.cli.groups.supervisor import NUMBER_VARIABLE, Supervisor
from batchqueue.cli.numbers import seconds, whole_number
from batchqueue.groups.memory import MemoryStreams

_MOST_WORKERS = 1_024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Run a worker until SIGTERM or Ctrl-C: then it finishes what is in hand, commits, and "
        "hands its partitions over. A second signal gives up what is in hand. With several "
        "workers, each is a process, which is started again if it dies; the variable "
        f"{NUMBER_VARIABLE} holds its number. The exit code is 1 if a worker failed or gave "
        "records up."
    )
    parser.add_argument(
        "worker",
        metavar="MODULE:ATTR",
        help="a Worker, or a function without arguments that returns one; modules in the current "
        "directory can be imported",
    )
    parser.add_argument(
        "--workers",
        type=whole_number(1, _MOST_WORKERS),
        default=1,
        metavar="N",
        help="processes (default: 1, the worker runs in this one)",
    )
    parser.add_argument(
        "--until-idle",
        type=seconds,
        metavar="S",
        help="end when no record has come for S seconds and none is in hand",
    )
    parser.add_argument("--max-seconds", type=seconds, metavar="S", help="end after S seconds")
    parser.add_argument("--supervisor-link", type=int, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Run one worker here, or several in processes."""
    if arguments.workers > 1:
        return _supervise(arguments)
    if arguments.supervisor_link is None:
        return _work(arguments)
    link = open_link(arguments.supervisor_link)
    reports: list[Report] = []
    try:
        return _work(arguments, reports)
    finally:
        send_report(link, reports[0] if reports else Report())


def _work(arguments: argparse.Namespace, reports: list[Report] | None = None) -> int:
    worker = load_worker(arguments.worker)
    if reports is not None and isinstance(worker.source, MemoryStreams):
        print(
            f"stream {worker.source.stream} is in memory, where each process has another one",
            file=sys.stderr,
        )
    return work(
        worker,
        max_seconds=arguments.max_seconds,
        until_idle=arguments.until_idle,
        reported=(lambda report: None) if reports is None else reports.append,
    )


def _supervise(arguments: argparse.Namespace) -> int:
    def command(left: float | None) -> Sequence[str]:
        options = {"--until-idle": arguments.until_idle, "--max-seconds": left}
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        return [*given, "--", arguments.worker]

    return Supervisor(arguments.workers, command, arguments.max_seconds).run()


RUN = Command(
    name="run",
    help="run the workers of a program",
    add_arguments=add_arguments,
    run=run,
)
