"""What the core asks Python to do for it."""

import logging
import traceback

_log = logging.getLogger("batchqueue")


def warn(line: str) -> None:
    """Log a line of the core that may need a hand."""
    _log.warning("%s", line)


def inform(line: str) -> None:
    """Log a line of the core that reports something expected."""
    _log.info("%s", line)


def describe_error(error: BaseException) -> str:
    """Return an exception with its traceback, for the log."""
    return "".join(traceback.format_exception(error)).rstrip()
