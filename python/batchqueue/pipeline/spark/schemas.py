"""The schema behind each step. Spark has to know it before any row comes."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

from batchqueue.aggregation import Aggregation, Aggregator
from batchqueue.pipeline.errors import NotOnSparkError
from batchqueue.pipeline.operators.filters import FilterOperator
from batchqueue.pipeline.operators.results import batches_of
from batchqueue.pipeline.steps import FilterStep, MapStep


def schema_after_map(step: MapStep, before: pa.Schema) -> pa.Schema:
    """Return the schema of what a map returns: the declared one, or that for an empty batch.

    Raises:
        NotOnSparkError: It is not declared, and the operation fails on an empty batch or returns
            nothing.
    """
    if step.schema is not None:
        return step.schema
    remedy = "declare its result with .map(..., schema=pa.schema(...))"
    try:
        # A copy, because an object may count its calls.
        operation = cloudpickle.loads(_dumps(step.operation))
        process = getattr(operation, "process", operation)
        results = list(batches_of(str(step), process(_no_rows(before))))
    # The operation is the user's, and may raise anything.
    except Exception as error:
        raise NotOnSparkError(
            f"Spark needs the schema of {step}, which fails on an empty batch "
            f"({type(error).__name__}: {error}); {remedy}"
        ) from error
    if not results:
        raise NotOnSparkError(
            f"Spark needs the schema of {step}, which returns nothing for an empty batch; {remedy}"
        )
    return results[0].schema.remove_metadata()


def check_filter(step: FilterStep, before: pa.Schema) -> None:
    """Check an expression against the columns; a function is not called.

    Raises:
        NotOnSparkError: The expression does not fit.
    """
    if not isinstance(step.keep, pc.Expression):
        return
    try:
        FilterOperator(str(step), step.keep).process(_no_rows(before))
    except Exception as error:
        raise NotOnSparkError(
            f"{step} does not fit the columns {', '.join(before.names)} ({error}); change the "
            "expression, or the step before it"
        ) from error


def schema_after_aggregate(aggregation: Aggregation, before: pa.Schema) -> pa.Schema:
    """Return the schema of the groups of an aggregation.

    Raises:
        NotOnSparkError: The aggregation does not fit the columns.
    """
    aggregator = Aggregator(aggregation)
    # Without any row there would be no result. Columns that may not be null do not matter here.
    columns = [pa.nulls(1, field.type) for field in before]
    try:
        aggregator.update(pa.RecordBatch.from_arrays(columns, names=before.names))
        return aggregator.result().schema
    except Exception as error:
        raise NotOnSparkError(
            f"aggregate({', '.join(aggregation.measures)}) does not fit the columns "
            f"{', '.join(before.names)} ({error}); change it, or the step before it"
        ) from error


def check_pickles(value: Any, what: str) -> None:
    """Check that something can be sent to the tasks.

    Raises:
        NotOnSparkError: It does not pickle.
    """
    try:
        _dumps(value)
    except Exception as error:
        raise NotOnSparkError(
            f"{what} has to be sent to Spark's tasks and does not pickle ({error}); make "
            "connections, locks and files with the first call, in the task"
        ) from error


def _dumps(value: Any) -> bytes:
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)
