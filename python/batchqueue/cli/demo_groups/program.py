"""A worker of the demo: what it stores, what it notes, and the process that it is on Redis."""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from batchqueue.cli.demo_groups.flights import CODEC, GROUP, PARTITIONS, SINK_ID, STREAM, metrics_of
from batchqueue.cli.demo_groups.journal import Journal
from batchqueue.cli.groups_run import open_link, work
from batchqueue.exceptions import BatchQueueError
from batchqueue.groups import MetricsSink, RedisStreams, Worker
from batchqueue.groups.backend import StreamSource
from batchqueue.outputs import SqliteStore

LEASE_MS = 1_500
"""Short, so that the takeover is soon seen. Services have five seconds by default."""

GRACE_S = 5.0

_MOST_RECORDS = 2_000
"""In a call of the handler: about what comes again after a crash."""

_VARIABLE = "BATCHQUEUE_DEMO_WORKER"


@dataclass(frozen=True)
class WorkerSettings:
    """What the process of a worker is given, in its environment: other users cannot read that.

    Attributes:
        name: The name of the worker.
        url: The server, with its password.
        database: The file of the aggregates.
        journal: The file of its journal.
    """

    name: str
    url: str
    database: str
    journal: str

    @classmethod
    def from_environment(cls) -> Self:
        """Return those of this process."""
        return cls(**json.loads(os.environ[_VARIABLE]))

    def environment(self) -> dict[str, str]:
        """Return the environment of the process."""
        return {**os.environ, _VARIABLE: json.dumps(asdict(self))}


def make_worker(name: str, source: StreamSource, database: Path, journal: Journal) -> Worker:
    """Return a worker that merges flights into the database, each exactly once.

    Args:
        name: Its name.
        source: The stream.
        database: The file of the aggregates.
        journal: What it notes what it does in.
    """
    worker = Worker(
        GROUP,
        source,
        codec=CODEC,
        name=name,
        lease_ms=LEASE_MS,
        grace=GRACE_S,
        max_batch_items=_MOST_RECORDS,
        on_assign=journal.assigned,
        on_revoke=journal.revoked,
        on_lost=journal.lost,
    )
    sink = MetricsSink(SqliteStore(database), metrics_of, sink_id=SINK_ID)
    worker.handler(journal.around(sink))
    return worker


def main(link: int) -> int:
    """Work until SIGTERM, or until the demo at the other end of the link is gone."""
    held = open_link(link)
    settings = WorkerSettings.from_environment()
    source = RedisStreams(settings.url, STREAM, partitions=PARTITIONS)
    journal = Journal(Path(settings.journal))
    worker = make_worker(settings.name, source, Path(settings.database), journal)
    try:
        return work(worker, max_seconds=None, until_idle=None)
    except BatchQueueError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        held.close()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
