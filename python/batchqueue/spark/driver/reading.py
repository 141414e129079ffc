"""The reader of `spark.read`: what the sink of a job has stored."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceReader, InputPartition

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import KeyValue
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import BadRows, ChangedKeys
from batchqueue.outputs.layout import DECIMAL_DIGITS, DECIMAL_PLACES, table_layout
from batchqueue.outputs.reading import MetricsReader, Selection
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.requirements import SinkError

_OPTIONS = ("metric", "sinkId", "shards", "entities", "since", "before", "keys")
_SPARK_TYPES = {
    int: T.LongType(),
    float: T.DoubleType(),
    str: T.StringType(),
    bool: T.BooleanType(),
    Decimal: T.DecimalType(DECIMAL_DIGITS, DECIMAL_PLACES),
    date: T.DateType(),
}
_KEY_TYPES = {"entity": T.StringType(), "time_bucket": T.LongType(), "rank": T.LongType()}


@dataclass(frozen=True)
class ReadOptions:
    """The values given to `option(...)`, parsed.

    Attributes:
        store: The store of the job.
        selections: What to read: a selection for each shard, or one.
        shards: The number of shards; None for a sink without shards.
    """

    store: MetricsReader
    selections: tuple[Selection, ...]
    shards: int | None = None

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
        metric_type = _metric(options.get("metric"), job)
        selection = Selection.checked(
            metric_type,
            options.get("sinkid", job.name),
            entities=_entities(options.get("entities")),
            since=_limit(options, "since"),
            before=_limit(options, "before"),
            keys=_keys(options.get("keys"), metric_type),
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
            int(shards),
        )

    @property
    def schema(self) -> T.StructType:
        """The columns of what is read."""
        layout = table_layout(self.selections[0].metric_type)
        keys = [T.StructField(key, _KEY_TYPES[key]) for key in layout.key_columns[1:]]
        values = [T.StructField(name, _SPARK_TYPES[kind]) for name, kind in layout.columns]
        return T.StructType(keys + values)


def _check_names(options: Mapping[str, str]) -> None:
    """Reject what would silently read everything, or nothing."""
    known = {name.lower(): name for name in _OPTIONS}
    for key, value in options.items():
        if key.lower() not in known:
            meant = get_close_matches(key.replace("_", "").lower(), known, n=1, cutoff=0.7)
            hint = f"did you mean {known[meant[0]]}?" if meant else f"use {', '.join(_OPTIONS)}"
            raise ConfigError(f"option {key!r} is not known: {hint}")
        if not value.strip():
            raise ConfigError(
                f"option {known[key.lower()]} is blank: give a value, or leave it out"
            )


def _entities(text: str | None) -> list[str] | None:
    if text is None:
        return None
    found = _from_json(text)
    if not isinstance(found, list) or not all(isinstance(entity, str) for entity in found):
        raise ConfigError(
            f"option entities={text!r}: give a JSON list of texts, for instance "
            "json.dumps(['rome', 'oslo'])"
        )
    return found


def _keys(text: str | None, metric_type: type[Metrics]) -> dict[str, list[KeyValue]] | None:
    if text is None:
        return None
    found = _from_json(text)
    if not isinstance(found, dict):
        raise ConfigError(
            f"option keys={text!r}: give a JSON object from key columns to values, for instance "
            "json.dumps({'carrier': ['UA', 'DL']})"
        )
    return {
        column: [
            _key_value(value, metric_type.key_columns.get(column))
            for value in (values if isinstance(values, list) else [values])
        ]
        for column, values in found.items()
    }


def _from_json(text: str) -> Any:
    """Return a value, or None if the text is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _key_value(value: KeyValue, kind: type | None) -> KeyValue:
    """Return a value of JSON, which has no dates."""
    if kind is not date or not isinstance(value, str):
        return value
    try:
        return date.fromisoformat(value)
    except ValueError:
        return value  # refused for its type


def _metric(name: str | None, job: AggregationJob) -> type[Metrics]:
    by_name = {metric_type.name: metric_type for metric_type in job.metrics}
    if name is None and len(by_name) == 1:
        (name,) = by_name
    for kept in (BadRows, ChangedKeys):  # of an earlier run, if this job keeps none
        by_name.setdefault(kept.name, kept)
    if name not in by_name:
        given = "needs option metric" if name is None else f"has no metric {name!r}"
        names = sorted(metric_type.name for metric_type in job.stored_metrics)
        raise ConfigError(f"job {job.name!r} {given}: give one of {', '.join(names)}")
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
    """Reads a sink, or its shards, each as of one commit, with a task for each part."""

    def __init__(self, options: ReadOptions, tasks: int) -> None:
        """Make the reader.

        Args:
            options: What is read.
            tasks: How many tasks the session runs concurrently.
        """
        self._store = options.store
        self._selections = options.selections
        self._shards = options.shards
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks.

        Raises:
            SinkError: The sink has another number of shards.
        """
        self._check_shards()
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

    def _check_shards(self) -> None:
        """Check that neither shards nor the sink itself would be left out."""
        selection, shards = self._selections[0], self._shards
        summaries = getattr(self._store, "summaries", None)
        if shards is None:
            if summaries is not None and summaries(f"{selection.sink_id}/0", 1):
                raise SinkError(
                    f"sink {selection.sink_id!r} was written in shards, as sink "
                    f"'{selection.sink_id}/0' shows: give option shards, their number"
                )
            return
        ledger_of = getattr(self._store, "ledger", None)
        if ledger_of is None:
            return
        with ledger_of(selection.sink_id) as ledger:
            before = None if ledger is None else ledger.description()
        if before is not None and before.get("shards", shards) != shards:
            raise SinkError(
                f"sink {selection.sink_id!r} is one of {before['shards']} shards, and not of "
                f"{shards}: give option shards={before['shards']}"
            )
