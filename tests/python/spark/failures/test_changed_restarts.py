"""A query that is restarted with a change: refused until the user says what is meant."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from batchqueue.aggregation import CountMetrics, Metrics, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.spark import MetricsWriter
from spark_support.faulty_store import BEFORE_THE_COMMIT, FaultyStore, epochs
from spark_support.flight_job import (
    FILES,
    METRICS,
    ROWS_PER_FILE,
    difference,
    expected,
    flight_job,
    items,
    stored,
)
from spark_support.pyspark_version import needs_stream_sink

Stream = Callable[..., None]
LANDINGS = metric_type("landings", CountMetrics)


@needs_stream_sink
def test_deleted_checkpoint_is_refused_until_the_user_appends_or_replaces(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    stream(flight_job(store), checkpoint)
    shutil.rmtree(checkpoint)
    with pytest.raises(
        StreamingQueryException, match="is new, but sink 'flights' has results of others"
    ):
        stream(flight_job(store), checkpoint)
    assert difference(stored(store), expected(spark, flights)) == []
    # The refused query has a checkpoint all the same, and may continue with it.
    stream(flight_job(store), checkpoint, onNewQuery="append")
    assert difference(stored(store), expected(spark, flights, times=2)) == []
    assert epochs(store) == 2 * list(range(FILES))
    shutil.rmtree(checkpoint)
    stream(flight_job(store), checkpoint, onNewQuery="replace")
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))


def fail() -> None:
    raise OSError("the network is gone")


def items_with_landings(batch: pa.RecordBatch) -> Iterator[Metrics]:
    yield from items(batch)
    for carrier in batch.column("carrier").to_pylist():
        yield LANDINGS(carrier, 0)


def test_changed_job_is_refused_until_the_user_accepts_it(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream
) -> None:
    with pytest.raises(StreamingQueryException, match="OSError: the network is gone"):
        stream(MetricsWriter(flight_job(FaultyStore(store, BEFORE_THE_COMMIT, 2, fail))))
    before = stored(store)
    changed = flight_job(store, items=items_with_landings, metrics=[*METRICS, LANDINGS])
    with pytest.raises(StreamingQueryException, match="by another job: metric 'landings' is new"):
        stream(MetricsWriter(changed))
    assert stored(store) == before
    assert epochs(store) == [0, 1]
    stream(MetricsWriter(changed, onJobChange="accept"))
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))
    # The new metric has what came since.
    landings = sum(item.count for item in store.read(LANDINGS, "flights"))
    assert landings == (FILES - 2) * ROWS_PER_FILE
