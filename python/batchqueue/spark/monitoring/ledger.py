"""A ledger that can be read without its writers, and the sinks whose entries are read."""

from collections.abc import Sequence
from typing import Protocol

from batchqueue import ConfigError
from batchqueue.outputs import Epoch


class LedgerStore(Protocol):
    """A store whose ledger can be read without its writers; those of this package are all so."""

    def summaries(self, sink_id: str, newest: int | None) -> list[Epoch]:
        """Return the newest summaries of a sink."""
        ...


def checked_sink_ids(sink_ids: str | Sequence[str]) -> tuple[str, ...]:
    """Return the sink ids as given.

    Raises:
        ConfigError: There is none, or one twice.
    """
    given = (sink_ids,) if isinstance(sink_ids, str) else tuple(sink_ids)
    if not given or len(set(given)) < len(given):
        raise ConfigError(
            f"sink_ids={sink_ids!r}: give at least one sink id, each once; with shards MetricsWriter.sink_ids"
        )
    return given
