"""The servers that exporters send to."""

import pytest

from core_support.kafka_broker import steady_kafka_broker
from exporters_support.clock import clock
from exporters_support.http_server import http_server
from exporters_support.orders import make_orders
from exporters_support.programs import starting
from outputs_support.postgres_server import postgres_server

__all__ = ["clock", "postgres_server", "steady_kafka_broker"]


@pytest.fixture
def server():
    """An HTTP server that stores what it gets."""
    with http_server() as server:
        yield server


@pytest.fixture
def orders(postgres_server):
    """The connection string of a server with an empty table `orders`."""
    make_orders(postgres_server)
    yield postgres_server.conninfo()
    if not postgres_server.running():
        postgres_server.start()


@pytest.fixture
def start(tmp_path):
    """Starts a program that sends orders."""
    with starting(tmp_path) as start:
        yield start
