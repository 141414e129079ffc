"""The reader of `spark.read`: what the sink of a job has stored."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceReader, InputPartition

from batchqueue import ConfigError
from batchqueue._words import a_type
from batchqueue.aggregation import Metrics
from batchqueue.outputs.layout import table_layout
from batchqueue.outputs.reading import MetricsReader, Selection
from batchqueue.spark.job.aggregation_job import AggregationJob

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_OPTIONS = ("metric", "sinkId", "shards", "since", "before")
_SPARK_TYPES = {int: T.LongType(), float: T.DoubleType(), str: T.StringType()}
_KEY_TYPES = {"entity": T.StringType(), "time_bucket": T.LongType(), "rank": T.LongType()}
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class ReadOptions:
    """The values given to `option(...)`, parsed.

    Attributes:
        store: The store of the job.
        selections: What to read: a selection for each shard, or one.
    """

    store: MetricsReader
    selections: tuple[Selection, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str], job: AggregationJob) -> Self:
        """Parse the options of a read.

        Args:
            options: Values by name, in lower case, as Spark passes them.
            job: Its metrics can be read; its name is the default sink id.

        Raises:
            ConfigError: A value is missing or invalid, an option is misspelt, or the store of the
                job cannot be read in this way.
        """
        _check_names(options)
        if not isinstance(job.store, MetricsReader):
            raise ConfigError(
                f"the store of job {job.name!r} is {a_type(job.store)}, which has no `batches`: "
                "read it by its own means, or derive it from batchqueue.outputs.MetricsReader"
            )
        selection = Selection.checked(
            _metric(options.get("metric"), job),
            options.get("sinkid", job.name),
            None,
            _limit(options, "since"),
            _limit(options, "before"),
        )
        if "shards" not in options:
            return cls(job.store, (selection,))
        shards = options["shards"]
        if not shards.isdecimal() or int(shards) == 0:
            raise ConfigError(
                f"option shards={shards!r}: give the number of shards of the MetricsWriter that "
                "wrote, or leave it out"
            )
        return cls(
            job.store,
            tuple(
                replace(selection, sink_id=f"{selection.sink_id}/{shard}")
                for shard in range(int(shards))
            ),
        )

    @property
    def schema(self) -> T.StructType:
        """The columns of what is read."""
        layout = table_layout(self.selections[0].metric_type)
        keys = [T.StructField(key, _KEY_TYPES[key]) for key in layout.key_columns[1:]]
        values = [T.StructField(name, _SPARK_TYPES[kind]) for name, kind in layout.columns]
        return T.StructType(keys + values)


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _OPTIONS}
    for key in options:
        if key.lower() in known:
            continue
        meant = get_close_matches(key.replace("_", "").lower(), known, n=1, cutoff=0.8)
        if meant:
            raise ConfigError(f"option {key!r} is not known: did you mean {known[meant[0]]}?")


def _metric(name: str | None, job: AggregationJob) -> type[Metrics]:
    by_name = {metric_type.name: metric_type for metric_type in job.metrics}
    if name is None and len(by_name) == 1:
        (name,) = by_name
    if name not in by_name:
        given = "needs option metric" if name is None else f"has no metric {name!r}"
        raise ConfigError(f"job {job.name!r} {given}: give one of {', '.join(sorted(by_name))}")
    return by_name[name]


def _limit(options: Mapping[str, str], name: str) -> int | datetime | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.utcoffset() is None:
        raise ConfigError(
            f"option {name}={text!r}: give a time bucket as a whole number, or a time with a zone, "
            "for instance 2026-01-31T00:00+00:00"
        )
    return found


class SinkReader(DataSourceReader):
    """Reads a sink, or those of its shards, each as of one commit: a task for each part."""

    def __init__(self, options: ReadOptions, tasks: int) -> None:
        """Make the reader.

        Args:
            options: What is read.
            tasks: How many tasks the session runs concurrently.
        """
        self._store = options.store
        self._selections = options.selections
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        count = math.ceil(self._tasks / len(self._selections))
        return [
            InputPartition(part)
            for selection in self._selections
            for part in self._store.parts(selection, count)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the part of one task; Spark makes a task without a part if there is none."""
        if partition.value is not None:
            yield from self._store.batches(partition.value)


class FilteringSinkReader(SinkReader):
    """The same, with the filters of the query on `entity` and `time_bucket`."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Narrow what is read, and return the filters that Spark has to apply itself."""
        for filter in filters:
            narrower = [narrowed(selection, filter) for selection in self._selections]
            if None in narrower:
                yield filter
            else:
                self._selections = tuple(each for each in narrower if each is not None)


_LIMITS: dict[str, tuple[int | None, int | None]] = {
    "EqualTo": (0, 0),
    "EqualNullSafe": (0, 0),
    "GreaterThanOrEqual": (0, None),
    "GreaterThan": (1, None),
    "LessThanOrEqual": (None, 0),
    "LessThan": (None, -1),
}
"""Kind of filter → what to add to its value for the first and the last time bucket."""


def narrowed(selection: Selection, filter: "Filter") -> Selection | None:
    """Return what a filter leaves of a selection; `None` if Spark has to apply it."""
    kind, attribute = type(filter).__name__, getattr(filter, "attribute", None)
    value: Any = getattr(filter, "value", None)
    if attribute == ("entity",) and kind in ("EqualTo", "EqualNullSafe", "In"):
        return _of_entities(selection, value if kind == "In" else [value])
    if attribute == ("time_bucket",) and kind in _LIMITS and isinstance(value, int):
        first, last = (None if more is None else value + more for more in _LIMITS[kind])
        return _between(selection, first, last)
    return None


def _of_entities(selection: Selection, entities: Iterable[Any]) -> Selection:
    wanted = [entity for entity in entities if entity is not None]
    if selection.entities is not None:
        wanted = [entity for entity in wanted if entity in selection.entities]
    return replace(selection, entities=tuple(wanted))


def _between(selection: Selection, first: int | None, last: int | None) -> Selection | None:
    if last == _LARGEST or (first is not None and first > _LARGEST):
        return None
    if first is not None and (selection.since is None or first > selection.since):
        selection = replace(selection, since=first)
    if last is not None and (selection.before is None or last + 1 < selection.before):
        selection = replace(selection, before=last + 1)
    return selection
