"""A conformance test for your own store: call it in a test, on an empty store."""

from batchqueue.outputs.testing.store_check import check_store

__all__ = ["check_store"]
