"""Follows the ledger of a sink, or of all its shards: which epochs of a query are new."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchqueue.spark.commit.epoch_summary import l1_ratio
from batchqueue.spark.commit.totals import STAGES, SinkTotals
from batchqueue.spark.monitoring.ledger import LedgerStore, checked_sink_ids
from batchqueue.spark.stage.stage_summary import StageSummary

_NEWEST = 100
"""Entries that each poll reads; more than an application adds between two polls."""


class NewEpoch(NamedTuple):
    """An epoch that was committed, with shards by all of them.

    Attributes:
        batch_id: Its number.
        summary: See `epoch_summary`; with shards their sum, as far as `log_line` needs it.
        totals: The totals of the sink, or of all shards, as of this epoch.
    """

    batch_id: int
    summary: Mapping[str, Any]
    totals: SinkTotals


class EpochWatch:
    """Finds the epochs of one query that the ledger has got since the last poll.

    It never waits for a writer.
    """

    def __init__(
        self, store: LedgerStore, sink_ids: str | Sequence[str], query_id: str, *, after: int = -1
    ) -> None:
        """Describe what to watch.

        Args:
            store: Where the ledger is.
            sink_ids: One sink, or all of its shards.
            query_id: The query whose epochs to watch.
            after: Number of the last epoch that is not new. Default: all epochs are new.
        """
        self._store = store
        self._sink_ids = checked_sink_ids(sink_ids)
        self._query_id = query_id
        self._last = after
        self._found: dict[int, dict[str, dict[str, Any]]] = {}

    def poll(self) -> list[NewEpoch]:
        """Return the new epochs, in order.

        Raises:
            StoreError: The store cannot be read, or does not exist yet.
        """
        for sink_id in self._sink_ids:
            for query_id, batch_id, summary in self._store.summaries(sink_id, _NEWEST):
                if query_id == self._query_id and batch_id > self._last:
                    self._found.setdefault(batch_id, {})[sink_id] = summary
        # A shard may be an epoch ahead of another; such an epoch waits for the next poll.
        complete = sorted(
            batch_id for batch_id, found in self._found.items() if len(found) == len(self._sink_ids)
        )
        new = [_joined(batch_id, list(self._found[batch_id].values())) for batch_id in complete]
        if complete:
            self._last = complete[-1]
            self._found = {
                batch_id: found for batch_id, found in self._found.items() if batch_id > self._last
            }
        return new


def _joined(batch_id: int, summaries: Sequence[Mapping[str, Any]]) -> NewEpoch:
    totals = SinkTotals.sum(
        SinkTotals.carried_by(summary) or SinkTotals.from_summary(summary) for summary in summaries
    )
    if len(summaries) == 1:
        return NewEpoch(batch_id, summaries[0], totals)
    sums = {
        name: sum(summary[name] for summary in summaries)
        for name in ("rows", "items", "partials", "commit_bytes")
    }
    stages = {
        stage: vars(
            StageSummary.total([StageSummary(**summary["stages"][stage]) for summary in summaries])
        )
        for stage in STAGES
    }
    joined = {
        **summaries[0],
        **sums,
        "l1_ratio": l1_ratio(**{name: sums[name] for name in ("rows", "items", "partials")}),
        "stages": stages,
        # The shards commit concurrently.
        "commit_wall_s": max(summary["commit_wall_s"] for summary in summaries),
    }
    return NewEpoch(batch_id, joined, totals)
