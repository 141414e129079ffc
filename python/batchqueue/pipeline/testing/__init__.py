"""Conformance tests for your own sources and sinks: call them in a test, on a small input."""

from batchqueue.pipeline.testing.sink_check import check_sink
from batchqueue.pipeline.testing.source_check import check_source

__all__ = ["check_sink", "check_source"]
