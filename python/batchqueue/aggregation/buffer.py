"""`MergeBuffer`: one partial per metric type and key, however many observations come in."""

from collections.abc import Iterable

from batchqueue.aggregation.metrics import Metrics


class MergeBuffer:
    """Combines partials as they come. It is not for use from several threads at once; a handler need not be.

    What is accepted is copied or combined, never kept: the caller may go on using its objects, or
    produce one object twice. Memory follows the number of different keys.
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
        """Return all partials, those of one type together, and start empty again."""
        drained = [partial for partials in self._partials.values() for partial in partials.values()]
        self._partials.clear()
        return drained
