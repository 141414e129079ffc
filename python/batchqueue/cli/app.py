"""The console script `batchqueue`: parses arguments, runs the command, turns errors to messages."""

import argparse
import sys
from collections.abc import Sequence

from batchqueue import __version__
from batchqueue.cli.demo.options import DemoOptions, add_arguments, require_packages
from batchqueue.exceptions import BatchQueueError, ConfigError

OK, FAILED, INVALID_USE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The arguments after the program's name; `None` for those of the process.

    Returns:
        The exit code: 0 done, 1 failed or results differ, 2 invalid use, 130 interrupted.
    """
    parser = argparse.ArgumentParser(prog="batchqueue", description="A partitioned batch queue.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    add_arguments(
        commands.add_parser("demo", help="aggregate a year of flights, and check the result")
    )
    options = DemoOptions.from_arguments(parser.parse_args(arguments))
    try:
        require_packages()
        # After the check, because it imports packages that may be missing.
        from batchqueue.cli.demo.command import run

        return OK if run(options) else FAILED
    except ConfigError as error:
        print(f"batchqueue demo: {error}", file=sys.stderr)
        return INVALID_USE
    except BatchQueueError as error:
        print(f"batchqueue demo: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(
            "\ninterrupted: the same command with the same --output continues from here",
            file=sys.stderr,
        )
        return INTERRUPTED
