"""`MetricSpec`: what the lists of metrics say of one metric."""

from typing import NamedTuple


class MetricSpec(NamedTuple):
    """One metric.

    Attributes:
        name: As Prometheus shows it.
        kind: "counter", "gauge" or "histogram".
        labels: Labels of its series, beside those that all metrics of its list have.
        unit: Unit of the value.
        what: What the value means.
        changes: When the value changes.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    unit: str
    what: str
    changes: str
