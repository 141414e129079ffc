"""The log of the queues under test."""

import logging

import pytest


@pytest.fixture
def lines(caplog):
    """Returns a function that gives the lines the queues have logged so far, at any level."""
    caplog.set_level(logging.DEBUG, "batchqueue")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "batchqueue"]
