"""The command line: `batchqueue demo`, `batchqueue groups` and `batchqueue --version`."""

from batchqueue.cli.app import main

__all__ = ["main"]
