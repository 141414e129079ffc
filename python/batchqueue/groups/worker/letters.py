"""`dead_letter`: a record that is set aside, with what is known about its failure."""

from typing import NamedTuple, Self

from batchqueue.groups.errors import quoted_value, shortened
from batchqueue.groups.messages import Entry
from batchqueue.groups.worker.batch import Batch

PREFIX = "dead-"
"""What the names of the headers that a dead letter adds begin with."""


def described(error: BaseException) -> str:
    """Return the class and the text of an error, shortened."""
    try:
        return shortened(f"{type(error).__name__}: {error}")
    except Exception:  # of a user's class
        return f"{type(error).__name__}, whose text cannot be made"


class Described:
    """An error in a line of the log: its text is made when the line is written."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __str__(self) -> str:
        """Return what `described` returns."""
        return described(self._error)


class CallFailure(NamedTuple):
    """What a handler raised. Its texts are made by the program's code, so without the lock."""

    error: BaseException
    text: str
    """What `described` returns."""
    reason: str
    """What `HandlerFailedError` says of it."""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the failure of a call that has raised. Without the lock."""
        return cls(error, described(error), quoted_value(error))


def dead_letter(entry: Entry, batch: Batch, error: str) -> Entry:
    """Return a record as it goes to the dead letters of its group.

    It keeps its offset, value, key and headers. Headers are added, as text in UTF-8: `dead-stream`,
    `dead-partition`, `dead-offset`, `dead-token`, `dead-tries` and `dead-error`. Those of an
    earlier life of the record, before it was sent back, are left out.

    Args:
        entry: The record.
        batch: The batch of its last attempt.
        error: The text of what the handler raised in it.
    """
    about = {
        "stream": batch.stream,
        "partition": batch.partition,
        "offset": entry.offset,
        "token": batch.token,
        "tries": batch.attempt,
        "error": error,
    }
    kept = tuple(pair for pair in entry.headers if not pair[0].startswith(PREFIX))
    added = tuple(
        (PREFIX + name, str(value).encode("utf8", "replace")) for name, value in about.items()
    )
    return entry._replace(headers=kept + added)
