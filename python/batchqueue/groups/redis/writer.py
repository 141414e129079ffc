"""`RedisWriter`: a producer's connection to a stream on Redis."""

import threading
from collections.abc import Sequence

from batchqueue.groups.backend import NewRecord
from batchqueue.groups.offsets import parse_id
from batchqueue.groups.redis.checks import check_server
from batchqueue.groups.redis.client import Link
from batchqueue.groups.redis.count import fixed_partitions
from batchqueue.groups.redis.keys import PartitionKeys
from batchqueue.groups.redis.partition import PartitionCalls
from batchqueue.groups.redis.records import fields_of
from batchqueue.groups.redis.replicas import LONGEST_WAIT_MS, replicas_of
from batchqueue.groups.redis.server import Server

_TIMEOUT_S = 10.0
"""How long connecting may take, and waiting for a reply."""


class RedisWriter:
    """A producer's connection; see `backend.Writer`."""

    def __init__(self, server: Server, stream: str, *, wait_replicas: int = 0) -> None:
        """Connect with the first call.

        Args:
            server: Where Redis is.
            stream: The stream.
            wait_replicas: How many replicas are to confirm records. Default: 0.
        """
        self._stream = stream
        replicas = replicas_of(stream, wait_replicas, 10 * LONGEST_WAIT_MS)
        self._link = Link(server, stream, _TIMEOUT_S, replicas=replicas)
        self._calls = PartitionCalls(stream, "")
        self._lock = threading.Lock()

    def partitions(self, given: int | None) -> int:
        """Return the partitions of the stream, after a check of the server."""
        with self._lock:
            check_server(self._link)
            return fixed_partitions(self._link, self._stream, given)

    def add(self, records: Sequence[NewRecord], max_len: int | None) -> list[int | None]:
        """Add records."""
        with self._lock:
            self._link.refresh()
            if max_len is None:
                ids = self._link.run([self._words(each) for each in records], replicated=True)
                return [parse_id(each) for each in ids]
            return self._add_bounded(records, max_len)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _words(self, record: NewRecord) -> list[bytes | str]:
        partition, value, key, headers = record
        stream = PartitionKeys(self._stream, partition).records
        return ["XADD", stream, "*", *fields_of(value, key, headers)]

    def _add_bounded(self, records: Sequence[NewRecord], max_len: int) -> list[int | None]:
        # A script for each partition, which ends with the first record that has no place: so a
        # script that the server had forgotten can be sent again without a change of the order.
        places: dict[int, list[int]] = {}
        for place, record in enumerate(records):
            places.setdefault(record.partition, []).append(place)
        calls = [
            self._calls.add(partition, max_len, [records[place] for place in chosen])
            for partition, chosen in places.items()
        ]
        offsets: list[int | None] = [None] * len(records)
        replies = self._link.call(calls, replicated=True)
        for chosen, ids in zip(places.values(), replies, strict=True):
            for place, each in zip(chosen, ids, strict=False):
                offsets[place] = parse_id(each)
        return offsets
