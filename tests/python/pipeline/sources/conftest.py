"""What the tests of sources share."""

from collections.abc import Callable
from typing import Any

import pytest

from batchqueue.pipeline.contract import Limit, Source

EVERYTHING = Limit(1 << 31, 1 << 40)


def read_all(source: Source, limit: Limit = EVERYTHING) -> list[dict[str, Any]]:
    """Returns all rows, as a run would read them."""
    at, rows = source.initial(), []
    while (plan := source.plan(at, limit)).splits:
        for split in plan.splits:
            rows += [row for batch in source.read(split) for row in batch.to_pylist()]
        at = plan.end
    return rows


@pytest.fixture(name="read_all")
def _read_all() -> Callable[..., list[dict[str, Any]]]:
    return read_all
