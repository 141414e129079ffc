"""What becomes of a row that a job cannot read: `AggregationJob.on_bad_row`."""

from dataclasses import dataclass
from typing import Literal

from batchqueue import ConfigError

_MOST = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """Keep the rows that a job cannot read in its store, as `batchqueue.outputs.BadRows`.

    They are written in the transaction of their epoch, so that each is there exactly once, and read
    like any metric, for instance with `store.read_table(BadRows, sink_id)`. A write that replaces
    time buckets leaves them; `store.delete(before=...)` deletes those of tasks that began before
    that time, and an overwrite deletes them all.

    Attributes:
        limit: Most bad rows of one task in one epoch. If there are more, the epoch fails: the
            function or the source is broken then, rather than some rows. Default: 10,000.

    Raises:
        ConfigError: The limit is below 1.
    """

    limit: int = 10_000

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 1 <= self.limit <= _MOST:
            raise ConfigError(
                f"DeadLetters: limit is {self.limit!r}; give 1 to {_MOST:_} bad rows of a task"
            )


OnBadRow = Literal["fail", "skip"] | DeadLetters
