"""The stores that the commands are tested on."""

import pytest

from batchqueue.cli import main
from outputs_support.filled import filled
from outputs_support.stores import (
    open_parquet,
    open_postgres,
    open_sqlite,
    postgres_server,
)

__all__ = ["open_parquet", "open_postgres", "open_sqlite", "postgres_server"]


@pytest.fixture
def command(capsys):
    """Runs `batchqueue store` with arguments; returns the exit code and what it printed."""

    def run(*arguments):
        code = main(["store", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture(params=["sqlite", "parquet", "postgres"])
def open_store(request):
    return request.getfixturevalue(f"open_{request.param}")


@pytest.fixture(params=["sqlite", "parquet"])
def open_files(request):
    return request.getfixturevalue(f"open_{request.param}")


@pytest.fixture
def store(open_files):
    """Two sinks, with two epochs of a query in one of them."""
    return filled(open_files())
