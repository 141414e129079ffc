"""Steps and chunks of small numbers, for tests of chains of operators."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchqueue.pipeline.contract import OperatorError
from batchqueue.pipeline.graph import MapStep, StatefulStep
from pipeline_support.random_batches import values_of


def mapped(operation, schema=None):
    return MapStep(operation, None, schema)


def stateful(make):
    return StatefulStep(make, None)


def numbers(*values):
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def plus(amount):
    def add(batch):
        return pa.record_batch({"n": pc.add(batch["n"], amount)})

    return add


def found(batches):
    return [row["n"] for row in values_of(batches)]


def error_of(chain, chunk=None):
    with pytest.raises(OperatorError) as raised:
        chain.process(numbers(1, 2) if chunk is None else chunk)
    return raised.value
