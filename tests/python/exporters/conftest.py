"""The servers that exporters send to."""

import pytest

from exporters_support.http_server import http_server
from outputs_support.postgres_server import postgres_server

__all__ = ["postgres_server"]


@pytest.fixture
def server():
    """An HTTP server that stores what it gets."""
    with http_server() as server:
        yield server
