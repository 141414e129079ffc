"""`open_membership`, `start_threads`: how a worker begins."""

import os
import socket
import threading
import uuid
from collections.abc import Callable
from typing import Any

from batchqueue._core import PartitionPolicy
from batchqueue.config import BatchQueueConfig
from batchqueue.groups.backend import Source
from batchqueue.groups.balancer import bounded
from batchqueue.groups.control import BEATS_PER_LEASE, Control
from batchqueue.groups.worker.leaving import LAST_SHUTDOWN_S
from batchqueue.groups.worker.load import weigh
from batchqueue.groups.worker.loops import (
    commit_loop,
    control_loop,
    guarded,
    listen_loop,
    read_loop,
)
from batchqueue.groups.worker.membership import Membership
from batchqueue.groups.worker.metrics import stats_of
from batchqueue.groups.worker.routes import Routes
from batchqueue.groups.worker.settings import WorkerSettings
from batchqueue.policies import DrainBalancer
from batchqueue.queue import BatchQueue

_MANY = 1 << 16
"""More partitions per drain thread than a worker has lanes: each lane gets its own."""

_SPARE_THREADS = 256
"""Started only while all drain threads are inside of handlers, and ended when idle."""


def open_membership(
    settings: WorkerSettings, source: Source, routes: Routes, name: str
) -> Membership:
    """Connect, and make all that the threads of a worker share.

    Args:
        settings: The settings of the worker.
        source: The stream.
        routes: The handlers.
        name: The name of the worker.

    Raises:
        ConfigError: The stream has another number of partitions.
        StreamUnavailableError: The server cannot be reached.
    """
    connection = source.connect(settings.group, lease_ms=settings.lease_ms, name=name)
    try:
        partitions = connection.partitions(source.partition_count)
    except BaseException:
        connection.close()
        raise
    control = Control(
        name,
        nonce=uuid.uuid4().hex,
        lease_ms=settings.lease_ms,
        partitions=partitions,
        capacity=settings.capacity,
        host=socket.gethostname(),
        pid=os.getpid(),
        balancer=bounded(settings.balancer, settings.lease_ms / 1_000 / BEATS_PER_LEASE),
        weigh=weigh,
        stats=lambda: stats_of(member),
    )
    queue: BatchQueue[Any] = BatchQueue(
        f"{settings.group}/{source.stream}",
        BatchQueueConfig(
            threads=settings.threads,
            partitions=PartitionPolicy.adaptive(_MANY),
            buffer_size=16,
            balancer=DrainBalancer.load_weighted(),
            # A handler that hangs holds a thread: each partition may have one.
            spare_threads=_SPARE_THREADS,
            shutdown_timeout=LAST_SHUTDOWN_S,
        ),
    )
    member = Membership(
        settings,
        stream=source.stream,
        routes=routes,
        connection=connection,
        control=control,
        queue=queue,
    )
    return member


def start_threads(member: Membership) -> list[threading.Thread]:
    """Start the threads of a worker, and return them."""
    loops: dict[str, Callable[[], None]] = {
        "control": lambda: control_loop(member),
        "listener": lambda: listen_loop(member),
        "reader": lambda: read_loop(member),
        "committer": lambda: commit_loop(member),
        "handover": member.handover.run,
    }
    threads = [
        threading.Thread(
            target=guarded,
            args=(member, loop),
            name=f"{member.settings.group}-{name}",
            daemon=True,
        )
        for name, loop in loops.items()
    ]
    for thread in threads:
        thread.start()
    return threads
