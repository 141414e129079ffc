"""The text of `SparkPipeline.explain`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyspark

from batchqueue.pipeline.spark.options import SparkOptions

if TYPE_CHECKING:
    from batchqueue.pipeline.spark.compile import CompiledQuery


def explain(name: str, queries: "Sequence[CompiledQuery]", options: SparkOptions) -> str:
    """Return what each step of each query is on Spark, side by side."""
    lines = [f"pipeline {name!r} on pyspark {pyspark.__version__}: {_counted(len(queries))}"]
    for query in queries:
        rows = [
            (str(query.source_step), query.source.text),
            *([("", _epochs(options))] if query.source.pickled is not None else []),
            *query.texts,
            *((step, "in the tasks of the sink") for step in query.sink.steps),
            (f"sink {query.name!r}", query.sink.text),
            ("", f"checkpoint {options.checkpoint_of(query.name) or 'is missing'}"),
        ]
        width = max(len(left) for left, _ in rows)
        lines += ["", *(f"  {left:<{width}}  {right}" for left, right in rows)]
    return "\n".join(lines)


def _counted(queries: int) -> str:
    return "1 query" if queries == 1 else f"{queries} queries, each reads its source for itself"


def _epochs(options: SparkOptions) -> str:
    trigger = f", one each {options.trigger_ms:,.0f} ms" if options.trigger_ms else ""
    return (
        f"epochs of about {options.target_epoch_ms:,.0f} ms, from {options.first_epoch_rows:,} to "
        f"{options.max_epoch_rows:,} rows{trigger}"
    )
