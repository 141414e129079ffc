"""`MergeBuffer`: a partial per metric type and key, however many observations arrive."""

from collections.abc import Iterable

from batchqueue.aggregation.metrics import Metrics


class MergeBuffer:
    """Combines partials as they arrive. Not thread-safe; queues never enter a handler concurrently.

    It copies or combines the objects that it accepts and keeps none of them: the caller may reuse
    an object, or produce it twice. Memory follows the number of distinct keys.
    """

    def __init__(self) -> None:
        self._partials: dict[type[Metrics], dict[tuple[str, int], Metrics]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._partials.values()))

    def accept_all(self, batch: Iterable[Metrics]) -> None:
        """Combine every item of `batch` into the partial of its type and key."""
        metric_type: type[Metrics] | None = None
        partials: dict[tuple[str, int], Metrics] = {}
        find = partials.get
        for item in batch:
            if type(item) is not metric_type:
                metric_type = type(item)
                partials = self._partials.setdefault(metric_type, {})
                find = partials.get
            partial = find(item.key)
            if partial is None:
                partials[item.key] = item.copy()
            else:
                partial.combine(item)

    def keys(self) -> dict[type[Metrics], list[tuple[str, int]]]:
        """Return the keys of the partials, by type."""
        return {metric_type: list(partials) for metric_type, partials in self._partials.items()}

    def drain(self) -> list[Metrics]:
        """Remove all partials and return them, grouped by type."""
        drained = [partial for partials in self._partials.values() for partial in partials.values()]
        self._partials.clear()
        return drained
