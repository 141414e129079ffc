"""The options of `batchqueue demo --groups`."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from batchqueue.cli.command import whole_number
from batchqueue.exceptions import ConfigError

WORKERS = 3
"""Workers at the start."""

MOST_WORKERS = 8
"""One for each partition; more would have nothing to do."""

_FEWEST_WORKERS = 2
"""One is killed, and another one takes over."""


@dataclass(frozen=True)
class GroupsOptions:
    """The options of a run.

    Attributes:
        rows: Flights to take, the earliest first.
        scale: Copies of each flight, at least 1.
        output: Folder for the flights, which the demo without `--groups` may share.
        spark_master: The master of Spark, which computes what the result is compared with.
        workers: Workers at the start, 2 to 8.
    """

    rows: int
    scale: int
    output: Path
    spark_master: str
    workers: int = WORKERS

    @property
    def folder(self) -> Path:
        """The folder for everything but the flights."""
        return self.output / "groups"

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Make the options from parsed arguments.

        Raises:
            ConfigError: An option does not apply with `--groups`.
        """
        if arguments.l1 != "python":
            raise ConfigError(
                f"--l1 {arguments.l1} does not apply with --groups, whose workers aggregate in "
                "Python: leave it out"
            )
        return cls(
            arguments.rows,
            arguments.scale,
            arguments.output.absolute(),
            arguments.spark_master,
            getattr(arguments, "workers", WORKERS),
        )


def add_arguments(parser: argparse.ArgumentParser, kinds: argparse._MutuallyExclusiveGroup) -> None:
    """Add `--groups`, and the options that apply only with it."""
    kinds.add_argument(
        "--groups",
        action="store_true",
        default=argparse.SUPPRESS,
        help="instead of a Spark stream: workers in several processes share a stream on Redis; one "
        "is killed and another one added on the way",
    )
    parser.add_argument(
        "--workers",
        type=whole_number(_FEWEST_WORKERS, MOST_WORKERS),
        default=argparse.SUPPRESS,
        metavar="N",
        help=f"with --groups: workers at the start (default: {WORKERS})",
    )


def is_about_groups(arguments: argparse.Namespace) -> bool:
    """Return whether `--groups` is given.

    Raises:
        ConfigError: Without it, an option that applies only with it is given.
    """
    if hasattr(arguments, "groups"):
        return True
    if hasattr(arguments, "workers"):
        raise ConfigError("--workers applies only with --groups: add that, or leave it out")
    return False
