"""The queues of a process as Prometheus metrics: a collector, and a server for scrapes."""

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from batchqueue.base.checks import check_whole, require
from batchqueue.exceptions import ConfigError
from batchqueue.metrics.names import QueueMetric, families
from batchqueue.metrics.reading import Reading, read_queues

if TYPE_CHECKING:
    from prometheus_client.core import Metric


_log = logging.getLogger("batchqueue")


class QueueCollector:
    """A collector for `prometheus_client`, which reads all queues of the process at each scrape."""

    def describe(self) -> "Iterable[Metric]":
        """Return the metrics without values; the registry calls this when it gets the collector."""
        return _families_of(Reading())

    def collect(self) -> "Iterable[Metric]":
        """Read the queues."""
        return _families_of(read_queues())


def _families_of(reading: Reading) -> "Iterable[Metric]":
    found: dict[QueueMetric, Any] = families(QueueMetric, ("queue",))
    for (metric, queue), value in reading.values.items():
        found[metric].add_metric((queue,), value)
    for (metric, queue, kind), buckets in reading.histograms.items():
        found[metric].add_metric((queue, kind), list(buckets.by_label()), buckets.sum)
    return found.values()


def collector() -> QueueCollector:
    """Return a collector for every queue of this process, registered with the manager or not.

    Queues that are made later are included; queues that are shut down are, as long as they exist.
    Queues with the same name are one. The names of the metrics are those of `QueueMetric`.

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

    A daemon thread answers, until the process ends. A forked child does not answer: call it there
    again, with another port.

    Args:
        port: The port, 0 to 65 535; 0 takes any that is free.
        host: The address to listen at. Default: "127.0.0.1", this machine only; "" is all of its
            addresses.

    Returns:
        The port, which the log names too.

    Raises:
        ConfigError: The port is invalid, or cannot be listened at, for instance because it is in
            use.
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
    # The child has no thread that would answer, and must not keep the port when the parent ends.
    os.register_at_fork(after_in_child=server.socket.close)
    _log.info("metrics of all queues: http://%s:%s/metrics", host or "0.0.0.0", server.server_port)
    return int(server.server_port)
