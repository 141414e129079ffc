"""`SparkSource`: a DataFrame as a source. `PickledSource`: any other, as Spark carries it."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pyarrow as pa

from batchqueue.base.words import with_article
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import (
    Lag,
    PipelineError,
    Position,
    Source,
    SourcePickleError,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SparkSource:
    """Any DataFrame of Spark as a source, batch or streaming.

    Spark's own reader plans and reads it, with its own limits, such as `maxFilesPerTrigger`:
    `pause` and the size of epochs do not apply to it. It runs with pyspark 3.5 and later.

    Times without a zone (TIMESTAMP_NTZ) become instants in the session's zone, as Spark's cast to
    TIMESTAMP reads them.

    Attributes:
        name: Its name in statistics and errors.

    Example:
        orders = SparkSource(spark.readStream.schema("city string, cents long").json("orders"))
        pipeline.source(orders).aggregate(by_city).to(sink)
        pipeline.on_spark(spark).start().awaitTermination()
    """

    def __init__(self, df: "DataFrame", *, name: str = "dataframe") -> None:
        """Describe a source; nothing is read.

        Args:
            df: The rows.
            name: Its name in statistics and errors. Default: "dataframe".

        Raises:
            ConfigError: `df` is not a DataFrame.
        """
        if not hasattr(df, "mapInArrow"):
            raise ConfigError(f"SparkSource got {df!r}; give a DataFrame of pyspark")
        self._given = df
        self.name = name

    @cached_property
    def df(self) -> "DataFrame":
        """The rows, without times that have no zone."""
        from batchqueue.spark.task.arrow import cast_to_instants

        return cast_to_instants(self._given)

    @property
    def bounded(self) -> bool:
        """Whether it ends: False for a stream."""
        return not self._given.isStreaming

    def schema(self) -> pa.Schema:
        """Return the schema of its rows."""
        from batchqueue.pipeline.spark.stages import arrow_schema

        return arrow_schema(self.df.schema)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        """Refuse to be read outside Spark.

        Raises:
            PipelineError: Always.
        """
        raise PipelineError(
            f"source {self.name!r} is a DataFrame, which only Spark can read; run the pipeline "
            "with pipeline.on_spark(spark)"
        )

    initial = plan = between = read = _refuse  # Spark plans and reads it

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return nothing: Spark knows the lag of its readers."""
        return {}

    def commit(self, end: Position) -> None:
        """Do nothing: Spark keeps the position."""


_DEEPEST = 4
"""Levels of attributes that are searched for what does not pickle."""


@dataclass(frozen=True)
class PickledSource:
    """The bytes of a source, as it was before it opened any handle.

    Spark pickles a reader after using it. If the reader held the source itself, whatever planning
    has opened would have to pickle, too.

    Attributes:
        name: The name of the source in the graph.
        data: The source, pickled.
    """

    name: str
    data: bytes

    @classmethod
    def of(cls, source: Source, name: str) -> "PickledSource":
        """Pickle a source.

        Raises:
            SourcePickleError: It does not pickle; the message names the attribute at fault.
        """
        try:
            return cls(name, dumps(source))
        # Pickling runs code of the object, which may raise anything.
        except Exception as error:
            path, value = _culprit(source, type(source).__name__)
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise SourcePickleError(
                f"source {name!r} has to be sent to Spark's processes and does not pickle: {path} "
                f"is {with_article(kind)} ({error}); open such "
                "handles in plan() and read(), and drop them in __getstate__()"
            ) from error

    def load(self) -> Source:
        """Return a separate copy of the source, without handles."""
        return cast(Source, pickle.loads(self.data))


def dumps(value: Any) -> bytes:
    """Pickle a value as Spark does, functions of the main program included."""
    from pyspark import cloudpickle

    return cast(bytes, cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def _culprit(value: Any, path: str, depth: int = 0) -> tuple[str, Any]:
    """Return the path of the innermost part that does not pickle, and that part."""
    if depth < _DEEPEST:
        for name, part in _parts(value):
            if not _pickles(part):
                return _culprit(part, f"{path}{name}", depth + 1)
    return path, value


def _pickles(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    else:
        yield from ((f".{name}", part) for name, part in _attributes(value).items())


def _attributes(value: Any) -> dict[str, Any]:
    names: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                names[slot] = getattr(value, slot)
    return names
