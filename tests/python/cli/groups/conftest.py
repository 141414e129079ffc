"""A program whose worker the commands name, and the commands in this process."""

import sys
import types

import pytest

from batchqueue.cli import main
from batchqueue.groups import MemoryStreams
from groups_support.workers import worker_of


@pytest.fixture
def streams():
    return MemoryStreams("orders", partitions=4)


@pytest.fixture(autouse=True)
def _shop(monkeypatch, streams):
    """The module `shop`, in which `worker` is a worker of group g on the stream."""
    shop = types.ModuleType("shop")
    shop.worker = worker_of(streams, print)
    monkeypatch.setitem(sys.modules, "shop", shop)


@pytest.fixture
def groups(capsys):
    """Runs a command of `batchqueue groups`; returns its exit code, output and errors."""

    def run(command, *arguments, worker="shop:worker"):
        code = main(["groups", command, "--worker", worker, *map(str, arguments)])
        return code, *capsys.readouterr()

    return run
