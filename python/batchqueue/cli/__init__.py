"""The command line: `batchqueue demo`."""

from batchqueue.cli.app import main

__all__ = ["main"]
