"""Reading metrics back, as partials or as Arrow: the same methods and checks for all stores."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Entity, KeyValue, Row, checked_value, key_values
from batchqueue.base.checks import require
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.layout import (
    Layout,
    batch_of,
    partials_of,
    schema_of_metric,
    table_layout,
)
from batchqueue.outputs.store import bucket_limit

if TYPE_CHECKING:
    import pyarrow as pa

M = TypeVar("M", bound=Metrics)

Keys = Mapping[str, KeyValue | Iterable[KeyValue]]
"""The wanted value or values, by name of the key column."""

ROWS_AT_ONCE = 65_536
"""The most rows of a record batch, and the rows that a server sends in one response."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The stored rows that a reader wants. It pickles, as its metric type does.

    Attributes:
        metric_type: The metric.
        sink_id: The sink that wrote them.
        entities: Only these entities; `None` for all.
        since: Only time buckets from this one on; `None` for no limit.
        before: Only time buckets before this one; `None` for no limit.
        keys: Key columns with their wanted values; empty for all rows.
        files: Only rows in these data files of a ParquetStore; `None` for all.
    """

    metric_type: type[Metrics]
    sink_id: str
    entities: tuple[str, ...] | None = None
    since: int | None = None
    before: int | None = None
    keys: tuple[tuple[str, tuple[KeyValue, ...]], ...] = ()
    files: tuple[str, ...] | None = None

    @classmethod
    def checked(
        cls,
        metric_type: type[Metrics],
        sink_id: str,
        *,
        entities: Iterable[Entity] | None = None,
        since: int | datetime | None = None,
        before: int | datetime | None = None,
        keys: Keys | None = None,
    ) -> Self:
        """Make a selection of checked arguments.

        Raises:
            ConfigError: An argument is not a metric type, a list of entities, a limit of time
                buckets, or values of key columns.
        """
        if not isinstance(metric_type, type) or not issubclass(metric_type, Metrics):
            raise ConfigError(
                f"{metric_type!r} cannot be read: it is {a_type(metric_type)}; give a metric type, "
                'as metric_type("hits", CountMetrics) makes it'
            )
        table_layout(metric_type)
        return cls(
            metric_type=metric_type,
            sink_id=sink_id,
            entities=None if entities is None else _checked_entities(metric_type, entities),
            since=None if since is None else bucket_limit("since", since),
            before=None if before is None else bucket_limit("before", before),
            keys=() if keys is None else _checked_keys(metric_type, keys),
        )

    def wants(self, entity: str, time_bucket: int) -> bool:
        """Return whether the rows of a key of the metric are wanted."""
        if not self.overlaps(time_bucket, time_bucket + 1):
            return False
        if self.entities is not None and entity not in self.entities:
            return False
        if not self.keys:
            return True
        columns = self.metric_type.key_columns
        values = dict(zip(columns, key_values(columns, entity), strict=True))
        return all(values[column] in wanted for column, wanted in self.keys)

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether rows of time buckets from `start` on and before `end` may be wanted."""
        return (self.before is None or start < self.before) and (
            self.since is None or end > self.since
        )


def _checked_entities(metric_type: type[Metrics], entities: Iterable[Entity]) -> tuple[str, ...]:
    if isinstance(entities, str) or not isinstance(entities, Iterable):
        raise ConfigError(f"entities={entities!r}: give a list of entities, for instance ['rome']")
    found = tuple(map(metric_type.entity_of, entities))
    for entity in found:
        if not isinstance(entity, str):
            raise ConfigError(
                f"entities has {entity!r}, {a_type(entity)}; an entity is a str, for instance "
                "'rome', or a tuple of the values of its key columns"
            )
    return found


def _checked_keys(
    metric_type: type[Metrics], keys: Keys
) -> tuple[tuple[str, tuple[KeyValue, ...]], ...]:
    columns = metric_type.key_columns
    if not isinstance(keys, Mapping):
        raise ConfigError(
            f"keys={keys!r}: give a dict from key column to values, for instance "
            "{'carrier': ['UA', 'DL']}"
        )
    found = []
    for column, given in keys.items():
        if column not in columns:
            raise ConfigError(
                f"keys has {column!r}, and metric {metric_type.name} has "
                f"{'the key columns ' + ', '.join(columns) if columns else 'no key columns'}: "
                f"{'give one of them' if columns else 'use entities='}"
            )
        values = [given] if isinstance(given, str) or not isinstance(given, Iterable) else given
        try:
            wanted = tuple(checked_value(column, columns[column], value) for value in values)
        except ValueError as error:
            raise ConfigError(f"keys: {error}; give a value of that type") from error
        found.append((column, wanted))
    return tuple(found)


class MetricsReader(ABC):
    """The methods of a store that read metrics. They never wait for writers."""

    def read(
        self,
        metric_type: type[M],
        sink_id: str = "default",
        *,
        entities: Iterable[Entity] | None = None,
        since: int | datetime | None = None,
        before: int | datetime | None = None,
        keys: Keys | None = None,
    ) -> list[M]:
        """Return the stored partials of a metric, ordered by entity and time bucket.

        They are as of one commit. Reading does not wait for writers.

        Args:
            metric_type: The metric.
            sink_id: The sink that wrote them.
            entities: Only these entities, each its text or a tuple of key values; `None` for all.
            since: Only time buckets from this one on: seconds since 1970, or a datetime with a
                zone; `None` for no limit.
            before: Only time buckets before this one; `None` for no limit.
            keys: Only rows with these values of key columns, for instance `{"carrier": ["UA",
                "DL"]}`; `None` for all.

        Raises:
            ConfigError: An argument is invalid.
            StoreError: There is no such store, or it cannot be read.
            StoreUnavailableError: The server is down or out of reach.
        """
        selection = Selection.checked(
            metric_type, sink_id, entities=entities, since=since, before=before, keys=keys
        )
        return partials_of(metric_type, self.rows(selection))

    def read_table(
        self,
        metric_type: type[Metrics],
        sink_id: str = "default",
        *,
        entities: Iterable[Entity] | None = None,
        since: int | datetime | None = None,
        before: int | datetime | None = None,
        keys: Keys | None = None,
    ) -> "pa.Table":
        """Return the stored rows of a metric as an Arrow table, ordered by its first columns.

        They are as of one commit. Reading does not wait for writers, and needs the extra `parquet`.

        Args:
            metric_type: The metric.
            sink_id: The sink that wrote them.
            entities: Only these entities, each its text or a tuple of key values; `None` for all.
            since: Only time buckets from this one on: seconds since 1970, or a datetime with a
                zone; `None` for no limit.
            before: Only time buckets before this one; `None` for no limit.
            keys: Only rows with these values of key columns, for instance `{"carrier": ["UA",
                "DL"]}`; `None` for all.

        Returns:
            The columns `entity` (string), `time_bucket` (int64, seconds since 1970), `rank` (int64;
            only for kinds with several rows for a partial), the key columns of the metric (string,
            int64, bool or date32), and its value columns (int64, float64, string, bool or
            decimal128).

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: pyarrow is not installed.
            StoreError: There is no such store, it cannot be read, or a value does not fit its
                column.
            StoreUnavailableError: The server is down or out of reach.
        """
        require("pyarrow", f"{type(self).__name__}.read_table", "parquet")
        import pyarrow as pa

        selection = Selection.checked(
            metric_type, sink_id, entities=entities, since=since, before=before, keys=keys
        )
        schema = schema_of_metric(table_layout(metric_type))
        return pa.Table.from_batches(self.batches(selection), schema)

    def parts(self, selection: Selection, count: int = 1) -> Sequence[Selection]:
        """Split a selection into parts of one commit, which several processes may read.

        Args:
            selection: The rows to read.
            count: The useful number of parts; a store may make fewer, or more if they are large.
        """
        return [selection]

    def batches(self, selection: Selection) -> Iterator["pa.RecordBatch"]:
        """Yield the rows of a selection as record batches; a part's rows in any order.

        Raises:
            StoreError: The store cannot be read, or a value does not fit its column.
            StoreUnavailableError: The server is down or out of reach.
        """
        metric_type = selection.metric_type
        schema = schema_of_metric(table_layout(metric_type))
        rows = self.rows(selection)
        while some := tuple(islice(rows, ROWS_AT_ONCE)):
            yield batch_of(metric_type.name, some, schema)

    @abstractmethod
    def rows(self, selection: Selection) -> Iterator[Row]:
        """Yield the rows of a selection, with the columns and in the order of `read_table`.

        They are as of one commit.

        Raises:
            StoreError: The store cannot be read.
            StoreUnavailableError: The server is down or out of reach.
        """

    @abstractmethod
    def metrics(self, sink_id: str = "default") -> list["StoredMetric"]:
        """Return what a sink has stored, ordered by the names of metrics and tables.

        Raises:
            StoreError: The store cannot be read.
            StoreUnavailableError: The server is down or out of reach.
        """


class StoredMetric(NamedTuple):
    """A metric that a sink has stored.

    Attributes:
        metric_type: A metric type for reading its rows, made from what is stored. As its kind is
            unknown, its key columns are among its `columns`. It does not pickle.
        rows: The number of its rows.
        first: Its first time bucket.
        last: Its last time bucket.
    """

    metric_type: type[Metrics]
    rows: int
    first: int
    last: int


class _UnknownKind(Metrics):
    """A metric of an unknown kind, whose rows can be read."""

    __slots__ = ()

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Refuse to make partials."""
        raise ConfigError(
            f"the kind of metric {cls.name} is not known: read its rows with read_table(), or its "
            "partials with read() and the metric type that wrote them"
        )


@cache
def stored_type(name: str, layout: Layout) -> type[Metrics]:
    """Make a metric type from the stored layout alone, with which rows can be read."""
    members = {
        "name": name,
        "table": layout.table,
        "columns": dict(layout.columns),
        "multi_row": layout.multi_row,
        "__slots__": (),
    }
    return type(name, (_UnknownKind,), members)


def name_and_table(metric: StoredMetric) -> tuple[str, str]:
    """Return the sort key of a stored metric."""
    return metric.metric_type.name, metric.metric_type.table
