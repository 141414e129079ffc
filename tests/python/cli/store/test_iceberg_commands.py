"""`batchqueue store` on the tables of a catalog that pyiceberg's configuration has."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")

from batchqueue.outputs import IcebergStore
from outputs_support.filled import COUNT, filled, state
from outputs_support.stores import iceberg_catalog


@pytest.fixture
def store(tmp_path):
    return filled(IcebergStore("metrics", catalog=iceberg_catalog(tmp_path), partition_s=3_600))


@pytest.fixture
def run(tmp_path):
    """Runs a command in a process, as the configuration is read once in each."""
    catalog = iceberg_catalog(tmp_path)
    variables = {
        f"PYICEBERG_CATALOG__LAKE__{name.upper()}": catalog[name]
        for name in ("type", "uri", "warehouse")
    }

    def run(*arguments):
        command = [sys.executable, "-m", "batchqueue", "store", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | variables
        )

    return run


def test_commands_read_and_delete(store, run):
    assert "nightly" in run("ls", "iceberg://lake/metrics").stdout
    shown = run("show", "iceberg://lake/metrics", "nightly", COUNT.name, "--json").stdout
    assert [json.loads(line)["count"] for line in shown.splitlines()] == [2, 2]
    assert len(run("ledger", "iceberg://lake/metrics", "nightly").stdout.splitlines()) == 3
    deleted = run("delete", "iceberg://lake/metrics", "nightly", "--before", "1970-01-02")
    assert deleted.returncode == 0, deleted.stderr
    assert state(store) == ({"b": 2}, 1, [0, 1])


def test_check_names_a_data_file_that_is_missing(store, run, tmp_path):
    checked = run("check", "iceberg://lake/metrics")
    assert checked.returncode == 0, checked.stderr
    assert "nothing is wrong" in checked.stdout
    (file,) = tmp_path.glob("warehouse/metrics/sink_other/data/**/*.parquet")
    file.unlink()
    checked = run("check", "iceberg://lake/metrics")
    assert checked.returncode == 1
    assert file.name in checked.stderr
    assert "nightly" in checked.stdout


@pytest.mark.parametrize("command", [("backup", "STORE", "copy"), ("restore", "copy", "STORE")])
def test_snapshots_stand_for_copies(run, command):
    arguments = ["iceberg://lake/metrics" if each == "STORE" else each for each in command]
    refused = run(*arguments)
    assert refused.returncode == 2
    assert "keeps its earlier states as snapshots" in refused.stderr


def test_missing_catalog_and_namespace_are_named(run):
    missing = run("ls", "iceberg://other/metrics").stderr
    assert "cannot open the catalog of IcebergStore('metrics', catalog='other')" in missing
    assert "no such namespace" in run("ls", "iceberg://lake/missing").stderr
    assert "the namespace of IcebergStore is ''" in run("ls", "iceberg://lake").stderr
