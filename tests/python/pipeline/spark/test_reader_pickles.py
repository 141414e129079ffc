"""What Spark pickles of a reader, and what it asks a reader for; without Spark itself."""

import pickle
import threading
from pathlib import Path

import pytest
from pyspark import cloudpickle

from batchqueue.pipeline.spark.control import DriverControl
from batchqueue.pipeline.spark.epoch_size import EpochGoal
from batchqueue.pipeline.spark.epochs import EpochSettings
from batchqueue.pipeline.spark.source import PickledSource
from batchqueue.pipeline.spark.stages import spark_schema
from spark_support.numbered_rows import NumberedRows
from spark_support.pyspark_version import VERSION

pytestmark = pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2")


class Opening(NumberedRows):
    """A source that opens what does not pickle, when it plans and when it reads."""

    handle = None

    def plan(self, start, limit):
        self.handle = threading.Lock()
        return super().plan(start, limit)

    def read(self, split):
        self.handle = threading.Lock()
        return super().read(split)


@pytest.fixture
def reader(tmp_path: Path):
    from batchqueue.pipeline.spark.reader import ReaderSettings, SourceStreamReader

    source = Opening(2000)
    return SourceStreamReader(
        ReaderSettings(
            source=PickledSource.of(source, "numbers"),
            struct=spark_schema(source.schema(), "source"),
            epochs=EpochSettings(
                query="q",
                goal=EpochGoal(first_rows=1000),
                max_bytes=1 << 30,
                max_tasks=2,
                commits=True,
            ),
            control=DriverControl(tmp_path),
        )
    )


def test_reader_pickles_with_handles_open_and_tasks_get_none_of_them(reader):
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    with pytest.raises(TypeError, match="lock"):
        pickle.dumps(reader._epochs)
    in_task = pickle.loads(cloudpickle.dumps(reader))
    rows = [batch.num_rows for task in tasks for batch in in_task.read(task)]
    assert sum(rows) == end["row"] == 1000
    assert pickle.loads(cloudpickle.dumps(in_task)).initialOffset() == start
    assert reader.latestOffset(end, reader.getDefaultReadLimit())["row"] > 1000


def test_default_limit_is_not_the_one_that_stands_for_once(reader):
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    assert not isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)
