"""`OnFailure`: what becomes of records whose handler raised in their last attempt."""

import enum


class OnFailure(enum.Enum):
    """What happens to records whose handler raised in every attempt of the `RetryPolicy`.

    A record that does not decode is treated in the same way, alone. Other partitions continue in
    any case.
    """

    BLOCK = "block"
    """The batch is tried again, `max_backoff_ms` apart, until it succeeds. The default.

    Its partition waits, and no record is skipped. The log and `blocked_partitions` name the
    partition.
    """

    DEAD_LETTER = "dead_letter"
    """The bad records are set aside in the group's dead letters, and the partition continues.

    The batch is halved until the bad records stand alone. A half that succeeded is not called
    again. A dead letter is stored together with the position that covers it, so neither is lost
    without the other.
    """

    SKIP = "skip"
    """The batch is counted and logged, and the partition continues without it: it is lost.

    With `RetryPolicy(bisect=True)` it is halved until the bad records stand alone, and only these
    are lost.
    """

    STOP = "stop"
    """The worker leaves the group, and `run` raises HandlerFailedError.

    The position stays before the batch, so that the next owner of the partition begins with it.
    """
