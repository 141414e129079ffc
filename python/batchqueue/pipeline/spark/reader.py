"""The adapter: any source as a data source of Spark. It needs pyspark 4.2, so import it late.

`BusyListener` reports to the readers of a run how long their last epochs were busy.

Spark pickles the data source three times: for the process that plans (a stream reader lives there
for the whole run of a query), for a process that plans the tasks of a batch, and, with the reader
in it, for the tasks.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.types import StructType

from batchqueue.base.background_log import BackgroundLog
from batchqueue.base.exact_cast import exact_cast
from batchqueue.pipeline.contract import Position, SourceDataError, Split
from batchqueue.pipeline.spark.control import DriverControl, EpochReport, RunControl
from batchqueue.pipeline.spark.epochs import Epochs, EpochSettings, all_splits, grouped
from batchqueue.pipeline.spark.source import PickledSource
from batchqueue.pipeline.spark.stages import arrow_schema


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """What the readers of one query need. It pickles.

    Attributes:
        source: What to read.
        struct: Its schema in Spark.
        epochs: How to plan epochs.
        control: The directory of the driver's orders.
    """

    source: PickledSource
    struct: StructType
    epochs: EpochSettings
    control: DriverControl


def data_source(name: str, settings: ReaderSettings) -> "type[PipelineDataSource]":
    """Make the data source of one query, with the name of its format."""
    # No module has this class under its name, so it is pickled by value, along with its settings.
    return cast(
        type[PipelineDataSource],
        type("QueryDataSource", (PipelineDataSource,), {"settings": settings, "format": name}),
    )


class PipelineDataSource(DataSource):
    """The data source of one query; `data_source` makes a subclass that holds its settings."""

    settings: ClassVar[ReaderSettings]
    format: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format

    def schema(self) -> StructType:
        """Return the schema of the source."""
        return self.settings.struct

    def reader(self, schema: StructType) -> "SourceReader":
        """Make the reader of a batch."""
        return SourceReader(self.settings)

    def streamReader(self, schema: StructType) -> "SourceStreamReader":
        """Make the reader of a stream. One that Spark only pickles for the tasks opens nothing."""
        return SourceStreamReader(self.settings)


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """What one task reads."""

    splits: tuple[Split, ...]


class TaskReader:
    """Reads the splits of one task."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._settings = settings

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the splits of one task, in the types that Spark takes."""
        settings = self._settings
        source = settings.source.load()
        schema = arrow_schema(settings.struct)
        for split in cast(TaskPartition, partition).splits:
            for batch in source.read(split):
                yield _for_spark(batch, schema, source.name)


class SourceReader(TaskReader, DataSourceReader):
    """Reads everything that exists now as one batch."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the whole source."""
        source = self._settings.source.load()
        splits = all_splits(source, source.initial()).splits
        tasks = grouped(splits, self._settings.epochs.max_tasks)
        # Without any partition Spark would call read with None.
        return [TaskPartition(task) for task in tasks or [()]]


class SourceStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans epochs in the one process of a query, and reads splits in its tasks."""

    _opened: Epochs | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what planning has opened: tasks need none of it."""
        return {"_settings": self._settings}

    def initialOffset(self) -> Position:
        """Return where a new query begins."""
        return self._epochs.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return any limit other than `ReadAllAvailable`, which stands for `once`.

        Spark asks once per run, so the number could not follow the sink; `latestOffset` decides.
        """
        return ReadMaxRows(self._settings.epochs.goal.first_rows)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:
        """Return the end of the next epoch."""
        return self._epochs.next_end(start, everything=isinstance(limit, ReadAllAvailable))

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query after what exists now."""
        self._epochs.end_with_what_is_there()

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        """Return the tasks of an epoch."""
        return [TaskPartition(task) for task in self._epochs.tasks(start, end)]

    def commit(self, end: Position) -> None:
        """Record what has been stored."""
        self._epochs.commit(end)

    @property
    def _epochs(self) -> Epochs:
        if self._opened is None:
            settings = self._settings
            self._opened = Epochs(settings.source.load(), settings.epochs, settings.control)
        return self._opened


def _for_spark(batch: pa.RecordBatch, schema: pa.Schema, source: str) -> pa.RecordBatch:
    """Return rows in the types that Spark takes.

    Raises:
        SourceDataError: A value does not fit, for instance because of its nanoseconds.
    """
    columns = []
    for field in schema:
        column = batch.column(field.name)
        where = f"source {source!r}: column {field.name!r}"
        if column.null_count and not field.nullable:
            raise SourceDataError(f"{where} has a null, and the schema says that it has none")
        try:
            columns.append(exact_cast(column, field.type))
        except pa.ArrowException as error:
            raise SourceDataError(
                f"{where} is {column.type}, and Spark has {field.type} ({error}); write it so that "
                "it fits, or leave it out of the source"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_log = BackgroundLog("batchqueue.pipeline")


class BusyListener(StreamingQueryListener):
    """Writes the busy time of each epoch into the directory that the readers check.

    A reader cannot know the busy time where epochs wait for a trigger. Spark calls listeners
    asynchronously, on one of its threads; a late report is not used.
    """

    def __init__(self, run: RunControl, queries: Collection[str]) -> None:
        """Describe a run.

        Args:
            run: Its directory, which lives at least as long as the listener.
            queries: The names of its queries.
        """
        self._run = run
        self._queries = frozenset(queries)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Write the report of an epoch."""
        progress = event.progress
        query = progress.name
        if query not in self._queries or not progress.sources or progress.numInputRows < 1:
            return
        times = progress.durationMs
        # latestOffset may have waited for the end of a pause.
        busy_ms = times.get("triggerExecution", 0) - times.get("latestOffset", 0)
        end = json.dumps(json.loads(progress.sources[0].endOffset), sort_keys=True)
        try:
            self._run.control.report(query, EpochReport(end, progress.numInputRows, busy_ms / 1000))
        except OSError as error:  # Spark would log it as its own error
            _log.debug("query %s: its epoch cannot be reported: %s", query, error)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing."""
