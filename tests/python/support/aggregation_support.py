"""Helpers of the tests in `aggregation`."""

import subprocess
import sys

import pyarrow as pa

from batchqueue.aggregation import Aggregation, Count, Sum

WAIT_S = 30.0
TOTALS = Aggregation(keys=["key"], measures={"n": Count(), "total": Sum("value")})


def rows(keys, tag="a"):
    """One row per key, with the values 0, 1, 2, …"""
    count = len(keys)
    return pa.table(
        {"tag": [tag] * count, "key": keys, "value": pa.array(range(count), pa.int64())}
    )


def totals(aggregator):
    result = aggregator.result()
    return (
        {}
        if result is None
        else {row["key"]: (row["n"], row["total"]) for row in result.to_pylist()}
    )


def run_script(script, sent=b""):
    """What a script prints that gets these bytes; its errors appear among the test's."""
    command = [sys.executable, "-c", "if True:" + script]
    return subprocess.run(
        command, input=sent, stdout=subprocess.PIPE, check=True, timeout=WAIT_S
    ).stdout
