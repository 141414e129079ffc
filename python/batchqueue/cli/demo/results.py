"""The stored metrics, read once for the check, the report and the picture."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from batchqueue.aggregation import MeanMetrics, Metrics
from batchqueue.cli.demo.measures import MEASURES, METRICS
from batchqueue.outputs import SqliteStore

M = TypeVar("M", bound=Metrics)


class Results:
    """All metrics of the demo in a store."""

    def __init__(self, store: SqliteStore, sink_id: str) -> None:
        """Read the metrics.

        Args:
            store: The database of the demo.
            sink_id: The sink that wrote them.
        """
        self._metrics: Mapping[type[Metrics], list[Metrics]] = {
            metric_type: store.read(metric_type, sink_id) for metric_type in METRICS
        }

    def of(self, metric_type: type[M]) -> list[M]:
        """Return the metrics of a type, ordered by entity and time bucket."""
        # The key of each list is the type of its values.
        return self._metrics[metric_type]  # type: ignore[return-value]

    def over_time(self, metric_type: type[M]) -> M:
        """Return all metrics of a type combined; there must be at least one."""
        return _combined(self.of(metric_type))

    def hourly_delay(self) -> dict[int, float | None]:
        """Return the mean delay in minutes of all flights, by the start of the hour.

        The hour is in seconds since the epoch, UTC; the delay is None if all flights of the hour
        were cancelled.
        """
        hours: dict[int, list[MeanMetrics]] = {}
        for measures in MEASURES["origin"].values():
            for mean in self.of(measures.mean_delay):
                hours.setdefault(mean.time_bucket, []).append(mean)
        return {hour: _combined(means).value for hour, means in hours.items()}


def _combined(metrics: Sequence[M]) -> M:
    """Combine metrics, whatever their entities and buckets are."""
    combined = metrics[0].copy()
    for partial in metrics[1:]:
        combined.combine(partial)
    return combined
