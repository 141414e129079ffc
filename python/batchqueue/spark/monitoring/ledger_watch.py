"""Follows the ledger of a sink, or of all shards of one: which epochs of a query are new."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchqueue.spark.commit.epoch_summary import l1_ratio
from batchqueue.spark.commit.totals import STAGES, SinkTotals
from batchqueue.spark.monitoring.ledger import LedgerStore, checked_sink_ids
from batchqueue.spark.stage.stage_summary import StageSummary

_AT_ONCE = 100
"""Newest entries that are looked at; more than end between two looks."""


class NewEpoch(NamedTuple):
    """An epoch that was committed, by all shards where there are some.

    Attributes:
        batch_id: Its number.
        summary: See `epoch_summary`; of several shards added up, as far as `log_line` needs it.
        totals: Of the sink, or of all shards, up to here.
    """

    batch_id: int
    summary: Mapping[str, Any]
    totals: SinkTotals


class EpochWatch:
    """What the ledger has of one query that it did not have at the last look. It waits for no writer."""

    def __init__(
        self, store: LedgerStore, sink_ids: str | Sequence[str], query_id: str, *, after: int = -1
    ) -> None:
        """Describe what to watch.

        Args:
            store: Where the ledger is.
            sink_ids: One sink, or the shards of one.
            query_id: Whose epochs.
            after: Number of the last epoch that is no news.
        """
        self._store = store
        self._sink_ids = checked_sink_ids(sink_ids)
        self._query_id = query_id
        self._last = after
        self._found: dict[int, dict[str, dict[str, Any]]] = {}

    def poll(self) -> list[NewEpoch]:
        """Return the epochs that are new, in their order.

        Raises:
            StoreError: The store cannot be read, or does not exist yet.
        """
        for sink_id in self._sink_ids:
            for query_id, batch_id, summary in self._store.summaries(sink_id, _AT_ONCE):
                if query_id == self._query_id and batch_id > self._last:
                    self._found.setdefault(batch_id, {})[sink_id] = summary
        # A shard may be an epoch ahead of another one; such an epoch is for the next look.
        complete = sorted(
            batch_id for batch_id, found in self._found.items() if len(found) == len(self._sink_ids)
        )
        new = [_joined(batch_id, list(self._found[batch_id].values())) for batch_id in complete]
        if complete:
            self._last = complete[-1]
            self._found = {
                batch_id: one for batch_id, one in self._found.items() if batch_id > self._last
            }
        return new


def _joined(batch_id: int, summaries: Sequence[Mapping[str, Any]]) -> NewEpoch:
    totals = SinkTotals.sum(
        SinkTotals.carried_by(one) or SinkTotals.from_summary(one) for one in summaries
    )
    if len(summaries) == 1:
        return NewEpoch(batch_id, summaries[0], totals)
    sums = {
        name: sum(one[name] for one in summaries)
        for name in ("rows", "items", "partials", "commit_bytes")
    }
    stages = {
        name: vars(StageSummary.total([StageSummary(**one["stages"][name]) for one in summaries]))
        for name in STAGES
    }
    joined = {
        **summaries[0],
        **sums,
        "l1_ratio": l1_ratio(**{name: sums[name] for name in ("rows", "items", "partials")}),
        "stages": stages,
        "commit_wall_s": max(one["commit_wall_s"] for one in summaries),  # they work side by side
    }
    return NewEpoch(batch_id, joined, totals)
