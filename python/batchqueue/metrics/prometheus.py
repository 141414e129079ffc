"""Metrics for Prometheus: a base of all collectors, the one for queues, a server for scrapes."""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from batchqueue.base.checks import check_whole, require
from batchqueue.exceptions import ConfigError
from batchqueue.metrics.names import QueueMetric
from batchqueue.metrics.reading import Buckets, read_queues

if TYPE_CHECKING:
    from prometheus_client.core import Metric


_log = logging.getLogger("batchqueue")

Sample = tuple[Enum, tuple[str, ...], float | Buckets]
"""A metric of a list, the values of all its labels, and its value: for a histogram, its buckets."""


class MetricCollector(ABC):
    """A collector for `prometheus_client`, which reads a list of metrics at each scrape.

    Attributes:
        metrics: The list: an enum whose values are `MetricSpec`s.
        labels: The labels that all metrics have before their own.
    """

    metrics: ClassVar[type[Enum]]
    labels: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        """Check that prometheus_client is installed.

        Raises:
            MissingPackageError: prometheus_client is not installed: the extra `metrics`.
        """
        require("prometheus_client.core", type(self).__name__, "metrics")

    def describe(self) -> "Iterable[Metric]":
        """Return the metrics without values; the registry calls this when it gets the collector."""
        return self._families(())

    def collect(self) -> "Iterable[Metric]":
        """Read the metrics."""
        return self._families(self._samples())

    @abstractmethod
    def _samples(self) -> Iterable[Sample]:
        """Read the samples. A value that is not known has none."""

    def _families(self, samples: Iterable[Sample]) -> "Iterable[Metric]":
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        family_of: dict[str, Any] = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        found = {}
        for metric in self.metrics:
            spec = metric.value
            found[metric] = family_of[spec.kind](
                spec.name, spec.what, labels=(*self.labels, *spec.labels)
            )
        for metric, labels, value in samples:
            if isinstance(value, Buckets):
                found[metric].add_metric(labels, list(value.by_label()), value.sum)
            else:
                found[metric].add_metric(labels, float(value))
        return found.values()


class QueueCollector(MetricCollector):
    """The collector for every queue of the process."""

    metrics = QueueMetric
    labels = ("queue",)

    def _samples(self) -> Iterator[Sample]:
        reading = read_queues()
        for (metric, queue), value in reading.values.items():
            yield metric, (queue,), value
        for (metric, queue, kind), buckets in reading.histograms.items():
            yield metric, (queue, kind), buckets


def collector() -> QueueCollector:
    """Return a collector for every queue of this process, registered with the manager or not.

    Queues made later are included, and queues that are shut down as long as they exist. Queues with
    the same name count as one. The names of the metrics are those of `QueueMetric`.

    Returns:
        A collector for a registry of `prometheus_client`. Register it once.

    Raises:
        MissingPackageError: prometheus_client is not installed: the extra `metrics`.

    Example:
        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> from batchqueue import metrics
        >>> registry = CollectorRegistry()
        >>> registry.register(metrics.collector())
        >>> b"batchqueue_queue_produced_total" in generate_latest(registry)
        True
    """
    require("prometheus_client.core", "metrics.collector", "metrics")
    return QueueCollector()


def serve_metrics(port: int, host: str = "127.0.0.1") -> int:
    """Offer the metrics of every queue of this process to Prometheus, at `/metrics`.

    A daemon thread answers until the process ends. A forked child does not answer: call this
    function again there, with another port.

    Args:
        port: The port, 0 to 65 535; 0 takes any free port.
        host: The address to listen on. Default: "127.0.0.1", this machine only; "" means all of its
            addresses.

    Returns:
        The port, which is also logged.

    Raises:
        ConfigError: The port is invalid, or cannot be bound, for instance because it is in use.
        MissingPackageError: prometheus_client is not installed: the extra `metrics`.
    """
    require("prometheus_client", "serve_metrics", "metrics")
    from prometheus_client import CollectorRegistry, start_http_server

    check_whole("serve_metrics: port", port, 0, 65_535, "a number from 0 to 65535")
    registry = CollectorRegistry()
    registry.register(QueueCollector())
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"serve_metrics cannot listen at port {port} of {host!r} ({error}); give a port that "
            "is free, and an address of this machine"
        ) from error
    # A child has no thread that answers, and must not keep the port after the parent ends.
    os.register_at_fork(after_in_child=server.socket.close)
    _log.info("metrics of all queues: http://%s:%s/metrics", host or "0.0.0.0", server.server_port)
    return int(server.server_port)
