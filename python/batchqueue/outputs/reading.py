"""Reading metrics back, as partials or as Arrow: the same methods and checks for all stores."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from batchqueue._requirements import require
from batchqueue._words import a_type
from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.layout import Layout, table_layout
from batchqueue.outputs.store import bucket_limit

if TYPE_CHECKING:
    import pyarrow as pa

M = TypeVar("M", bound=Metrics)

ROWS_AT_ONCE = 65_536
"""Rows that a record batch has at most, and that a server sends in one answer."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The stored rows that a reader wants. It pickles, as its metric type does.

    Attributes:
        metric_type: The metric.
        sink_id: The sink that wrote them.
        entities: These entities; `None` for all.
        since: No time bucket before this one; `None` for no limit.
        before: Only time buckets before this one; `None` for no limit.
        files: A part of them: those in these data files of a ParquetStore; `None` for all.
    """

    metric_type: type[Metrics]
    sink_id: str
    entities: tuple[str, ...] | None = None
    since: int | None = None
    before: int | None = None
    files: tuple[str, ...] | None = None

    @classmethod
    def checked(
        cls,
        metric_type: type[Metrics],
        sink_id: str,
        entities: Iterable[str] | None,
        since: int | datetime | None,
        before: int | datetime | None,
    ) -> Self:
        """Check what a caller asks for.

        Raises:
            ConfigError: It is not a metric type, a list of texts, or a limit of time buckets.
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
            entities=None if entities is None else _checked_entities(entities),
            since=None if since is None else bucket_limit("since", since),
            before=None if before is None else bucket_limit("before", before),
        )

    def wants(self, entity: str, time_bucket: int) -> bool:
        """Return whether the rows of a key of the metric are wanted."""
        return (self.entities is None or entity in self.entities) and self.overlaps(
            time_bucket, time_bucket + 1
        )

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether rows of time buckets from `start` until before `end` may be wanted."""
        return (self.before is None or start < self.before) and (
            self.since is None or end > self.since
        )


def _checked_entities(entities: Iterable[str]) -> tuple[str, ...]:
    if isinstance(entities, str) or not isinstance(entities, Iterable):
        raise ConfigError(f"entities={entities!r}: give a list of entities, for instance ['rome']")
    found = tuple(entities)
    for entity in found:
        if not isinstance(entity, str):
            raise ConfigError(
                f"entities has {entity!r}, {a_type(entity)}; an entity is a str, for instance "
                "'rome'"
            )
    return found


class MetricsReader(ABC):
    """The methods of a store that read metrics. They never wait for writers."""

    def read(
        self,
        metric_type: type[M],
        sink_id: str = "default",
        *,
        entities: Iterable[str] | None = None,
        since: int | datetime | None = None,
        before: int | datetime | None = None,
    ) -> list[M]:
        """Return the stored partials of a metric, ordered by entity and time bucket.

        They are as of one commit. It does not wait for writers.

        Args:
            metric_type: The metric.
            sink_id: The sink that wrote them.
            entities: Only these entities; `None` for all.
            since: No time bucket before this one: seconds since 1970, or a datetime with a zone;
                `None` for no limit.
            before: Only time buckets before this one; `None` for no limit.

        Raises:
            ConfigError: An argument is invalid.
            StoreError: There is no such store, or it cannot be read.
            StoreUnavailableError: The server is down or out of reach.
        """
        selection = Selection.checked(metric_type, sink_id, entities, since, before)
        return partials_of(metric_type, self.rows(selection))

    def read_table(
        self,
        metric_type: type[Metrics],
        sink_id: str = "default",
        *,
        entities: Iterable[str] | None = None,
        since: int | datetime | None = None,
        before: int | datetime | None = None,
    ) -> "pa.Table":
        """Return the stored rows of a metric as an Arrow table, ordered by its first columns.

        They are as of one commit. It does not wait for writers, and needs the extra `parquet`.

        Args:
            metric_type: The metric.
            sink_id: The sink that wrote them.
            entities: Only these entities; `None` for all.
            since: No time bucket before this one: seconds since 1970, or a datetime with a zone;
                `None` for no limit.
            before: Only time buckets before this one; `None` for no limit.

        Returns:
            The columns `entity` (string), `time_bucket` (int64, seconds since 1970), `rank` (int64;
            only for kinds with several rows for a partial), and those of the metric: int64, float64
            or string.

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: pyarrow is not installed.
            StoreError: There is no such store, it cannot be read, or a value does not fit its
                column.
            StoreUnavailableError: The server is down or out of reach.
        """
        require("pyarrow", f"{type(self).__name__}.read_table", "parquet")
        import pyarrow as pa

        from batchqueue.outputs.rows import schema_of_metric

        selection = Selection.checked(metric_type, sink_id, entities, since, before)
        schema = schema_of_metric(table_layout(metric_type))
        return pa.Table.from_batches(self.batches(selection), schema)

    def parts(self, selection: Selection, count: int = 1) -> Sequence[Selection]:
        """Split a selection into parts of one commit, which several processes may read.

        Args:
            selection: What is read.
            count: How many parts are useful; a store may make fewer, or more if they are large.
        """
        return [selection]

    def batches(self, selection: Selection) -> Iterator["pa.RecordBatch"]:
        """Yield the rows of a selection as record batches; those of a part in any order.

        Raises:
            StoreError: The store cannot be read, or a value does not fit its column.
            StoreUnavailableError: The server is down or out of reach.
        """
        from batchqueue.outputs.rows import batch_of, schema_of_metric

        metric_type = selection.metric_type
        schema = schema_of_metric(table_layout(metric_type))
        rows = self.rows(selection)
        while some := tuple(islice(rows, ROWS_AT_ONCE)):
            yield batch_of(metric_type.name, some, schema)

    @abstractmethod
    def rows(self, selection: Selection) -> Iterator[Row]:
        """Yield the rows of a selection, with the columns of `read_table`, ordered by the first.

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
        metric_type: A metric type to read its rows with, made of what is stored, as its kind is not
            known. It does not pickle.
        rows: The number of its rows.
        first: Its first time bucket.
        last: Its last time bucket.
    """

    metric_type: type[Metrics]
    rows: int
    first: int
    last: int


class _UnknownKind(Metrics):
    """A metric of a kind that is not known: its rows can be read."""

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
    """Make the type of a metric that is known by what is stored only: its rows can be read."""
    members = {
        "name": name,
        "table": layout.table,
        "columns": dict(layout.columns),
        "multi_row": layout.multi_row,
        "__slots__": (),
    }
    return type(name, (_UnknownKind,), members)


def name_and_table(metric: StoredMetric) -> tuple[str, str]:
    """Return what stored metrics are ordered by."""
    return metric.metric_type.name, metric.metric_type.table


def partials_of(metric_type: type[M], rows: Iterable[Row]) -> list[M]:
    """Rebuild the partials of a metric from its rows, with the columns of `read_table`."""
    values = slice(len(table_layout(metric_type).key_columns) - 1, None)
    return [
        metric_type.from_rows(entity, time_bucket, [row[values] for row in group])
        for (entity, time_bucket), group in groupby(rows, key=lambda row: row[:2])
    ]
