"""`run_group`: one run of the group, on Redis if there is a server, else in memory."""

from contextlib import ExitStack

from rich.console import Console

from batchqueue.cli.demo_groups.conductor import Conductor, Story
from batchqueue.cli.demo_groups.feed import Feed
from batchqueue.cli.demo_groups.flights import GROUP, PARTITIONS, STREAM
from batchqueue.cli.demo_groups.folder import RunFolder
from batchqueue.cli.demo_groups.processes import ProcessWorkers
from batchqueue.cli.demo_groups.progress import following
from batchqueue.cli.demo_groups.server import (
    HOW_TO_GET_ONE,
    ServerMissingError,
    find_program,
    running_server,
)
from batchqueue.cli.demo_groups.threads import ThreadWorkers
from batchqueue.cli.demo_groups.workers import Workers
from batchqueue.cli.demo_job import FlightFiles
from batchqueue.cli.demo_progress import step
from batchqueue.groups import RedisStreams
from batchqueue.groups.backend import StreamSource
from batchqueue.outputs import SqliteStore


def run_group(console: Console, folder: RunFolder, files: FlightFiles, count: int) -> Story:
    """Let workers store all flights, and return what happened. Everything it started has ended.

    Args:
        console: Where to print.
        folder: The folder of the run.
        files: The flights.
        count: Workers at the start.

    Raises:
        BatchQueueError: The server, a worker or the feed failed.
    """
    SqliteStore(folder.database).prepare()
    with ExitStack() as stack:
        source, workers = _source_and_workers(console, folder, stack)
        feed = Feed(source, files)
        stack.callback(feed.stop)
        administration = source.open_administration(GROUP)
        stack.callback(administration.close)
        say, show = stack.enter_context(following(console, files.total_rows))
        return Conductor(administration, workers, feed, say=say, show=show).run(count)


def _source_and_workers(
    console: Console, folder: RunFolder, stack: ExitStack
) -> tuple[StreamSource, Workers]:
    try:
        program, version = find_program()
    except ServerMissingError as reason:
        console.print(
            f"{reason}: the stream is in memory, and workers are threads of this process\n"
            f"{HOW_TO_GET_ONE}"
        )
        threads = stack.enter_context(ThreadWorkers(folder))
        return threads.source, threads
    with step(console, f"starting {program}"):
        url = stack.enter_context(running_server(program, folder))
    address = url.rpartition("@")[2]
    console.print(f"Redis {version} at {address}, with a password, for this run only")
    processes = stack.enter_context(ProcessWorkers(folder, url))
    return RedisStreams(url, STREAM, partitions=PARTITIONS), processes
