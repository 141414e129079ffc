"""One cluster for all tests here, and one driver for those that do not need their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_support import flight_job
from spark_support.cluster import CHECKOUT, Driver, Processes, Run, conf, standalone_cluster
from spark_support.flight_job import Results
from spark_support.notes import Notes

Session = Callable[..., Driver]


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    started = Processes(tmp_path_factory.mktemp("processes"))
    try:
        yield started
    finally:
        started.reap()


@pytest.fixture(scope="session")
def master(processes: Processes) -> Iterator[str]:
    with standalone_cluster(processes) as url:
        yield url


@pytest.fixture(scope="session")
def driver(processes: Processes, master: str) -> Iterator[Driver]:
    with Driver(processes, PYTHONPATH=CHECKOUT) as started:
        yield started


@pytest.fixture
def session(driver: Driver, master: str) -> Session:
    """Give the driver a session on the standalone cluster, with these settings beside the usual."""

    def start(**changes: str) -> Driver:
        driver.session(
            conf(
                changes.pop("spark_master", master),
                spark_executorEnv_PYTHONPATH=CHECKOUT,
                **changes,
            )
        )
        return driver

    return start


@pytest.fixture(scope="session")
def wanted(spark: SparkSession, flights: Path) -> Results:
    """The results by Spark SQL, in the session of the test process."""
    return flight_job.expected(spark, flights)


@pytest.fixture
def run(flights: Path, tmp_path: Path) -> Run:
    folder = tmp_path / "notes"
    folder.mkdir()
    return Run(flights, tmp_path / "checkpoint", tmp_path / "metrics.db", folder)


@pytest.fixture
def notes(run: Run) -> Notes:
    return Notes(run.notes_folder)
