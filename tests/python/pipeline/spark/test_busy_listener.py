"""What is reported to the readers about an epoch: its rows, its end, and how long it was busy."""

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from batchqueue.pipeline.spark.control import EpochReport, LiveControl, RunControl
from spark_support.pyspark_version import VERSION

if TYPE_CHECKING:
    from batchqueue.pipeline.spark.reader import BusyListener

pytestmark = pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2")


@pytest.fixture
def live(tmp_path: Path) -> LiveControl:
    return LiveControl(str(tmp_path))


@pytest.fixture
def run(live: LiveControl) -> RunControl:
    return live.begin()


@pytest.fixture
def listener(run: RunControl) -> "BusyListener":
    from batchqueue.pipeline.spark.reader import BusyListener

    return BusyListener(run, ["q"])


def progress(name: str = "q", rows: int = 2000, **times: int) -> QueryProgressEvent:
    """The event that Spark sends after an epoch."""
    source = {
        "description": "numbers",
        "startOffset": {"row": 0},
        "endOffset": {"row": 2000, "a": 1},
        "latestOffset": {"row": 2000, "a": 1},
        "numInputRows": rows,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
    }
    described: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "runId": str(uuid.uuid4()),
        "name": name,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": 1,
        "batchDuration": sum(times.values()),
        "durationMs": times,
        "stateOperators": [],
        "sources": [source],
        "sink": {"description": "sink", "numOutputRows": rows, "metrics": {}},
        "numInputRows": rows,
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(described))


def test_wait_in_latest_offset_is_not_busy_time(run: RunControl, listener: "BusyListener"):
    listener.onQueryProgress(progress(triggerExecution=7_000, latestOffset=5_000, addBatch=1_900))
    end = json.dumps({"a": 1, "row": 2000})
    assert run.control.last_epoch("q") == EpochReport(end, 2000, 2.0)


def test_other_queries_and_epochs_without_rows_are_not_reported(
    run: RunControl, listener: "BusyListener"
):
    listener.onQueryProgress(progress("another", triggerExecution=7_000))
    listener.onQueryProgress(progress(rows=0, triggerExecution=7_000))
    assert run.control.last_epoch("q") is None


def test_directory_that_is_gone_does_not_disturb_spark(
    live: LiveControl, run: RunControl, listener: "BusyListener"
):
    live.end(run)
    listener.onQueryProgress(progress(triggerExecution=7_000))
