"""The metrics of all queues of a process, for Prometheus and OpenTelemetry.

| file | what |
|---|---|
| `names.py` | the list of the metrics, `QueueMetric`; what the lists of this package share |
| `reading.py` | reads all queues |
| `prometheus.py` | a collector, and a server for scrapes |
| `otel.py` | instruments for OpenTelemetry |
"""

from batchqueue.metrics.names import QueueMetric
from batchqueue.metrics.otel import instrument
from batchqueue.metrics.prometheus import collector, serve_metrics

__all__ = ["QueueMetric", "collector", "instrument", "serve_metrics"]
