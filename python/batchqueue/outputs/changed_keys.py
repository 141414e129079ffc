"""`ChangedKeys`: what an epoch has changed, as a metric that the stores keep beside the others."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple, Self

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row


class Changed(NamedTuple):
    """What one epoch, or one batch write, has changed.

    Attributes:
        position: Where its lists are: seconds since 1970, larger than that of the one before.
        keys: By the name of a metric, entity and time bucket of each key, in order.
    """

    position: int
    keys: dict[str, list[tuple[str, int]]]


class ChangedKeys(Metrics):
    """The keys of a metric that one epoch, or one batch write, has changed.

    A Spark job with `changed_keys=True` writes them under the name "changed_keys" into its sink, in
    the transaction of the epoch. The entity is the name of the metric. The time bucket is when the
    epoch was committed, and at least a second later than that of the epoch before: its position,
    by which `changed_keys` of a store returns them.

    Example:
        >>> from batchqueue.outputs import SqliteStore
        >>> store = SqliteStore("metrics.db")
        >>> with store.transaction("orders") as transaction:
        ...     transaction.merge([ChangedKeys("hits", 1_700_000_000, [("rome", 0), ("oslo", 0)])])
        >>> for changed in store.read(ChangedKeys, "orders", since=1_700_000_000):
        ...     print(changed.entity, changed.keys)
        hits [('oslo', 0), ('rome', 0)]
    """

    __slots__ = ("_keys",)
    name = "changed_keys"
    table = "changed_keys"
    columns: ClassVar = {"changed_entity": str, "changed_bucket": int}
    multi_row = True

    def __init__(self, entity: str, time_bucket: int, keys: Iterable[tuple[str, int]]) -> None:
        """Name the keys.

        Args:
            entity: The name of the metric.
            time_bucket: When they were committed, in whole seconds since 1970, UTC.
            keys: Entity and time bucket of each.
        """
        self.key = (entity, time_bucket)
        self._keys = set(keys)

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Entity and time bucket of each key, in order."""
        return sorted(self._keys)

    def combine(self, other: Self) -> None:
        """Take the keys of `other` into this one."""
        self._keys |= other._keys

    def to_rows(self) -> list[Row]:
        """Return a row of value columns for each key."""
        return list(self.keys)

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote."""
        return cls(entity, time_bucket, ((name, bucket) for name, bucket in rows))
