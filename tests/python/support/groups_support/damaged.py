"""A stream in memory with keys of a wrong type, as a server may have them."""

from batchqueue.groups import CallRefusedError, MemoryStreams
from batchqueue.groups.backend import Unreadable
from batchqueue.groups.messages import Failed

REASON = "WRONGTYPE Operation against a key holding the wrong kind of value"


class DamagedStreams(MemoryStreams):
    """Refuses what a server refuses while some keys of partitions hold values of another type."""

    def __init__(self, stream, partitions):
        super().__init__(stream, partitions=partitions)
        self.damaged = set()

    def connect(self, group, *, lease_ms, name):
        return _Connection(self, group, super().connect(group, lease_ms=lease_ms, name=name))

    def key(self, partition, name):
        return f"bq:{{{self.stream}/{partition}}}:{name}"


class _Connection:
    def __init__(self, streams, group, connection):
        self._streams, self._group, self._connection = streams, group, connection

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def open(self, openings, start):
        opened = self._connection.open
        return [
            self._or(each.partition, "s", lambda e=each: opened([e], start)) for each in openings
        ]

    def infos(self, partitions):
        infos = self._connection.infos
        return [self._or(each, "s", lambda e=each: infos([e])) for each in partitions]

    def set_aside(self, requests):
        aside = self._connection.set_aside
        return [self._or(each.partition, "dead:g", lambda e=each: aside([e])) for each in requests]

    def read(self, fetches, wait_ms):
        bad = [each for each in fetches if self._is_damaged(each.partition, "s")]
        if not bad:
            return self._connection.read(fetches, wait_ms)
        found = self._connection.read([each for each in fetches if each not in bad], 0)
        return found + [Unreadable(each.partition, self._failed(each.partition)) for each in bad]

    def commit(self, commits):
        return [self._commit(each) for each in commits]

    def _commit(self, request):
        damaged = self._streams.damaged
        ran = next(
            (at for at, each in enumerate(request.commands) if damaged & set(each)),
            None,
        )
        fence = self._streams.script(request.partition).state.fences[self._group]
        if ran is None or (fence.token, fence.session) != (request.token, request.session):
            return self._connection.commit([request])[0]
        self._streams.script(request.partition).state.effects.extend(request.commands[:ran])
        return self._failed(request.partition, f"the command {request.commands[ran]}", ran)

    def _or(self, partition, name, call):
        return self._failed(partition) if self._is_damaged(partition, name) else call()[0]

    def _failed(self, partition, call="the call", ran=0):
        return Failed(CallRefusedError(self._streams.stream, partition, call, REASON), ran)

    def _is_damaged(self, partition, name):
        return self._streams.key(partition, name) in self._streams.damaged
