"""A stream on a server that holds nothing else."""

import pytest

from batchqueue.groups import RedisStreams


@pytest.fixture
def streams(redis_server):
    return RedisStreams(redis_server.url, "orders", partitions=4)


@pytest.fixture
def connection(streams):
    """A worker's connection, of the group g."""
    connection = streams.connect("g", lease_ms=60_000, name="a")
    connection.partitions(4)
    yield connection
    connection.close()


@pytest.fixture
def writer(streams):
    writer = streams.open_writer()
    yield writer
    writer.close()


@pytest.fixture
def client(redis_server):
    with redis_server.client() as client:
        yield client
