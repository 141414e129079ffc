"""What every reader of a ledger needs: a store to read, and the ids of its sinks."""

from collections.abc import Sequence
from typing import Protocol

from batchqueue import ConfigError
from batchqueue.outputs import Epoch


class LedgerStore(Protocol):
    """A store whose ledger can be read while it is written, as with all stores of this package."""

    def summaries(self, sink_id: str, newest: int | None) -> list[Epoch]:
        """Return the newest summaries of a sink."""
        ...


def checked_sink_ids(sink_ids: str | Sequence[str]) -> tuple[str, ...]:
    """Return the sink ids as a tuple.

    Raises:
        ConfigError: There is no sink id, or a sink id occurs twice.
    """
    given = (sink_ids,) if isinstance(sink_ids, str) else tuple(sink_ids)
    if not given or len(set(given)) < len(given):
        raise ConfigError(
            f"sink_ids={sink_ids!r}: give at least one sink id, each once; with shards "
            "MetricsWriter.sink_ids"
        )
    return given
