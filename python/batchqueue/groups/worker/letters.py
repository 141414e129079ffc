"""`dead_letter`: a record that is set aside, with what is known about its failure."""

from batchqueue.groups.errors import shortened
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


def dead_letter(entry: Entry, batch: Batch, error: BaseException) -> Entry:
    """Return a record as it goes to the dead letters of its group.

    It keeps its offset, value, key and headers. Headers are added, as text in UTF-8: `dead-stream`,
    `dead-partition`, `dead-offset`, `dead-token`, `dead-tries` and `dead-error`. Those of an
    earlier life of the record, before it was sent back, are left out.

    Args:
        entry: The record.
        batch: The batch of its last attempt.
        error: What the handler raised in it.
    """
    about = {
        "stream": batch.stream,
        "partition": batch.partition,
        "offset": entry.offset,
        "token": batch.token,
        "tries": batch.attempt,
        "error": described(error),
    }
    kept = tuple(pair for pair in entry.headers if not pair[0].startswith(PREFIX))
    added = tuple(
        (PREFIX + name, str(value).encode("utf8", "replace")) for name, value in about.items()
    )
    return entry._replace(headers=kept + added)
