"""The stored metrics, read once for the check, the report and the picture."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from batchqueue.aggregation import MeanMetrics, Metrics
from batchqueue.cli.demo.job import MEASURES, METRICS
from batchqueue.outputs import SqliteStore

M = TypeVar("M", bound=Metrics)


class Results:
    """All metrics of the demo that a store holds."""

    def __init__(self, store: SqliteStore, sink_id: str) -> None:
        """Reads them.

        Args:
            store: The database of the demo.
            sink_id: On whose behalf they were stored.
        """
        self._metrics: Mapping[type[Metrics], list[Metrics]] = {
            metric_type: store.read(metric_type, sink_id) for metric_type in METRICS
        }

    def of(self, metric_type: type[M]) -> list[M]:
        """Returns the metrics of one type, by time bucket."""
        return self._metrics[metric_type]  # type: ignore[return-value]  # the key is the type of the values

    def over_time(self, metric_type: type[M]) -> M:
        """Returns all buckets of one type, of which there is at least one, combined."""
        return _combined(self.of(metric_type))

    def hourly_delay(self) -> dict[int, float | None]:
        """Returns the mean delay of all flights by hour; None where all were cancelled."""
        hours: dict[int, list[MeanMetrics]] = {}
        for measures in MEASURES["origin"].values():
            for mean in self.of(measures.mean_delay):
                hours.setdefault(mean.time_bucket, []).append(mean)
        return {hour: _combined(means).value for hour, means in hours.items()}


def _combined(metrics: Sequence[M]) -> M:
    """What all of them observed together, whatever their entities and buckets."""
    combined = metrics[0].copy()
    for partial in metrics[1:]:
        combined.combine(partial)
    return combined
