"""What `batchqueue store check` finds in a store: its sinks, and what is wrong."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchqueue.outputs.store import UNMARKED

_YEAR_9999_S = 253_370_764_800

Query = tuple[str, str]
"""A sink, and a query id of its ledger."""


@dataclass
class SinkReport:
    """What a store has of a sink.

    Attributes:
        queries: Number of queries with a mark.
        rows: Number of rows in all tables.
        last_commit_s: When the newest epoch was committed, seconds since 1970; None if its summary
            does not say so, or no summary is kept.
    """

    queries: int = 0
    rows: int = 0
    last_commit_s: float | None = None


@dataclass
class StoreReport:
    """What a store has, and what is wrong with it.

    Attributes:
        sinks: By sink id.
        problems: A sentence each; empty if nothing was found.
    """

    sinks: dict[str, SinkReport] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def sink(self, sink_id: str) -> SinkReport:
        """Return what is known of a sink so far."""
        return self.sinks.setdefault(sink_id, SinkReport())

    def add_newest(self, sink_id: str, summary: Mapping[str, Any]) -> None:
        """Add the newest summary of a sink, which may be that of any program."""
        committed_at = commit_time(summary)
        if committed_at is not None:
            self.sink(sink_id).last_commit_s = committed_at

    def add_ledger(self, marks: Mapping[Query, int], newest: Mapping[Query, int]) -> None:
        """Add the queries of all sinks, and what is wrong with their ledger.

        Args:
            marks: The mark of each query.
            newest: The largest batch id of each query among the summaries that are kept.
        """
        for sink_id, _ in marks:
            self.sink(sink_id).queries += 1
        self.problems += _ledger_problems(marks, newest)


def commit_time(summary: Mapping[str, Any]) -> float | None:
    """Return when an epoch was committed, seconds since 1970; `None` if its summary has no time."""
    committed_at = summary.get("committed_at")
    if isinstance(committed_at, int | float) and 0 <= committed_at < _YEAR_9999_S:
        return committed_at
    return None


def _ledger_problems(marks: Mapping[Query, int], newest: Mapping[Query, int]) -> Iterable[str]:
    """Marks and summaries are written together, so that a difference means mixed states."""
    for (sink_id, query_id), batch_id in newest.items():
        mark = marks.get((sink_id, query_id))
        if mark is None and (sink_id, UNMARKED) not in marks:
            yield f"sink {sink_id!r} has summaries of query {query_id}, and no mark of it"
        elif mark is not None and mark != batch_id:
            yield (
                f"sink {sink_id!r} has epochs of query {query_id} up to {mark} according to its "
                f"mark, and up to {batch_id} according to its summaries"
            )
