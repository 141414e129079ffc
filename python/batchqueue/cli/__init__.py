"""The command line: `batchqueue demo` and `batchqueue --version`."""

from batchqueue.cli.app import main

__all__ = ["main"]
