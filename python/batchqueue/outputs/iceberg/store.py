"""`IcebergStore`: metrics in the tables of an Iceberg catalog."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from batchqueue.base.checks import require
from batchqueue.base.iceberg_catalog import CatalogHandle
from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import TableStore
from batchqueue.outputs.iceberg.errors import iceberg_errors
from batchqueue.outputs.layout import table_layout
from batchqueue.outputs.reading import Selection, StoredMetric, name_and_table
from batchqueue.outputs.store import (
    Epoch,
    StoreError,
    StoreReport,
    StoreTransaction,
    StoreUnavailableError,
    checked_kept_summaries,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog

    from batchqueue.outputs.iceberg.table import SinkTable
    from batchqueue.outputs.iceberg.transaction import IcebergTransaction


R = TypeVar("R")

_DAY = 86_400

_READS = 3
"""Attempts to read a snapshot whose files are removed meanwhile."""


_locks: dict[tuple[int, str, str], threading.Lock] = {}
"""By process, store and sink: a lock held at a fork would never be released in the child."""


class IcebergStore(TableStore):
    """A `MetricsStore` in Iceberg tables, for the engines that read your lakehouse.

    Needs the extra `iceberg`, and what your catalog needs: see pyiceberg's documentation. Each sink
    has a table in the namespace, and each transaction that changes something is one snapshot of it,
    with the marks of the ledger. Any number of processes may use it. Transactions of a sink in one
    process wait for each other. Across processes they do not: a commit fails if another process has
    committed meanwhile. Readers never wait. The store can be pickled, and used after a fork.

    A data file holds the metrics of a kind whose time buckets start in the same `partition_s`
    seconds. A transaction reads and rewrites, in memory, the files of the partitions that it
    touches.

    Attributes:
        namespace: The namespace of the tables.
        partition_s: Seconds of time buckets that a data file covers; `None` for the value of the
            sink.
        lock_timeout_s: Seconds that a transaction waits for another one of its sink in this
            process.
        kept_summaries: Number of newest epochs of each sink whose summaries are read.
    """

    def __init__(
        self,
        namespace: str,
        *,
        catalog: "str | Mapping[str, Any] | Catalog | None" = None,
        partition_s: int | None = 86_400,
        lock_timeout_s: float = 30,
        kept_summaries: int = 1_000,
    ) -> None:
        """Declare a store without opening it.

        Args:
            namespace: The namespace of the tables, for instance `"metrics"`; created on demand.
            catalog: The name of a catalog in pyiceberg's configuration; or its properties,
                including its `name`; or an open catalog. Default: `None`, the default catalog.
            partition_s: Seconds of time buckets that a data file covers, at least 1; 86,400, a day,
                by default. A sink keeps the value that it was first written with; `None` stands
                for that, and for a day in a new sink.
            lock_timeout_s: Seconds that a transaction waits for another one of its sink in this
                process; 30 by default.
            kept_summaries: Number of newest epochs of each sink whose summaries are read, at least
                1; 1,000 by default. They are kept as long as their snapshots.

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: pyiceberg or pyarrow is not installed.
        """
        if not isinstance(namespace, str) or not namespace:
            raise ConfigError(
                f"the namespace of IcebergStore is {namespace!r}, {a_type(namespace)}; "
                'give its name, for instance IcebergStore("metrics")'
            )
        is_width = partition_s is None or (type(partition_s) is int and partition_s >= 1)
        if not is_width or lock_timeout_s < 0:
            raise ConfigError(
                f"partition_s={partition_s!r}, lock_timeout_s={lock_timeout_s!r}: give at least 1 "
                "second for a partition, as an int, and no negative time"
            )
        require("pyiceberg", "IcebergStore", "iceberg")
        require("pyarrow", "IcebergStore", "iceberg")
        from pyiceberg.catalog import Catalog

        if isinstance(catalog, Catalog):
            self._catalog = CatalogHandle.of(catalog)
        else:
            self._catalog = CatalogHandle(catalog)
        self.namespace = namespace
        self.partition_s = partition_s
        self.lock_timeout_s = lock_timeout_s
        self.kept_summaries = checked_kept_summaries(kept_summaries)

    def __repr__(self) -> str:
        return f"IcebergStore({self.namespace!r}, catalog={self._catalog!r})"

    def __getstate__(self) -> dict[str, Any]:
        if self._catalog.is_in_memory:
            raise StoreError(
                f"{self!r} cannot be sent to another process: its catalog is in the memory of this "
                "one; use a catalog that other processes reach, for instance a REST catalog"
            )
        return dict(self.__dict__)

    def prepare(self) -> None:
        """Check that the catalog can be reached, and create the namespace if it is missing.

        Raises:
            StoreError: The catalog refuses it.
            StoreUnavailableError: The catalog is down or out of reach.
        """
        with self._errors():
            catalog = self._open()
            if catalog.namespace_exists(self.namespace):  # creating it may need other rights
                return
            try:
                catalog.create_namespace(self.namespace)
            except Exception as error:
                # A SQL catalog raises the error of its database if another process was first.
                with suppress(Exception):
                    if catalog.namespace_exists(self.namespace):
                        return
                raise error

    def table(self, sink_id: str = "default") -> str:
        """Return the identifier of the table of a sink, for SQL and for other engines.

        Its columns are batchqueue_table (the table that other stores would use), metric, entity,
        time_bucket, rank (for kinds with several rows per partial), and those of all kinds of
        metrics that were stored, which are null in the rows of the others.

        Args:
            sink_id: The sink.
        """
        from batchqueue.outputs.iceberg.table import table_name

        return f"{self.namespace}.{table_name(sink_id)}"

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        """Open a transaction of a sink.

        It commits on a clean exit of the block, and rolls back on an exception.

        Args:
            sink_id: The sink that writes; several sinks may share a namespace.

        Raises:
            StoreError: The table cannot be written.
            StoreUnavailableError: Another transaction of the sink held the lock for longer than
                `lock_timeout_s`, or has committed meanwhile; or the catalog is down or out of
                reach.
        """
        with self._locked(sink_id):
            transaction = self._transaction(sink_id)
            found = transaction.partition_s
            if self.partition_s not in (None, found):
                raise StoreError(
                    f"table {self.table(sink_id)} has partition_s={found}, and cannot be written "
                    f"with {self.partition_s}: use partition_s={found}, or another namespace"
                )
            if not transaction.has_table():
                self.prepare()
            yield transaction
            transaction.check()
            transaction.commit()

    @contextmanager
    def ledger(self, sink_id: str = "default") -> Iterator[StoreTransaction | None]:
        """Read the ledger of a sink as of one snapshot: its marks, summaries and description.

        It yields `None` if nothing was committed for the sink yet.

        Args:
            sink_id: The sink to read.

        Raises:
            StoreError: The table cannot be read.
            StoreUnavailableError: The catalog is down or out of reach.
        """
        transaction = self._transaction(sink_id)
        yield transaction if transaction.has_table() else None

    def sinks(self) -> list[str]:
        """Return the ids of the sinks that have written, sorted as texts.

        Raises:
            StoreError: There is no such namespace, or a table cannot be read.
            StoreUnavailableError: The catalog is down or out of reach.
        """
        from batchqueue.outputs.iceberg.table import SINK

        with self._errors():
            catalog = self._open()
            self._need_namespace(catalog)
            found = []
            for identifier in catalog.list_tables(self.namespace):
                if identifier[-1].startswith("sink_"):
                    found.append(catalog.load_table(identifier).properties.get(SINK))
        return sorted(sink for sink in found if sink and self._transaction(sink).has_anything())

    def summaries(self, sink_id: str = "default", newest: int | None = None) -> list[Epoch]:
        """Return the summaries kept for a sink, in the order of recording.

        A summary is kept as long as the snapshot of its epoch; the newest is always kept.

        Args:
            sink_id: The sink that recorded them.
            newest: Return at most this many of the newest; `None` for all.

        Raises:
            StoreError: There is no such namespace, or the table cannot be read.
            StoreUnavailableError: The catalog is down or out of reach.
        """
        from batchqueue.outputs.iceberg.table import epochs_of

        count = self.kept_summaries if newest is None else min(newest, self.kept_summaries)
        return self._reading(sink_id, lambda sink: epochs_of(sink.metadata, sink.name, count))

    def metrics(self, sink_id: str = "default") -> list[StoredMetric]:
        """Return what a sink has stored, ordered by the names of the metrics.

        Raises:
            StoreError: There is no such namespace, or the table cannot be read.
            StoreUnavailableError: The catalog is down or out of reach.
        """
        from batchqueue.outputs.iceberg.table import metrics_in

        return sorted(self._reading(sink_id, metrics_in), key=name_and_table)

    def tables(self, selection: Selection) -> "list[pa.Table]":
        """Return the rows of a selection as one table, as of one snapshot, or an empty list."""
        from batchqueue.outputs.iceberg.table import read_selected

        layout = table_layout(selection.metric_type)
        return self._reading(selection.sink_id, lambda sink: read_selected(sink, layout, selection))

    def _transaction(self, sink_id: str) -> "IcebergTransaction":
        from batchqueue.outputs.iceberg.table import SinkTable
        from batchqueue.outputs.iceberg.transaction import IcebergTransaction

        identifier = self.table(sink_id)

        def create() -> SinkTable:
            return SinkTable.create(self._open(), identifier, sink_id, self.partition_s or _DAY)

        with self._errors():
            sink = SinkTable.load(self._open(), identifier, sink_id)
            partition_s = sink.partition_s if sink is not None else self.partition_s or _DAY
            return IcebergTransaction(sink, create, partition_s, repr(self), self.kept_summaries)

    @contextmanager
    def _locked(self, sink_id: str) -> Iterator[None]:
        """Exclude other transactions of the sink in this process."""
        lock = _locks.setdefault((os.getpid(), repr(self), sink_id), threading.Lock())
        if not lock.acquire(timeout=self.lock_timeout_s):
            raise StoreUnavailableError(
                f"cannot use {self!r}: sink {sink_id!r} stayed locked for {self.lock_timeout_s} s; "
                "another writer in this process kept it busy: raise lock_timeout_s, or stop that "
                "writer"
            )
        try:
            yield
        finally:
            lock.release()

    def _reading(self, sink_id: str, read: "Callable[[SinkTable], list[R]]") -> list[R]:
        """Read the newest snapshot, and retry if its files were removed meanwhile."""
        from batchqueue.outputs.iceberg.table import SinkTable

        with self._errors():
            catalog = self._open()
            self._need_namespace(catalog)
            for remaining in reversed(range(_READS)):
                sink = SinkTable.load(catalog, self.table(sink_id), sink_id)
                if sink is None:
                    return []
                try:
                    return read(sink)
                except FileNotFoundError:
                    if not remaining:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _open(self) -> "Catalog":
        try:
            return self._catalog.open()
        except ValueError as error:  # pyiceberg raises it for missing configuration
            raise StoreError(
                f"cannot open the catalog of {self!r}: {error}; give catalog= its properties, or "
                "add it to pyiceberg's configuration"
            ) from error

    def _need_namespace(self, catalog: "Catalog") -> None:
        if not catalog.namespace_exists(self.namespace):
            raise StoreError(
                f"cannot read {self!r}: the catalog has no such namespace; write to it first"
            )

    def _errors(self) -> AbstractContextManager[None]:
        return iceberg_errors(repr(self))


# The check of an Iceberg store: its content, and whether its data files and ledger are intact.


def check_iceberg(store: IcebergStore) -> StoreReport:
    """Read a whole store, and report its content and its problems.

    Raises:
        StoreError: It cannot be read.
        StoreUnavailableError: The catalog is down or out of reach.
    """
    report = StoreReport()
    for sink_id in store.sinks():
        try:
            _add_sink(report, store, sink_id)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            report.sink(sink_id)
            report.problems.append(str(error))
    return report


def _add_sink(report: StoreReport, store: IcebergStore, sink_id: str) -> None:
    with store.ledger(sink_id) as ledger:
        if ledger is not None:
            epochs = ledger.summaries()
            marks = {query: ledger.last_batch(query) for query in ledger.known_queries()}
            report.add_ledger(
                {(sink_id, query): mark for query, mark in marks.items() if mark is not None},
                {(sink_id, epoch.query_id): epoch.batch_id for epoch in epochs},
            )
            if epochs:
                report.add_newest(sink_id, epochs[-1].summary)
    for metric in store.metrics(sink_id):
        rows = store.read_table(metric.metric_type, sink_id)
        report.sink(sink_id).rows += len(rows)
        keys = list(table_layout(metric.metric_type).key_columns[1:])
        repeated = len(rows) - len(rows.select(keys).group_by(keys).aggregate([]))
        if repeated:
            report.problems.append(
                f"sink {sink_id!r} has {counted(repeated, 'row')} of metric "
                f"{metric.metric_type.name} whose key another row has: another program has added "
                "them, and one of each key counts; delete those that are wrong"
            )
