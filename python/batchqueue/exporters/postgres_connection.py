"""The connection of `PostgresRows`, whose waits end. It needs psycopg."""

import select
import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.types.json import JsonbDumper

from batchqueue.exporters.fields import as_json

V = TypeVar("V")


class BoundedConnection(psycopg.Connection[Any]):
    """Closes itself if the server does not answer within a time.

    No setting of libpq does that: the system of a server that hangs still acknowledges what it
    receives, and so does a proxy whose other side is silent.
    """

    wait_s = float("inf")
    """Seconds of silence that end a wait."""

    def wait(self, gen: PQGen[V], *arguments: Any, **options: Any) -> V:
        """Wait for the end of a generator of psycopg, as each of its calls does."""
        return super().wait(self._until_silent(gen), *arguments, **options)

    def _until_silent(self, gen: PQGen[V]) -> PQGen[V]:
        """Pass on what a generator waits for, until that has not come for too long."""
        end = time.monotonic() + self.wait_s
        try:
            wanted = next(gen)
            while True:
                # psycopg continues at least every 0.1 s, whether or not anything is ready. What is
                # there is read, however late it is.
                wanted = gen.send((yield wanted))
                if time.monotonic() > end:
                    self.close()
                    raise psycopg.OperationalError(
                        f"the server did not answer within {self.wait_s:g} s"
                    )
        except StopIteration as ended:
            value: V = ended.value
            return value

    def is_dead(self) -> bool:
        """Return whether it is closed, or at rest has news: the server says that it closes it."""
        if self.closed:
            return True
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))


def connect(words: dict[str, Any], wait_s: float) -> BoundedConnection:
    """Connect to a server.

    A transaction is one statement, or begins with BEGIN. Statements are not prepared, because a
    pooler in between may not keep them.
    """
    connection = BoundedConnection.connect(**words, autocommit=True, prepare_threshold=None)
    connection.wait_s = wait_s
    connection.adapters.register_dumper(dict, _DictDumper)
    return connection


class _DictDumper(JsonbDumper):
    """Stores a dict as the exporter for HTTP sends it: with dates, decimals and UUIDs as text."""

    def dump(self, obj: Any) -> bytes:
        """Return the JSON of a dict."""
        return as_json(obj).encode()
