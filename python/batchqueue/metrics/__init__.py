"""The metrics of all queues of a process, for Prometheus and OpenTelemetry.

| file | what |
|---|---|
| `names.py` | `MetricSpec`, one metric of a list; `QueueMetric`, the list for queues |
| `reading.py` | reads all queues |
| `prometheus.py` | `MetricCollector`, the base of all collectors; a server for scrapes |
| `otel.py` | instruments for OpenTelemetry |
"""

from batchqueue.metrics.names import QueueMetric
from batchqueue.metrics.otel import instrument
from batchqueue.metrics.prometheus import collector, serve_metrics

__all__ = ["QueueMetric", "collector", "instrument", "serve_metrics"]
