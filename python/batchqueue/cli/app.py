"""The console script `batchqueue`: reads the arguments, runs the command, turns errors into messages."""

import argparse
import sys
from collections.abc import Sequence

from batchqueue.cli.demo.options import DemoOptions, add_arguments, require_packages
from batchqueue.exceptions import BatchQueueError, ConfigError

OK, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: Words after the program's name; None takes those of the process.

    Returns:
        The exit code: 0 done, 1 failed or results differ, 2 wrong use, 130 interrupted.
    """
    parser = argparse.ArgumentParser(prog="batchqueue", description="A partitioned batch queue.")
    commands = parser.add_subparsers(metavar="command", required=True)
    add_arguments(
        commands.add_parser("demo", help="aggregate a year of flights, and check the result")
    )
    options = DemoOptions.from_arguments(parser.parse_args(arguments))
    try:
        require_packages()
        from batchqueue.cli.demo.command import (
            run,
        )  # after the check: it imports what may be missing

        return OK if run(options) else FAILED
    except ConfigError as error:
        print(f"batchqueue demo: {error}", file=sys.stderr)
        return WRONG_USE
    except BatchQueueError as error:
        print(f"batchqueue demo: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(
            "\ninterrupted: the same command with the same --output goes on from here",
            file=sys.stderr,
        )
        return INTERRUPTED
