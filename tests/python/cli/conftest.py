"""One Spark session for the tests that run the demo's parts in this process."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from batchqueue.spark import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", "local[2,4]")
    yield session
    session.stop()
