"""The command line: `batchqueue demo`, `batchqueue groups` and `batchqueue --version`."""

import argparse
import os
import sys
from collections.abc import Sequence

from batchqueue._core import __version__
from batchqueue.cli.command import (
    BROKEN_PIPE,
    FAILED,
    INTERRUPTED,
    INVALID_USE,
    Command,
    write_line,
)
from batchqueue.cli.demo import DEMO
from batchqueue.cli.groups import GROUPS
from batchqueue.cli.store import STORE
from batchqueue.cli.top import TOP
from batchqueue.exceptions import BatchQueueError, ConfigError

__all__ = ["main"]


# The console script `batchqueue`: finds the command, runs it, and turns errors into messages.


COMMANDS = (DEMO, GROUPS, STORE, TOP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The arguments after the program's name; `None` for those of the process.

    Returns:
        The exit code: 0 done, 1 failed or results differ, 2 invalid use, 130 interrupted,
        141 if the reader of the output has ended.
    """
    parser = argparse.ArgumentParser(prog="batchqueue", description="A partitioned batch queue.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for each in COMMANDS:
        each.add_to(commands)
    parsed = parser.parse_args(arguments)
    command: Command = parsed.command
    try:
        code = command.run(parsed)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended. Python would try to flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except ConfigError as error:
        write_line(f"{parsed.command_name}: {error}", sys.stderr)
        return INVALID_USE
    except BatchQueueError as error:
        write_line(f"{parsed.command_name}: {error}", sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        if command.interrupted:
            print(f"\n{command.interrupted}", file=sys.stderr)
        return INTERRUPTED
