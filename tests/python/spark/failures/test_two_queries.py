"""Two concurrent queries: both count into two sinks of one store, and only one into one sink."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from batchqueue.outputs import SqliteStore
from spark_support.faulty_store import BEFORE_THE_COMMIT, FaultyStore, epochs
from spark_support.flight_job import FILES, difference, expected, flight_job, into, stored
from spark_support.pyspark_version import needs_stream_sink
from spark_support.waits import Meeting

Start = Callable[..., StreamingQuery]


@needs_stream_sink
def test_two_concurrent_queries_write_one_store(
    spark: SparkSession, flights: Path, store: SqliteStore, start: Start, tmp_path: Path
) -> None:
    """Both reach the commit of their second epoch before either may begin it."""
    meeting = Meeting(tmp_path / "meeting", 2)
    meeting_store = FaultyStore(store, BEFORE_THE_COMMIT, 1, meeting)
    queries = [
        start(flight_job(meeting_store, name=name), tmp_path / name) for name in ("east", "west")
    ]
    for query in queries:
        query.awaitTermination()
    assert len(meeting.came()) == 2
    wanted = expected(spark, flights)
    for name in ("east", "west"):
        assert difference(stored(store, name), wanted) == []
        assert epochs(store, name) == list(range(FILES))


@pytest.mark.parametrize("sink", [pytest.param("format", marks=needs_stream_sink), "writer"])
def test_second_of_two_concurrent_new_queries_into_one_sink_is_refused(
    spark: SparkSession, flights: Path, store: SqliteStore, start: Start, tmp_path: Path, sink: str
) -> None:
    """Both find the sink empty, and reach their first commit before either may begin it."""
    meeting = Meeting(tmp_path / "meeting", 2)
    job = flight_job(FaultyStore(store, BEFORE_THE_COMMIT, 0, meeting))
    refused = []
    for query in [start(into(sink, job), tmp_path / name) for name in ("one", "other")]:
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            refused.append(str(error))
    assert len(meeting.came()) == 2
    (message,) = refused
    assert "is new, but sink 'flights' has results of others" in message
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))
