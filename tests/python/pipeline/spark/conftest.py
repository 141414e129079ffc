"""The Spark session of these tests, which is that of all Spark tests in the same process."""

from collections.abc import Iterator

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import spark_support
from batchqueue.spark import local_session

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

cloudpickle.register_pickle_by_value(spark_support)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", "local[2,4]")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _few_tasks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two tasks behind a shuffle are enough, and Spark would take 200."""
    if "spark" not in request.fixturenames:
        yield
        return
    session: SparkSession = request.getfixturevalue("spark")
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    }
    before = {name: session.conf.get(name) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    yield
    for name, value in before.items():
        session.conf.set(name, value)


@pytest.fixture(autouse=True)
def _pickle_test_module_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
