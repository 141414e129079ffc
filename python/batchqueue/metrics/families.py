"""Families of Prometheus, from a list of metrics: what all collectors of this package share."""

from enum import Enum
from typing import Any, TypeVar

M = TypeVar("M", bound=Enum)


def families(metrics: type[M], labels: tuple[str, ...]) -> dict[M, Any]:
    """Make an empty family for each metric of a list.

    Args:
        metrics: An enum, whose values have the fields `name`, `kind`, `labels` and `what`.
        labels: The labels that all of them have before their own.
    """
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    known: dict[str, Any] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    made = {}
    for metric in metrics:
        spec = metric.value
        made[metric] = known[spec.kind](spec.name, spec.what, labels=(*labels, *spec.labels))
    return made
