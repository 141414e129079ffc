"""The adapters on Spark Connect and with a new Python process per task; a query that hangs."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from delivery_session import CONNECT, NEW_WORKERS
from programs import DELIVERY_SESSION
from spark_support.deliveries import FILES, ROWS, ROWS_PER_FILE, by_handler, delivered, read
from spark_support.pyspark_version import VERSION, needs_connect_server

pytestmark = [
    pytest.mark.timeout(600),  # the first test of a session waits for all of it
    pytest.mark.matrix(4),
]

CONNECT_CLIENT_IS_HERE = find_spec("grpc") is not None and find_spec("grpc_status") is not None


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            CONNECT,
            marks=[
                needs_connect_server,
                pytest.mark.skipif(
                    not CONNECT_CLIENT_IS_HERE, reason="needs pip install 'pyspark[connect]'"
                ),
            ],
        ),
        NEW_WORKERS,
    ],
)
def results(
    request: pytest.FixtureRequest, rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    directory = tmp_path_factory.mktemp("results")
    with (directory / "log").open("wb") as log:
        command = [sys.executable, DELIVERY_SESSION, request.param, rows, directory]
        ended = subprocess.run(command, stdout=log, stderr=log, timeout=540)
    assert ended.returncode == 0, (directory / "log").read_text()[-10_000:]
    return directory


@pytest.fixture
def facts(results: Path) -> dict[str, Any]:
    return json.loads((results / "facts.json").read_text())


def test_query_whose_handler_hangs_can_be_stopped_and_its_worker_is_killed(
    facts: dict[str, Any],
) -> None:
    assert (facts["hung"], facts["stopped"]) == (True, True)
    # On Spark Connect, version 4.0 stops the query but not the task of its function.
    assert facts["worker is gone"] or ("connect" in facts["session"] and VERSION < (4, 1))


def test_query_stopped_in_mid_epoch_delivers_every_row_when_started_again(
    results: Path, facts: dict[str, Any]
) -> None:
    batches = read(results / "stream")
    assert delivered(batches) == sorted(ROWS.items())
    assert all(set(batch.kinds) == {batch.handler} for batch in batches)
    assert all(ids == sorted(ids) for ids in by_handler(batches).values())
    assert {batch.query_id for batch in batches} == {"named"}
    assert {batch.epoch for batch in batches} == set(range(FILES))


def test_each_epoch_is_summarized_once_in_the_process_that_runs_the_function(
    results: Path, facts: dict[str, Any]
) -> None:
    summaries = [
        json.loads(line) for line in (results / "summaries.jsonl").read_text().splitlines()
    ]
    found = [(summary["query_id"], summary["epoch"], summary["rows"]) for summary in summaries]
    assert found == [("named", epoch, ROWS_PER_FILE) for epoch in range(FILES)]
    beside_the_driver = "connect" in facts["session"]
    assert all(
        (summary["process"] != facts["driver"]) == beside_the_driver for summary in summaries
    )


def test_batch_job_delivers_every_row_and_fails_with_the_reason(
    results: Path, facts: dict[str, Any]
) -> None:
    batches = read(results / "batch")
    assert delivered(batches) == sorted(ROWS.items())
    assert {(batch.query_id, batch.epoch, batch.partition) for batch in batches} == {
        (None, 3, 0),
        (None, 3, 1),
        (None, 3, 2),
    }
    assert (facts["batch"]["rows"], facts["batch"]["partitions"]) == (len(ROWS), 3)
    assert "every class of items needs a handler, and there are those for int" in facts["error"]
