"""The options of `batchqueue demo --pipeline`."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from batchqueue.cli.command import seconds
from batchqueue.exceptions import ConfigError

STALL_S = 10.0
"""Seconds that the slow sink stands still."""


@dataclass(frozen=True)
class PipelineOptions:
    """The options of a run.

    Attributes:
        rows: Flights to take, the earliest first.
        scale: Copies of each flight, at least 1.
        output: Folder for the flights, which the other demos may share.
        spark_master: The master of Spark.
        stall_s: Seconds that the slow sink stands still, 0 or more.
    """

    rows: int
    scale: int
    output: Path
    spark_master: str
    stall_s: float = STALL_S

    @property
    def folder(self) -> Path:
        """The folder for everything but the flights."""
        return self.output / "pipeline"

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Make the options from parsed arguments.

        Raises:
            ConfigError: An option does not apply with `--pipeline`.
        """
        if arguments.l1 != "python":
            raise ConfigError(
                f"--l1 {arguments.l1} does not apply with --pipeline, which aggregates in Rust: "
                "leave it out"
            )
        return cls(
            arguments.rows,
            arguments.scale,
            arguments.output.absolute(),
            arguments.spark_master,
            getattr(arguments, "stall", STALL_S),
        )


def add_arguments(parser: argparse.ArgumentParser, kinds: argparse._MutuallyExclusiveGroup) -> None:
    """Add `--pipeline`, and the option that applies only with it."""
    kinds.add_argument(
        "--pipeline",
        action="store_true",
        default=argparse.SUPPRESS,
        help="instead of a Spark stream: a pipeline from the files to a store and a slow sink, "
        "which stands still on the way; in this process, then on Spark",
    )
    parser.add_argument(
        "--stall",
        type=seconds,
        default=argparse.SUPPRESS,
        metavar="SECONDS",
        help=f"with --pipeline: how long the slow sink stands still (default: {STALL_S:g})",
    )


def is_about_pipeline(arguments: argparse.Namespace) -> bool:
    """Return whether `--pipeline` is given.

    Raises:
        ConfigError: Without it, an option that applies only with it is given.
    """
    if hasattr(arguments, "pipeline"):
        return True
    if hasattr(arguments, "stall"):
        raise ConfigError("--stall applies only with --pipeline: add that, or leave it out")
    return False
