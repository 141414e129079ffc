"""Writes that count once: the protocol by which groups, pipelines and Spark write to a sink.

A write is a batch of a group, a cut of a pipeline, or an epoch of Spark. `write_once` takes its
steps in one transaction, so that a store has either all of them or none:

1. Refuse another owner. The description of the sink says who owns it.
2. Compare the mark of the write, and leave out what the store already has.
3. Merge what is left with what is stored.
4. Raise the mark, and add a summary if the ledger keeps one.

The store keeps one description for each sink. A Spark job describes its sink by its fingerprint.
Other descriptions have a `kind`, such as "group", the fields that name the owner, and `metrics`:
the table, columns and limit of each metric, by name.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from batchqueue.aggregation import Metrics
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.layout import columns_of, shown
from batchqueue.outputs.store import Epoch, MetricsStore, StoreReport, StoreTransaction, to_json

W = TypeVar("W")

Summary = Mapping[str, Any]


def write_once(
    store: MetricsStore,
    sink_id: str,
    mark: str,
    number: int,
    *,
    unstored: Callable[[StoreTransaction, int | None], W | None],
    merge: Callable[[StoreTransaction, W], Summary | None],
    marked: bool = True,
) -> Summary | None:
    """Write to a sink what its ledger does not have yet.

    Args:
        store: Where to write.
        sink_id: The sink.
        mark: The query id of the mark.
        number: The new value of the mark.
        unstored: Takes the transaction and the current mark, None without a mark. Raises to refuse
            the write; else returns what is not stored yet, or None if nothing is left: then the
            mark stays.
        merge: Takes the transaction and what is not stored yet, merges it into the store, and
            returns the summary for the ledger, or None for no summary.
        marked: See `StoreTransaction.record`. Default: True.

    Returns:
        The summary; None if there is no summary, or nothing was left to write.
    """
    with store.transaction(sink_id) as transaction:
        left = unstored(transaction, transaction.last_batch(mark))
        if left is None:
            return None
        summary = merge(transaction, left)
        if summary is None:
            transaction.raise_mark(mark, number)
        else:
            transaction.record(mark, number, summary, marked=marked)
    return summary


@dataclass(frozen=True)
class OwnedSink:
    """A sink that belongs to one group or pipeline; Spark jobs guard their sinks differently.

    Attributes:
        store: The store of the sink.
        sink_id: The id of the sink.
        owner: The owner's `kind`, and the fields that distinguish it from others of that kind.
    """

    store: MetricsStore
    sink_id: str
    owner: Mapping[str, str]

    def write_once(
        self,
        mark: str,
        number: int,
        unstored: Callable[[StoreTransaction, int | None], Sequence[Metrics] | None],
        **notes: Any,
    ) -> None:
        """Merge partials that the sink does not have yet.

        Args:
            mark: The query id of the mark.
            number: The new value of the mark.
            unstored: Returns the partials that are not stored yet, as in the function `write_once`.
            notes: Further fields of the description.

        Raises:
            ConfigError: Another owner has written to the sink, or the table, the columns, the limit
                or the accuracy of a metric has changed.
        """

        def admitted(
            transaction: StoreTransaction, last: int | None
        ) -> tuple[Summary | None, Sequence[Metrics]] | None:
            description = self.description(transaction)
            partials = unstored(transaction, last)
            return None if partials is None else (description, partials)

        def merge(
            transaction: StoreTransaction, admitted: tuple[Summary | None, Sequence[Metrics]]
        ) -> None:
            description, partials = admitted
            now = {**self._described(description, partials), **notes}
            if now != description:
                transaction.describe(now)
            if partials:
                transaction.merge(partials)

        write_once(self.store, self.sink_id, mark, number, unstored=admitted, merge=merge)

    def description(self, transaction: StoreTransaction) -> Mapping[str, Any] | None:
        """Return the description of the sink; None if the sink is new.

        Raises:
            ConfigError: Another owner has written to the sink.
        """
        found = transaction.description()
        if found is None and not transaction.known_queries():
            return None
        if found is None or any(found.get(name) != value for name, value in self.owner.items()):
            raise ConfigError(
                f"{self} was written by {owner_text(found)}, and {owner_text(self.owner)} would "
                "count its records beside those: give each group, stream, pipeline and job its own "
                "sink_id"
            )
        return found

    def _described(
        self, description: Mapping[str, Any] | None, partials: Iterable[Metrics]
    ) -> dict[str, Any]:
        """Return the description of the sink, extended by the metrics of partials."""
        known = {} if description is None else description["metrics"]
        now = {each.name: layout_of(each) for each in {type(partial) for partial in partials}}
        for name, layout in sorted(now.items()):
            before = known.get(name, layout)
            if before != layout:
                writer = "worker" if self.owner["kind"] == "group" else self.owner["kind"]
                raise ConfigError(
                    f"{self} has metric {name!r} as {layout_text(before)}, and now it is "
                    f"{layout_text(layout)}, which cannot be merged: give the metric another name, "
                    f"or this {writer} another sink_id"
                )
        return {**(description or self.owner), "metrics": {**known, **now}}

    def __str__(self) -> str:
        return f"sink {self.sink_id!r} of {self.store!r}"


_KINDS = {
    "group": 'group "{group}" on stream "{stream}"',
    "pipeline": 'pipeline "{pipeline}"',
}


def owner_text(
    description: Mapping[str, Any] | None,
    other: str = "another kind of job, such as a Spark query",
) -> str:
    """Return the owner in a description as text; `other` if its kind is not known."""
    pattern = None if description is None else _KINDS.get(str(description.get("kind")))
    return other if description is None or pattern is None else pattern.format(**description)


def layout_of(metric: type[Metrics]) -> dict[str, Any]:
    """Return the layout of a metric type for a description."""
    accuracy = getattr(metric, "accuracy", None)
    return {
        "table": metric.table,
        "columns": {name: shown(kind) for name, kind in columns_of(metric)},
        "limit": getattr(metric, "limit", None),
        **({} if accuracy is None else {"accuracy": accuracy}),
    }


def layout_text(layout: Mapping[str, Any]) -> str:
    """Return a layout from `layout_of` as text for a message."""
    columns = ", ".join(f"{name} {kind}" for name, kind in layout["columns"].items())
    limit = "" if layout["limit"] is None else f", limit {layout['limit']}"
    accuracy = f", accuracy {layout['accuracy']}" if "accuracy" in layout else ""
    return f"{layout['table']} ({columns}{limit}{accuracy})"


# The ledger of a sink in a database, with the same statements for all databases.


_ALL = 2**63 - 1


class SqlLedger(StoreTransaction):
    """A `StoreTransaction` whose marks, summaries and description are in database tables."""

    def __init__(self, sink_id: str, kept_summaries: int, schema: str = "") -> None:
        """Make the ledger of a sink.

        Args:
            sink_id: The sink whose rows to read and write.
            kept_summaries: Number of summaries to keep for the sink.
            schema: Prefix of the table names.
        """
        self._sink_id = sink_id
        self._kept_summaries = kept_summaries
        self._marks = f"{schema}batchqueue_marks"
        self._epochs = f"{schema}batchqueue_epochs"
        self._sinks = f"{schema}batchqueue_sinks"

    @abstractmethod
    def _ran(self, sql: str, *values: object) -> AbstractContextManager[Any]:
        """Run a statement, with `?` in place of each value, and yield its cursor."""

    def raise_mark(self, query_id: str, batch_id: int) -> None:
        """Set the mark of a query."""
        sql = (
            f"INSERT INTO {self._marks} (sink, query_id, batch_id) VALUES (?, ?, ?) "
            "ON CONFLICT (sink, query_id) DO UPDATE SET batch_id = excluded.batch_id"
        )
        with self._ran(sql, self._sink_id, query_id, batch_id):
            pass

    def add_summary(self, query_id: str, batch_id: int, summary: str) -> None:
        """Store the summary of an epoch, and delete the oldest if there are too many."""
        add = f"INSERT INTO {self._epochs} (sink, query_id, batch_id, summary) VALUES (?, ?, ?, ?)"
        forget = (
            f"DELETE FROM {self._epochs} WHERE sink = ? AND seq <= (SELECT seq FROM {self._epochs} "
            "WHERE sink = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)"
        )
        with self._ran(add, self._sink_id, query_id, batch_id, summary):
            pass
        with self._ran(forget, self._sink_id, self._sink_id, self._kept_summaries):
            pass

    def last_batch(self, query_id: str) -> int | None:
        """Return the mark of a query; `None` without a mark."""
        sql = f"SELECT batch_id FROM {self._marks} WHERE sink = ? AND query_id = ?"
        with self._ran(sql, self._sink_id, query_id) as found:
            row = found.fetchone()
        return None if row is None else row[0]

    def known_queries(self) -> set[str]:
        """Return the ids of the queries with a mark."""
        sql = f"SELECT query_id FROM {self._marks} WHERE sink = ?"
        with self._ran(sql, self._sink_id) as found:
            return {query_id for (query_id,) in found}

    def summaries(self, newest: int | None = None) -> list[Epoch]:
        """Return the newest summaries that are kept, in the order in which they were recorded."""
        sql = (
            f"SELECT query_id, batch_id, summary FROM {self._epochs} WHERE sink = ? "
            "ORDER BY seq DESC LIMIT ?"
        )
        with self._ran(sql, self._sink_id, _ALL if newest is None else newest) as found:
            rows = found.fetchall()
        return [
            Epoch(query_id, batch_id, _from_json(summary))
            for query_id, batch_id, summary in reversed(rows)
        ]

    def description(self) -> dict[str, Any] | None:
        """Return the description of the job that wrote last; `None` without a description."""
        sql = f"SELECT description FROM {self._sinks} WHERE sink = ?"
        with self._ran(sql, self._sink_id) as found:
            row = found.fetchone()
        return None if row is None else _from_json(row[0])

    def describe(self, description: Mapping[str, Any]) -> None:
        """Store a description of the job that writes."""
        sql = (
            f"INSERT INTO {self._sinks} (sink, description) VALUES (?, ?) "
            "ON CONFLICT (sink) DO UPDATE SET description = excluded.description"
        )
        with self._ran(sql, self._sink_id, to_json(description)):
            pass


def report_ledgers(
    report: StoreReport, rows: Callable[[str], Iterable[Sequence[Any]]], schema: str = ""
) -> None:
    """Add the ledgers of all sinks, and their problems, to a report.

    Args:
        report: The report.
        rows: Runs a statement and returns its rows.
        schema: Prefix of the table names.
    """
    epochs = f"{schema}batchqueue_epochs"
    marks = rows(f"SELECT sink, query_id, batch_id FROM {schema}batchqueue_marks")
    newest = rows(f"SELECT sink, query_id, max(batch_id) FROM {epochs} GROUP BY sink, query_id")
    report.add_ledger(
        {(sink, query): mark for sink, query, mark in marks},
        {(sink, query): batch_id for sink, query, batch_id in newest},
    )
    last = f"WHERE seq IN (SELECT max(seq) FROM {epochs} GROUP BY sink)"
    for sink, summary in rows(f"SELECT sink, summary FROM {epochs} {last}"):
        report.add_newest(sink, _from_json(summary))


def _from_json(content: Any) -> Any:
    """Return the content of a JSON column, which some databases return as text."""
    return json.loads(content) if isinstance(content, str) else content
